"""Who is who: arguments, the environment, and tf.distribute's cluster resolvers."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from jobs import ROOT, Jobs, free_port

from wbsp.environment import (
    Spec,
    Task,
    address_of_server,
    server_address,
    shares_memory,
    shown_server,
    tf_config,
    token,
    worker_num,
)
from wbsp.ps.launch import where_to_listen
from wbsp.wire.addresses import split_address

CLUSTER = {"ps": ["ps.example:2606"], "worker": ["a.example:1", "b.example:1", "c.example:1"]}


VARIABLES = ["WBSP_SERVER", "WBSP_WORKER_INDEX", "WBSP_WORKER_NUM", "WBSP_TOKEN_FILE",
             "WBSP_TRANSPORT", "TF_CONFIG", "JOB_COMPLETION_INDEX", "SLURM_PROCID"]


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def say(monkeypatch):
    """say(NAME=text, ...) sets variables of the environment."""
    return lambda **said: [monkeypatch.setenv(name, text) for name, text in said.items()]


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


def test_a_worker_without_an_index_has_none_before_its_server_chooses_one(say):
    assert Task.complete("localhost:1", None) == ("localhost:1", None)
    assert Task.complete(None, None) == ("localhost:2606", None)
    say(WBSP_WORKER_INDEX="3")
    assert Task.complete(None, None) == ("localhost:2606", 3)


def test_the_server_is_that_of_this_machine_if_nothing_names_one(say):
    assert Task.complete(None, 0) == ("localhost:2606", 0)
    assert address_of_server(None, split_address) == "localhost:2606"
    assert address_of_server("other:1", split_address) == "other:1"
    say(WBSP_SERVER="a:1")
    assert address_of_server(None, split_address) == "a:1"


def test_a_line_about_a_wait_marks_a_default_as_default():
    assert shown_server("localhost:2606") == (
        "localhost:2606 (the default; WBSP_SERVER=host:port names another)")
    assert shown_server("localhost:2607") == "localhost:2607"


def test_the_variables_of_wbsp_say_everything(say, tmp_path):
    path = tmp_path / "token"
    path.write_text("0123456789abcdef")
    say(WBSP_SERVER="any text, untouched", WBSP_WORKER_INDEX="2", WBSP_WORKER_NUM="3",
        WBSP_TOKEN_FILE=str(path))
    assert Task.complete(None, None) == ("any text, untouched", 2)
    assert worker_num() == 3 and token(None) == b"0123456789abcdef"
    assert Task.complete("other:1", 0) == ("other:1", 0), "arguments go before"
    assert token("") is None, "said: none"


def test_unset_variables_give_none():
    assert worker_num() is token(None) is server_address() is tf_config() is None
    assert Task.complete(None, None, Task("localhost:2222", 0)) == ("localhost:2222", 0)


@pytest.mark.parametrize("given, variable, shared", [
    (None, None, True), (None, "", True), (None, "auto", True), ("auto", "tcp", True),
    (None, "tcp", False), ("tcp", "auto", False)])
def test_memory_is_shared_unless_tcp_is_asked_for(say, given, variable, shared):
    if variable is not None:
        say(WBSP_TRANSPORT=variable)
    assert shares_memory(given) == shared


def test_an_unknown_transport_is_refused_in_one_line(say):
    with pytest.raises(ValueError, match="^transport is 'udp': not one of auto, tcp$"):
        shares_memory("udp")
    say(WBSP_TRANSPORT="TCP")
    with pytest.raises(ValueError, match="^WBSP_TRANSPORT is 'TCP': not one of auto, tcp$"):
        shares_memory(None)


def test_an_empty_environment_variable_is_ignored(say):
    say(**dict.fromkeys(VARIABLES, " "))
    test_unset_variables_give_none()


@pytest.mark.parametrize("name", ["JOB_COMPLETION_INDEX", "SLURM_PROCID"])
def test_a_schedulers_number_gives_the_index_last(say, monkeypatch, name):
    say(WBSP_SERVER="a:1", **{name: "7"})
    assert Task.complete(None, None) == ("a:1", 7)
    config(monkeypatch, index=1)
    assert Task.complete(None, None) == ("a:1", 1), "its tasks may be counted otherwise"
    say(WBSP_WORKER_INDEX="0")
    assert Task.complete(None, None) == ("a:1", 0)


@pytest.mark.parametrize("said, says", [
    ({"WBSP_SERVER": "here"}, "WBSP_SERVER is 'here': address 'here' is not host:port"),
    ({"WBSP_WORKER_INDEX": "-1"}, "WBSP_WORKER_INDEX is '-1': not a whole number of 0 or more"),
    ({"WBSP_WORKER_INDEX": "1.5"}, "WBSP_WORKER_INDEX is '1.5': not a whole number of 0 or more"),
    ({"JOB_COMPLETION_INDEX": "one"}, "JOB_COMPLETION_INDEX is 'one': not a whole number of 0 or"),
    ({"SLURM_PROCID": "²"}, "SLURM_PROCID is '²': not a whole number of 0 or more"),
    ({"WBSP_WORKER_NUM": "0"}, "WBSP_WORKER_NUM is '0': not a whole number of 1 or more"),
    ({"WBSP_TOKEN_FILE": "/no/such"}, "WBSP_TOKEN_FILE is '/no/such': .*No such file"),
    ({"WBSP_TOKEN_FILE": "/dev/null"}, "WBSP_TOKEN_FILE is '/dev/null': .* is no regular file"),
])
def test_a_bad_variable_is_named_with_its_value(say, said, says):
    say(**{"WBSP_SERVER": "a:1", **said})
    with pytest.raises(ValueError, match=f"^{says}") as caught:
        Task.complete(None, None, Task("b:1", 0), check=split_address)
        worker_num()
        token(None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("server, listens", [
    ("localhost:2607", ("localhost", 2607)), ("[::1]:2607", ("[::1]", 2607)),
    ("server.example:2607", ("*", 2607)), ("10.0.0.1:2607", ("*", 2607)),
    ("a.example:2607,b.example:2607", ("*", 2607)), ("localhost:2607,b.example:2607", ("*", 2607)),
])
def test_a_server_listens_at_the_address_in_the_workers_environment(say, server, listens):
    say(WBSP_SERVER=server)
    assert where_to_listen(None, None, 2606) == listens


def test_flags_alone_decide_where_a_server_listens(say):
    say(WBSP_SERVER="server.example:2607")
    assert where_to_listen("::", None, 2606) == ("::", 2606)
    assert where_to_listen(None, 2608, 2606) == ("localhost", 2608)


@pytest.mark.parametrize("server, says", [
    ("a.example", "WBSP_SERVER is 'a.example': address 'a.example' is not host:port"),
    ("a.example:1,b.example:2", "WBSP_SERVER is '.*': several ports; give .*--port_base"),
])
def test_an_address_that_does_not_say_the_servers_port_is_one_line(say, server, says):
    say(WBSP_SERVER=server)
    with pytest.raises(ValueError, match=says):
        where_to_listen(None, None, 2606)


@pytest.mark.parametrize("index", [-1, "0", 1.5, 1 << 64])
def test_an_invalid_index_is_refused(index):
    says = f"^worker_index must be a whole number of 0 or more, not {index!r}$"
    with pytest.raises(ValueError, match=says):
        Task.complete("localhost:1", index)


def test_an_index_may_be_a_number_of_numpys():
    assert type(Task.complete("localhost:1", np.int64(3)).worker) is int


@pytest.mark.parametrize("settings, says", [
    ({"text": "no json"}, "TF_CONFIG is 'no json': no cluster"),
    ({"text": "[]"}, "TF_CONFIG is '[]': no cluster"),
    ({"text": "{}"}, "cluster"),
    ({"text": '{"cluster": 3,\n"task": 3}'}, "no cluster of one ps and workers"),
    ({"cluster": {"worker": ["a:1"]}}, "it has no 'ps'"),
    ({"cluster": {"ps": ["a:1"]}}, "it has no 'worker'"),
    ({"cluster": {"ps": ["a:1"], "worker": []}}, "no worker tasks; name each of them"),
    ({"cluster": {"ps": "a:1", "worker": ["a:1"]}}, "'ps' is 'a:1', not a list of addresses"),
    ({"cluster": {"ps": ["a:1"], "worker": [7]}}, "'worker' is [7], not a list of addresses"),
    ({"cluster": {"ps": ["a:1"], "worker": ["a:1"], "chief": "c:1"}},
     "'chief' is 'c:1', not a list of addresses"),
    ({"cluster": {"ps": ["a:1", "b:1"], "worker": []}}, "2 ps tasks; wbsp needs one"),
    ({"cluster": {"ps": [], "worker": []}}, "0 ps tasks; wbsp needs one"),
    ({"kind": "chief"}, "the task is number 2 of type 'chief', and the cluster has 0 of these"),
    ({"index": 3}, "the task is number 3 of type 'worker', and the cluster has 3 of these, from 0"),
    ({"text": json.dumps({"cluster": CLUSTER, "task": {"type": "worker"}})}, "it has no 'index'"),
    ({"text": json.dumps({"cluster": CLUSTER, "task": {}})}, "it has no 'type'"),
    ({"text": json.dumps({"cluster": CLUSTER, "task": "worker"})}, "no cluster of one ps"),
    ({"text": json.dumps({"cluster": [], "task": {"type": "worker"}})}, "no cluster of one ps"),
    ({"text": '{"cluster": {"ps": ["a:1"'}, "no cluster of one ps"),
    ({"text": "[" * 100_000}, "no cluster of one ps"),
    ({"index": "first"}, "the task's index is 'first': not a whole number of 0 or more"),
    ({"index": -1}, "the task's index is '-1': not a whole number of 0 or more"),
    ({"index": True}, "the task's index is 'True'"),
])
def test_a_bad_tf_config_is_one_clear_line(monkeypatch, settings, says):
    config(monkeypatch, **settings)
    with pytest.raises(ValueError) as caught:
        tf_config()
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert re.match("TF_CONFIG is '.*': no cluster of one ps and workers: ", str(caught.value))
    assert str(caught.value).endswith("; WBSP_SERVER, WBSP_WORKER_INDEX and WBSP_WORKER_NUM "
                                      "take precedence")


FULL = {"chief": ["c.example:1"], **CLUSTER, "evaluator": ["e.example:1"]}


@pytest.mark.parametrize("cluster, kind, index, worker", [
    (FULL, "chief", 0, 0), (FULL, "worker", 0, 1), (FULL, "worker", 2, 3),
    ({**CLUSTER, "master": ["m.example:1"]}, "master", 0, 0),
    ({**CLUSTER, "master": ["m.example:1"]}, "worker", 2, 3),
    ({"ps": CLUSTER["ps"], "chief": ["c.example:1"]}, "chief", 0, 0),
])
def test_a_chief_is_the_first_worker(monkeypatch, cluster, kind, index, worker):
    config(monkeypatch, cluster, kind, index)
    assert Task.complete(None, None) == ("ps.example:2606", worker)
    spec = SimpleNamespace(as_dict=lambda: cluster)
    assert Task.of(SimpleNamespace(cluster_spec=lambda: spec, task_type=kind, task_id=index)
                   ) == ("ps.example:2606", worker)
    trainers = sum(len(cluster.get(one, [])) for one in ("chief", "master", "worker"))
    config(monkeypatch, cluster, "ps", 0)
    assert worker_num() == trainers


def test_the_only_task_of_its_type_needs_no_index(monkeypatch):
    config(monkeypatch, text=json.dumps({"cluster": FULL, "task": {"type": "chief"}}))
    assert Task.complete(None, None).worker == 0
    config(monkeypatch, text=json.dumps({"cluster": FULL, "task": {"type": "ps"}}))
    assert worker_num() == 4


@pytest.mark.parametrize("kind", ["ps", "evaluator"])
def test_only_a_worker_can_take_a_workers_place(monkeypatch, kind):
    config(monkeypatch, kind=kind, index=0)
    with pytest.raises(ValueError, match=f"makes this process a task of type '{kind}', not a wor"):
        Task.complete(None, None)


@pytest.mark.parametrize("kind, cluster, says", [
    ("worker", CLUSTER, "TF_CONFIG makes this process a task of type 'worker', not a ps: "
     "python -m wbsp.ps is for the ps, and a script with SyncCallback for the workers"),
    ("ps", {"ps": ["localhost:1"]}, "it has no 'worker'"),
    ("evaluator", {"ps": ["localhost:1"], "worker": ["a:1"]}, "'evaluator', not a ps: it takes"),
    ("ps", {"ps": [""], "worker": ["a:1"]}, "the ps in TF_CONFIG is '': address '' is not host:po"),
    ("ps", None, "the number of workers is unknown: set --worker_num=2, or the environment"),
])
def test_a_server_from_a_bad_tf_config_is_one_line_and_exit_code_1(tmp_path, kind, cluster, says):
    text = json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}}) if cluster else ""
    with Jobs(tmp_path) as jobs:
        server = jobs.start("server", "-m", "wbsp.ps", TF_CONFIG=text)
        assert server.ends() == 1
        (line,) = server.lines
    assert line.startswith("wbsp.ps: ") and says in line


def test_a_server_and_its_workers_need_only_the_environment(tmp_path):
    path, port = tmp_path / "token", free_port()
    path.write_text("0123456789abcdef")
    with Jobs(tmp_path) as jobs:
        server = jobs.start("server", "-m", "wbsp.ps", WBSP_SERVER=f"machine.example:{port}",
                            WBSP_WORKER_NUM="3", WBSP_TOKEN_FILE=str(path))
        assert server.until(f"listening on port {port}, waiting for 3 worker")
        open_to_all = jobs.start("server", "-m", "wbsp.ps", WBSP_SERVER=f"a.example:{free_port()}",
                                 WBSP_WORKER_NUM="3", XDG_CONFIG_HOME=str(tmp_path / "config"))
        open_to_all.until("each worker there: WBSP_SERVER=a.example:")
        assert open_to_all.find("made a token, for this and later runs: .*/config/wbsp/token")


@pytest.mark.parametrize("job, said, says", [
    ("ps", {"WBSP_WORKER_NUM": "all"}, "WBSP_WORKER_NUM is 'all': not a whole number"),
    ("ps", {"WBSP_SERVER": "2222"}, "WBSP_SERVER is '2222': address '2222' is not host:port"),
    ("worker", {"WBSP_WORKER_INDEX": "a"}, "WBSP_WORKER_INDEX is 'a': not a whole number"),
    ("worker", {"WBSP_SERVER": "2222"}, "WBSP_SERVER is '2222': address '2222' is not host:port"),
])
def test_the_launcher_refuses_a_bad_variable_in_one_line(tmp_path, job, said, says):
    with Jobs(tmp_path) as jobs:
        process = jobs.start(job, ROOT / "runcifar10gpu.py", f"--job_name={job}", **said)
        assert process.ends() == 1
        (line,) = process.lines
    assert line.startswith("runcifar10gpu: ") and says in line


@pytest.mark.parametrize("kind, index, says", [
    (None, 0, "a task of type None, not a worker"), ("", 0, "a task of type '', not a worker"),
    ("ps", 0, "a task of type 'ps', not a worker"), ("worker", None, "no task index"),
])
def test_a_resolver_of_another_task_names_no_worker(kind, index, says):
    """Most resolvers count tasks of all types, the ps among them, and leave the type to the user.
    """
    spec = SimpleNamespace(as_dict=lambda: CLUSTER)
    resolver = SimpleNamespace(cluster_spec=lambda: spec, task_type=kind, task_id=index)
    with pytest.raises(ValueError, match=says):
        Task.of(resolver)
    resolver.task_type, resolver.task_id = "worker", 2
    assert Task.of(resolver) == ("ps.example:2606", 2)


@pytest.mark.slow
def test_cluster_resolvers_of_tensorflow(monkeypatch):
    import tensorflow as tf

    resolvers = tf.distribute.cluster_resolver
    config(monkeypatch, index=1)
    assert Task.of(resolvers.TFConfigClusterResolver()) == ("ps.example:2606", 1)
    spec = tf.train.ClusterSpec(CLUSTER)
    simple = resolvers.SimpleClusterResolver(spec, task_type="worker", task_id=2)
    assert Task.of(simple) == ("ps.example:2606", 2)
    with pytest.raises(ValueError, match="makes this process a task of type .*, not a worker"):
        Task.of(resolvers.SimpleClusterResolver(spec, task_id=0))
    two = tf.train.ClusterSpec({**CLUSTER, "ps": ["a:1", "b:1"]})
    with pytest.raises(ValueError, match="names 2 ps tasks; wbsp needs one"):
        Task.of(resolvers.SimpleClusterResolver(two, task_type="worker", task_id=0))
