"""Who is who: arguments, TF_CONFIG, and tf.distribute's cluster resolvers."""

import json

import pytest
from jobs import Jobs

from wbsp.cluster import Spec, Task, tf_config

CLUSTER = {"ps": ["ps.example:2606"], "worker": ["a.example:1", "b.example:1", "c.example:1"]}


@pytest.fixture(autouse=True)
def no_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)


def config(monkeypatch, cluster=CLUSTER, kind="worker", index=2, text=None):
    text = text or json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
    monkeypatch.setenv("TF_CONFIG", text)


def test_tf_config_names_the_server_and_this_worker(monkeypatch):
    config(monkeypatch)
    assert tf_config() == Spec("ps.example:2606", 3, "worker", 2)
    assert Task.complete(None, None) == ("ps.example:2606", 2)


def test_an_index_may_come_as_text(monkeypatch):
    config(monkeypatch, index="1")
    assert Task.complete(None, None).worker == 1


def test_arguments_go_before_tf_config(monkeypatch):
    config(monkeypatch)
    assert Task.complete("other:1", None) == ("other:1", 2)
    assert Task.complete(None, 0) == ("ps.example:2606", 0)


def test_arguments_need_no_tf_config():
    assert Task.complete("other:1", 5) == ("other:1", 5)


@pytest.mark.parametrize("arguments", [(None, None), ("localhost:1", None), (None, 0)])
def test_neither_is_one_clear_line(arguments):
    with pytest.raises(ValueError, match="nor the environment variable TF_CONFIG is given") as e:
        Task.complete(*arguments)
    assert "\n" not in str(e.value) and "SyncCallback(" in str(e.value)


def test_a_negative_index_is_refused():
    with pytest.raises(ValueError, match="worker_index must be 0 or more, not -1"):
        Task.complete("localhost:1", -1)


@pytest.mark.parametrize("settings, says", [
    ({"text": "no json"}, "TF_CONFIG is no cluster"),
    ({"text": "[]"}, "TF_CONFIG is no cluster"),
    ({"text": "{}"}, "cluster"),
    ({"text": '{"cluster": 3, "task": 3}'}, "TF_CONFIG is no cluster"),
    ({"cluster": {"worker": ["a:1"]}}, "it has no 'ps'"),
    ({"cluster": {"ps": ["a:1"]}}, "it has no 'worker'"),
    ({"cluster": {"ps": ["a:1"], "worker": []}}, "no worker tasks; name each of them"),
    ({"cluster": {"ps": "a:1", "worker": ["a:1"]}}, "'ps' is 'a:1', not a list of addresses"),
    ({"cluster": {"ps": ["a:1"], "worker": [7]}}, "'worker' is [7], not a list of addresses"),
    ({"cluster": {"ps": ["a:1"], "worker": ["a:1"], "chief": ["c:1"]}},
     "a chief; wbsp has none: make it a worker"),
    ({"cluster": {"ps": ["a:1", "b:1"], "worker": []}}, "2 ps tasks; wbsp needs one"),
    ({"cluster": {"ps": [], "worker": []}}, "0 ps tasks; wbsp needs one"),
    ({"kind": "chief"}, "a chief; wbsp has none: make it a worker"),
    ({"index": "first"}, "first"),
])
def test_a_bad_tf_config_is_one_clear_line(monkeypatch, settings, says):
    config(monkeypatch, **settings)
    with pytest.raises(ValueError) as caught:
        tf_config()
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith("TF_CONFIG is no cluster of one ps and workers: ")


@pytest.mark.parametrize("kind", ["ps", "evaluator"])
def test_only_a_worker_can_take_a_workers_place(monkeypatch, kind):
    config(monkeypatch, kind=kind, index=0)
    with pytest.raises(ValueError, match=f"makes this process a task of type '{kind}', not a wor"):
        Task.complete(None, None)


@pytest.mark.parametrize("kind, cluster, says", [
    ("worker", CLUSTER, "TF_CONFIG makes this process a task of type 'worker', not a ps"),
    ("ps", {"ps": ["localhost:1"]}, "it has no 'worker'"),
    ("ps", {"ps": ["localhost:1"], "worker": ["a:1"], "chief": ["b:1"]}, "a chief; wbsp has none"),
    ("ps", {"ps": [""], "worker": ["a:1"]}, "address '' is not host:port"),
    ("ps", None, "say how many workers there are: --worker_num=2, or TF_CONFIG"),
])
def test_a_server_from_a_bad_tf_config_is_one_line_and_exit_code_1(tmp_path, kind, cluster, says):
    text = json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}}) if cluster else ""
    with Jobs(tmp_path) as jobs:
        server = jobs.start("server", "-m", "wbsp.ps", TF_CONFIG=text)
        assert server.ends() == 1
        (line,) = server.lines
    assert line.startswith("wbsp.ps: ") and says in line


@pytest.mark.slow
def test_cluster_resolvers_of_tensorflow(monkeypatch):
    import tensorflow as tf

    resolvers = tf.distribute.cluster_resolver
    config(monkeypatch, index=1)
    assert Task.of(resolvers.TFConfigClusterResolver()) == ("ps.example:2606", 1)
    spec = tf.train.ClusterSpec(CLUSTER)
    simple = resolvers.SimpleClusterResolver(spec, task_type="worker", task_id=2)
    assert Task.of(simple) == ("ps.example:2606", 2)
    with pytest.raises(ValueError, match="makes this process a task of type 'ps', not a worker"):
        Task.of(resolvers.SimpleClusterResolver(spec, task_type="ps", task_id=0))
    with pytest.raises(ValueError, match="gives this process no task index"):
        Task.of(resolvers.SimpleClusterResolver(spec, task_type="worker"))
    two = tf.train.ClusterSpec({**CLUSTER, "ps": ["a:1", "b:1"]})
    with pytest.raises(ValueError, match="names 2 ps tasks; wbsp needs one"):
        Task.of(resolvers.SimpleClusterResolver(two, task_type="worker", task_id=0))
