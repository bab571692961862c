"""A take-over that is cut short, or cannot write: nothing is lost, and a later start finds it."""

import errno
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hostile_peer import Peer
from jobs import free_port, until

from wbsp.core.engine import Engine
from wbsp.core.store import Store
from wbsp.process.signals import Interrupts
from wbsp.ps import launch as start
from wbsp.ps.checkpoint.format import Checkpoint, load
from wbsp.ps.checkpoint.resume import Runs
from wbsp.ps.checkpoint.state import RunState
from wbsp.ps.checkpoint.writer import CHECKPOINT
from wbsp.ps.config import ServerConfig
from wbsp.ps.replication.snapshot import RunCopy
from wbsp.ps.replication.standby import Standby
from wbsp.runlog.files import write_document
from wbsp.runlog.folder import is_held, read_settings, write_settings
from wbsp.sync import create
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.messages import codec as m
from wbsp.wire.sockets import ServerSocket

FULL = OSError(errno.ENOSPC, "No space left on device")
STATE = RunState(elapsed=3.0,
                 **vars(Engine(create("asp"), Store(np.zeros(3, np.float32), 7), 2).state()))


@pytest.fixture
def socket():
    socket = ServerSocket("localhost", free_port(), None, 2)
    yield socket
    if not socket.socket.closed:
        socket.close()


def planned(model, root, port):
    return start._Plan(
        {"sync": "asp", "sync_option": "{}", "wire": "float32"}, model,
        ServerConfig(2, port=port, base_dir="asp", log_root=str(root), resume=True),
        Runs("asp", root, port, True), Interrupts())


@pytest.fixture
def plan(tmp_path, socket):
    """Of a standby in an experiment of which one run is there, with a checkpoint."""
    earlier = tmp_path / "asp" / "run-001"
    earlier.mkdir(parents=True)
    (earlier / CHECKPOINT).write_bytes(b"")
    write_settings(earlier, {"id": "ab12", "epoch": 1, "workers": 2, "port": socket.port})
    return planned(create("asp"), tmp_path, socket.port)


def copy():
    return RunCopy(4, {"id": "ab12", "epoch": 2, "workers": 2, "standby": "x:1"}, Checkpoint(
        np.arange(3, dtype=np.float32), [TensorSpec("x", (3,))], replace(STATE)))


def resumes(plan):
    """Which folder a later process resumes."""
    return Runs("asp", plan.config.log_root, plan.config.port, True).to_resume()


def test_a_take_over_has_a_folder_of_its_own(plan, socket, tmp_path):
    server = start._TakeOver(plan, socket, "x:2")(copy())
    folder = tmp_path / "asp" / "run-002"
    assert resumes(plan) == plan.runs.current == folder and is_held(folder)
    settings = read_settings(folder)
    assert (settings["id"], settings["epoch"], settings["standby"]) == ("ab12", 3, None)
    assert settings["beside"] == "x:2"
    assert load(folder / CHECKPOINT).vector.tolist() == [0, 1, 2]
    assert sorted(path.name for path in (tmp_path / "asp").iterdir()) == ["run-001", "run-002"]
    server.close()


@pytest.mark.parametrize("elected", [True, False])
def test_an_elected_server_leaps_in_version_numbers_also_after_a_restart(
        plan, socket, tmp_path, elected):
    """The other server may only sleep, and give the next numbers when it wakes."""
    server = start._TakeOver(plan, socket, "x:2")(copy(), elected=elected)
    folder = tmp_path / "asp" / "run-002"
    assert server.engine.rendezvous.rival == elected
    server.close()
    # most workers have come, so that no other one can be elected any more
    write_settings(folder, read_settings(folder, with_secret=True) | {"beside": None})
    saved = load(folder / CHECKPOINT)
    for version in (7, 8):
        state = replace(saved.state, version=version)
        start.save(folder / CHECKPOINT, saved._replace(state=state))
        again = planned(create("asp"), tmp_path, socket.port)
        server = again.prepare(again.listen(), None).__self__
        assert server.engine.rendezvous.rival == (elected and version == 7)
        server.close()


