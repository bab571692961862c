"""Errors of a run on Ray that are found without a cluster."""

import pickle
import sys
import threading
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

# It is imported in the tests: all processes of pytest collect them, and one runs them.
pytestmark = pytest.mark.skipif(find_spec("ray") is None,
                                reason="these tests need Ray: pip install 'ray[default]'")


def test_workers_given_as_a_number_need_a_cpu_each():
    from wbsp.ray.placement import actor_options, of_workers
    assert of_workers(2) == [{"CPU": 1}, {"CPU": 1}]
    assert of_workers([{"GPU": 1, "CPU": 0}, {"TPU": 0.5}]) == [{"GPU": 1}, {"TPU": 0.5}]
    assert actor_options({"GPU": 1, "TPU": 4, "memory": 1e9}) == {
        "num_cpus": 0, "num_gpus": 1, "memory": 1e9, "resources": {"TPU": 4}}


@pytest.mark.parametrize("arguments, says", [
    ({"workers": 0}, "workers is 0: give their number, or what each needs"),
    ({"workers": []}, "workers is []: give their number"),
    ({"workers": {"GPU": 1}}, "workers is {'GPU': 1}: give their number"),
    ({"workers": [{"GPU": 1}, {}]}, "worker 1 needs nothing"),
    ({"workers": [{"GPU": -1}]}, "worker 0 needs {'GPU': -1}: give amounts"),
    ({"workers": [4]}, "worker 0 needs 4: give amounts"),
    ({"server": {"CPU": "1"}}, "the server needs {'CPU': '1'}: give amounts"),
    ({"storage": "s3://bucket/runs"}, "storage is 's3://bucket/runs': give a folder"),
    ({"name": "a/b"}, "name is 'a/b': give the name of a folder"),
    ({"strategy": "WIDE"}, "strategy is 'WIDE', not one of SPREAD, PACK"),
    ({"placement_timeout": 0}, "placement_timeout is 0: give seconds above 0"),
    ({"max_restarts": -1}, "max_restarts is -1: give a number of 0 or more"),
])
def test_bad_arguments_are_refused_before_ray_is_asked(monkeypatch, arguments, says):
    from wbsp.ray import run
    monkeypatch.setattr("ray.init", lambda: pytest.fail("Ray was asked"))
    with pytest.raises(ValueError) as error:
        run(print, **{"workers": 1, **arguments})
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("arguments, says", [
    (["--workers=2", "missing.py"], "No such file or directory: 'missing.py'"),
    (["--workers=2", "--resources=GPU", __file__], "--resources=GPU is not NAME=AMOUNT,..."),
    (["--workers=0", __file__], "workers is []: give their number"),
])
def test_the_command_refuses_bad_arguments_in_one_line(capsys, arguments, says):
    from wbsp.ray.__main__ import main
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert said.startswith("wbsp.ray: ") and says in said and said.count("\n") == 1


def test_a_script_runs_as_python_would_run_it(tmp_path, monkeypatch):
    from wbsp.ray import Script
    (tmp_path / "beside.py").write_text("value = 7")
    path = tmp_path / "train.py"
    path.write_text("""
import sys
import beside
def text():
    return f"{__name__} {__file__} {sys.argv[1:]} {beside.value}"
assert sys.modules["__main__"].text is text
open("said", "w").write(text())
""")
    monkeypatch.chdir(tmp_path)
    script = Script.read("train.py", ("--rate=0.1",))
    before = sys.argv, sys.modules["__main__"], sys.path[:]
    monkeypatch.chdir("/")
    script()
    assert (tmp_path / "said").read_text() == f"__main__ {path} ['--rate=0.1'] 7"
    assert (sys.argv, sys.modules["__main__"], sys.path) == before


@pytest.mark.parametrize("end, fails", [("sys.exit()", False), ("sys.exit(0)", False),
                                        ("sys.exit(3)", True), ("sys.exit('no data')", True)])
def test_a_script_that_ends_badly_raises(tmp_path, monkeypatch, end, fails):
    from wbsp.ray import Script
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(f"import sys\n{end}")
    script = Script.read("train.py")
    if not fails:
        return script()
    with pytest.raises(RuntimeError, match="train.py ended with (3|'no data')"):
        script()
    return None


class TwoArguments(Exception):
    """Pickle cannot make it anew."""

    def __init__(self, rate, limit):
        super().__init__(f"a learning rate of {rate} is above {limit}")


class Held(Exception):
    """Pickle cannot take it apart."""

    def __init__(self):
        super().__init__("it holds a lock")
        self.lock = threading.Lock()


def raises(error):
    def train():
        raise error
    return train


@pytest.fixture
def worker(monkeypatch):
    """A worker's actor, in this process."""
    from wbsp.ray.worker import Worker
    context = SimpleNamespace(get_accelerator_ids=dict)
    monkeypatch.setattr("ray.get_runtime_context", lambda: context)
    for name in ("WBSP_WORKER_INDEX", "WBSP_TOKEN_FILE", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")
    return Worker(0)


@pytest.mark.parametrize("error, as_what, says", [
    (ValueError("no such rate"), ValueError, "^no such rate$"),
    (TwoArguments(3, 2), RuntimeError, "^TwoArguments: a learning rate of 3 is above 2$"),
    (Held(), RuntimeError, "^Held: it holds a lock$"),
    (KeyboardInterrupt("by hand"), RuntimeError, "^KeyboardInterrupt: by hand$"),
    (GeneratorExit(), RuntimeError, "^GeneratorExit: $"),
    (SystemExit(3), RuntimeError, "^train ended with 3$"),
])
def test_an_error_of_train_survives_pickling(worker, error, as_what, says):
    with pytest.raises(as_what, match=says) as caught:
        worker.train((raises(error), ()), "0123456789abcdef", {})
    assert type(pickle.loads(pickle.dumps(caught.value))) is as_what


@pytest.mark.parametrize("code", [None, 0])
def test_a_train_that_exits_well_has_returned(worker, code):
    assert worker.train((raises(SystemExit(code)), ()), "0123456789abcdef", {}) == (None, None)


def test_an_actor_that_ray_kills_counts_as_dead(worker):
    end = SystemExit(1)
    end.ray_terminate_msg = "The process receives a SIGTERM."
    with pytest.raises(SystemExit):
        worker.train((raises(end), ()), "0123456789abcdef", {})