class Killed(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("step", ["hold_folder", "save", "write_settings", "finish"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_between_two_steps_keeps_the_previous_run(plan, socket, tmp_path,
                                                         monkeypatch, step, when):
    owner, name = (plan.runs, "finished") if step == "finish" else (start, step)
    real = getattr(owner, name)

    def dies(*arguments):
        if when == "after":
            real(*arguments)
        raise Killed

    monkeypatch.setattr(owner, name, dies)
    take_over = start._TakeOver(plan, socket)
    with pytest.raises(Killed):
        take_over(copy())
    there = (step, when) == ("finish", "after")
    assert resumes(plan) == tmp_path / "asp" / ("run-002" if there else "run-001")
    if take_over._hold is not None:
        take_over._hold.close()
    monkeypatch.undo()
    if not there:  # its remains disturb no other run
        server = start._TakeOver(plan, socket)(copy())
        assert sorted(p.name for p in (tmp_path / "asp").iterdir()) == ["run-001", "run-002"]
        server.close()


@pytest.mark.parametrize("step", ["save", "write_settings", "finish", "ServerLog"])
def test_a_take_over_that_cannot_write_is_retried(plan, socket, tmp_path, monkeypatch, step):
    take_over = start._TakeOver(plan, socket)
    owner, name = (plan.runs, "finished") if step == "finish" else (start, step)

    def fails(*arguments, **options):
        raise FULL

    for _ in range(2):
        with monkeypatch.context() as context, pytest.raises(OSError, match="No space left"):
            context.setattr(owner, name, fails)
            take_over(copy())
    held = copy()
    server = take_over(held)
    assert [path.name for path in sorted((tmp_path / "asp").iterdir())] == ["run-001", "run-002"]
    assert read_settings(tmp_path / "asp" / "run-002")["epoch"] == 3, "counted once"
    assert held.run["epoch"] == 2
    server.close()


class Serves:
    """Make a server, which fails this many times."""

    def __init__(self, times, interrupts=None):
        self.times, self.interrupts, self.asked = times, interrupts, 0

    def __call__(self, copy, above, elected):
        self.asked += 1
        assert not elected, "the other process has ended"
        if self.asked > self.times:
            return self
        if self.interrupts is not None:
            self.interrupts.first = signal.SIGTERM
        raise FULL

    epoch = 2

    def run(self, attend, earlier):
        return 17


def waits(socket, serves, interrupts, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setattr("wbsp.timeouts.SERVE_AGAIN", 0.05)
    standby = Standby(socket, "localhost:1", {}, serves, interrupts)
    monkeypatch.setattr(standby, "verdict", lambda now: "its process has ended")
    return standby.run()


def test_a_standby_whose_disk_is_full_waits_for_room(socket, monkeypatch, caplog):
    serves = Serves(3)
    assert waits(socket, serves, Interrupts(), monkeypatch, caplog) == 17
    assert serves.asked == 4
    said = caplog.messages
    assert len([line for line in said if "cannot take over yet" in line]) == 1
    assert "yet: No space left on device; the newest state stays in memory" in said[-1]


def test_a_standby_that_cannot_write_can_be_interrupted(socket, monkeypatch, caplog):
    interrupts = Interrupts()
    code = waits(socket, Serves(9, interrupts), interrupts, monkeypatch, caplog)
    assert code == 128 + signal.SIGTERM
    assert "before the newest state could be written" in caplog.messages[-1]


def test_a_standby_restarted_without_a_checkpoint_waits_again(tmp_path, monkeypatch):
    """It does not begin another run while it may take over this one."""
    monkeypatch.setattr(Interrupts, "install", lambda self: self)
    (tmp_path / "asp-standby" / "run-001").mkdir(parents=True)
    port = free_port()
    serve = start.prepare_server({"sync": "asp", "sync_option": "{}"}, create("asp"), ServerConfig(
        2, port=port, base_dir="asp", log_root=str(tmp_path), resume=True,
        standby_of=f"localhost:{port + 1}"))
    standby = serve.args[1].args[1]
    assert isinstance(standby, Standby)
    standby.primary.close()
    standby._socket.close()


def test_a_run_json_without_a_run_is_reported_if_another_server_may_have_it(tmp_path):
    port = free_port()
    folder = tmp_path / "asp" / "run-001"
    folder.mkdir(parents=True)
    start.save(folder / CHECKPOINT, copy().saved)
    plan = planned(create("asp"), tmp_path, port)
    socket = plan.listen()
    with pytest.raises(ValueError, match="run-001/run.json does not name the run of"):
        plan.prepare(socket, "localhost:1")
    socket.close()


@pytest.mark.parametrize(("ends", "says"), [
    ({"stop_samples": 100}, "it has trained 120 samples, and ends after 100"),
    ({"target_accuracy": 0.85}, "its accuracy is 0.9000, and it ends at 0.85"),
    ({"stop_samples": 121, "target_accuracy": 0.95}, None)])
def test_an_ended_run_that_is_named_continues_only_where_something_is_left_to_do(
        tmp_path, caplog, ends, says):
    caplog.set_level("INFO")
    folder = tmp_path / "asp" / "run-001"
    folder.mkdir(parents=True)
    saved = copy().saved
    start.save(folder / CHECKPOINT, saved._replace(
        state=replace(saved.state, over=True, ended=True, totals=(9, 120))))
    write_settings(folder, {"id": "ab12", "epoch": 1, "workers": 2, "wire": "float32",
                            "ended": True})
    write_document(folder / "summary.json", {"accuracy": 0.9})
    written = (folder / "run.json").read_bytes()
    plan = planned(create("asp"), tmp_path, free_port())
    plan = replace(plan, config=replace(plan.config, **ends),
                   runs=Runs("asp", tmp_path, 0, "run-001"))
    socket = plan.listen()
    serve = plan.prepare(socket, None)
    if says is None:
        assert read_settings(folder)["epoch"] == 3
        serve.__self__.close()
        return
    assert serve() == 0 and says in caplog.messages[-1]
    assert (folder / "run.json").read_bytes() == written and not is_held(folder)


def test_no_worker_joins_a_run_whose_final_version_may_be_fetched(tmp_path):
    folder = tmp_path / "asp" / "run-001"
    folder.mkdir(parents=True)
    saved = copy().saved
    start.save(folder / CHECKPOINT, saved._replace(state=replace(saved.state, ended=True)))
    write_settings(folder, {"id": "ab12", "epoch": 1, "workers": 2, "wire": "float32",
                            "ended": False})
    plan = planned(create("asp"), tmp_path, free_port())
    server = plan.prepare(plan.listen(), None).__self__
    with Peer(f"localhost:{plan.config.port}") as peer, ThreadPoolExecutor() as pool:
        peer.send(m.Hello(m.PROTOCOL, 0, {}))
        answer = pool.submit(peer.hears, m.Welcome, m.Refused)
        until(lambda: server._attend() and answer.done(), "an answer", 30)
    server.close()
    refused = answer.result()
    assert refused.over and refused.reason == "the run has ended" and refused.follows, (
        "it waits for the next run")


@pytest.mark.parametrize("entry", ["wbsp.ps.__main__", "launcher.server"])
def test_an_error_while_serving_is_one_line(entry):
    """Both entry points: no traceback comes to a person."""
    code = f"""
import sys, {entry} as entry, wbsp.ps.launch
def serve():
    raise ValueError("no good")
wbsp.ps.launch.prepare_server = entry.prepare_server = lambda *_, **__: serve
sys.argv = ["x.py", "--worker_num=1"]
"""
    code += ("entry.run(entry.main, 'x', '', {})" if entry.startswith("wbsp") else
             "sys.argv += ['--job_name=ps', '--base_dir=asp/']\nimport launcher.main as main\n"
             "main.run()")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 1
    assert [line for line in ended.stderr.splitlines() if "has no effect" not in line] == [
        "wbsp.ps: no good" if entry.startswith("wbsp") else "x: no good"]
