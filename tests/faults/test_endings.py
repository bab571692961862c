"""Ends of a run, good and bad: each leaves the newest version and a summary, and stops all."""

import io
import itertools
import json
import math
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_worker import FakeWorker, all_end
from integer_replica import IntegerReplica
from jobs import PATIENCE, until

from wbsp.access import Access
from wbsp.core.outer_optimizer import create_outer
from wbsp.process.host import HOST, Clock
from wbsp.process.signals import Interrupts
from wbsp.ps.checkpoint import format as checkpoint
from wbsp.ps.checkpoint.writer import CHECKPOINT
from wbsp.ps.config import Reporter, RunInfo, ServerConfig
from wbsp.ps.evaluation import EvaluatorError, EvaluatorWatch
from wbsp.ps.replication.primary import Replication
from wbsp.ps.server import Server
from wbsp.reading import Reader
from wbsp.runlog.console import Console
from wbsp.runlog.server import ServerLog
from wbsp.sync import BSP, Accept, Direct, Grant, Reject, create
from wbsp.tensors.frozen import NOTHING
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.errors import TransportError
from wbsp.wire.messages.from_server import RunSettings
from wbsp.wire.sockets import ServerSocket

SAVE = 1_000_000


class Judge:
    """An evaluator without a process, which reports equal results for every version.

    blocks, fails: from this version on, or SAVE
    hangs:         it gives no sign of work
    """

    def __init__(self, blocks=math.inf, fails=math.inf, hangs=False):
        self._blocks, self._fails = blocks, fails
        self._signs = itertools.repeat(0) if hangs else itertools.count()
        self.thinking, self.killed = threading.Event(), threading.Event()
        self._problem = None

    def __call__(self, at):
        self._at = at
        threading.Thread(target=self.reads, daemon=True).start()
        return self

    def problem(self):
        return self._problem

    def signs(self):
        return next(self._signs)

    def reads(self):
        at = self._at
        reader = Reader(Access(at.address, token=at.token, patience=1.0), print,
                        key=at.key)
        newest = None
        try:
            while (version := reader.next(0.0)) is not None:
                if version.number != newest:
                    self._do(version.number)
                    version.report(loss=1.0, accuracy=0.5, top5=0.9)
                    newest = version.number
                if version.last:
                    self._do(SAVE)
                    at.model.write_bytes(b"keras")
        except EvaluatorError as error:
            self._problem = error
        except ConnectionError:
            assert self.killed.wait(PATIENCE)
        finally:
            reader.close()

    def _do(self, what):
        if what >= self._blocks:
            self.thinking.set()
            self.killed.wait(PATIENCE)
        if what >= self._fails or self.killed.is_set():
            raise EvaluatorError("it was killed")

    def kill(self):
        self.killed.set()

    close = kill


class Run:
    """A server in a thread; `samples` end the run."""

    def __init__(self, folder, judge=None, sync="asp", workers=1, samples=math.inf, **config):
        self.folder, self.judge, self.interrupts = folder, judge, Interrupts()
        self.output = io.StringIO()
        config = ServerConfig(workers, samples, **{"check_period": 0.01, **config})
        socket = ServerSocket("localhost", 0)
        self.address = f"localhost:{socket.port}"
        model = create(sync) if isinstance(sync, str) else sync
        self.console = Console("", self.output)
        reporter = Reporter(folder, ServerLog(folder, model.name, tensorboard=False), self.console)
        self.server = Server(model, socket, RunInfo(config, model.rule, RunSettings(), 1),
                             reporter, self.interrupts, start_evaluator=judge)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def starts(self):
        self._thread.start()
        return self

    def _run(self):
        self.code = self.server.run()

    def member(self, worker=0, steps=100_000, **more):
        return FakeWorker(self.address, worker, steps, seconds=0.002, **more)

    def ends(self):
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), self.output.getvalue()
        if self.server.follows:  # its socket stays open for a run that none begins here
            self.server._socket.close()
        assert self.judge is None or self.judge.killed.is_set()
        return self.code

    def says(self, text):
        return until(lambda: text in self.output.getvalue(), f"{text!r}") and text

    def left(self):
        """(summary, version of the checkpoint); they agree."""
        summary = json.loads((self.folder / "summary.json").read_text())
        version = checkpoint.load(self.folder / CHECKPOINT).state.version
        assert summary["version"] == version > 0
        return summary


def pushed(member, seq):
    until(lambda: member.agent and member.agent.seq > seq, f"push {seq}")


# A signal.


def test_an_interrupted_run_waits_for_no_evaluation(tmp_path):
    run = Run(tmp_path, Judge(blocks=1)).starts()
    member = run.member()
    assert run.judge.thinking.wait(PATIENCE)
    pushed(member, 20)
    run.interrupts.take(signal.SIGTERM)
    member.ends()
    assert run.ends() == 128 + signal.SIGTERM
    summary = run.left()
    assert summary["reason"] == "interrupted by SIGTERM" and summary["accuracy"] is None
    assert summary["version"] >= 20


def test_the_first_signal_writes_a_checkpoint_before_any_worker_finishes(tmp_path):
    run = Run(tmp_path, workers=2, check_period=3600).starts()
    go = threading.Event()
    deaf = run.member(0, after_step=lambda step: step == 5 and go.wait(PATIENCE))
    other = run.member(1)
    pushed(deaf, 3)
    path = tmp_path / CHECKPOINT
    until(path.exists, "the first checkpoint, after which there is none for an hour")
    pushed(other, other.agent.seq + 5)
    version = run.server.engine.store.latest.version
    assert checkpoint.load(path).state.version < version
    run.interrupts.take(signal.SIGINT)
    until(lambda: checkpoint.load(path).state.version >= version, "the newest version")
    assert 0 in run.server.engine.active
    go.set()
    all_end([deaf, other])
    assert run.ends() == 128 + signal.SIGINT
    run.left()


def test_a_signal_before_the_run_begins_ends_the_server(tmp_path):
    run = Run(tmp_path)
    run.interrupts.take(signal.SIGINT)
    assert run.starts().ends() == 128 + signal.SIGINT
    run.says("listening on port")


@pytest.mark.parametrize("blocks, accuracy", [(5, None), (SAVE, 0.5)])
def test_a_signal_ends_the_wait_for_the_final_evaluation(tmp_path, blocks, accuracy):
    run = Run(tmp_path, Judge(blocks)).starts()
    run.member(steps=5).ends()
    assert run.judge.thinking.wait(PATIENCE)
    until(lambda: checkpoint.load(tmp_path / CHECKPOINT).state.version == 5, "the checkpoint")
    run.says("saving the final version")
    run.interrupts.take(signal.SIGTERM)
    assert run.ends() == 128 + signal.SIGTERM
    assert run.left()["accuracy"] == accuracy
    run.says("no final accuracy, no model.keras: interrupted" if accuracy is None else
             "] no model.keras: interrupted")



# The end of a run in a checkpoint.


def saved(run):
    return checkpoint.load(run.folder / CHECKPOINT)


def goes_on(folder, state, judge=None, **config):
    """A server that resumes from the checkpoint in `folder`, with other state."""
    run = Run(folder, judge, **config)
    found = saved(run)
    run.server.resume(found._replace(state=replace(found.state, **state)))
    return run.starts()


def ended(tmp_path, **config):
    (tmp_path / "first").mkdir(), (tmp_path / "second").mkdir()
    run = Run(tmp_path / "first", **config).starts()
    run.member(steps=5).ends()
    assert run.ends() == 0
    (tmp_path / "first" / CHECKPOINT).rename(tmp_path / "second" / CHECKPOINT)
    return tmp_path / "second"


def test_a_server_that_dies_before_the_last_files_leaves_them_to_the_next(tmp_path):
    """The standby waits for no worker: they have ended."""
    folder = ended(tmp_path)
    run = goes_on(folder, {}, Judge(), connect_timeout=3600)
    assert run.ends() == 0
    assert run.left()["accuracy"] == 0.5 and (folder / "model.keras").exists()
    assert run.left()["reason"] == "all workers finished" and run.left()["version"] == 5
    assert "except for its last files" in run.output.getvalue()
    assert saved(run).state.over


def test_a_server_that_dies_at_the_farewell_is_followed_by_one_that_waits(tmp_path):
    """The standby also makes the last files, if no worker joins."""
    folder = ended(tmp_path)
    run = goes_on(folder, {"over": False, "owed": [0]}, Judge(), connect_timeout=0.5)
    assert saved(run).state.over, "of the first"
    assert run.ends() == 0
    assert "no worker was connected for 0.5 s" in run.output.getvalue()
    assert run.left()["accuracy"] == 0.5 and saved(run).state.over


@pytest.mark.parametrize("begun", [True, False])
def test_workers_timeouts_begin_when_a_server_woke_or_has_its_shards(tmp_path, begun):
    """A server that was made 100 s ago, and runs its loop from now on."""
    run = Run(tmp_path, connect_timeout=50)
    server = run.server
    if begun:
        server.take(np.ones(5, np.float32), IntegerReplica(0).layout, frozen=NOTHING)

    def later(slept):
        now = server._clock.now()
        server._alone_since -= 100
        server._nap._last = now - 100 if slept else now
        return server._timers(now)

    assert later(slept=True) is None
    assert later(slept=False) is not None
    server.close()


def test_a_run_that_was_interrupted_is_not_over(tmp_path):
    run = Run(tmp_path).starts()
    member = run.member()
    pushed(member, 5)
    run.interrupts.take(signal.SIGINT)
    member.ends()
    run.ends()
    assert not saved(run).state.ended and not saved(run).state.over


def test_the_timeout_for_the_final_version_begins_when_workers_may_fetch_it(tmp_path,
                                                                                  monkeypatch):
    """Sending a snapshot to a standby may take long."""
    there = threading.Event()
    monkeypatch.setattr(Replication, "settled", property(lambda self: there.is_set()))
    monkeypatch.setattr(Replication, "copying", property(lambda self: not there.is_set()))
    monkeypatch.setattr("wbsp.timeouts.GOODBYE", 0.2)
    monkeypatch.setattr("wbsp.ps.run._NOTICE", 0.5)
    run = Run(tmp_path, Judge()).starts()
    member = run.member(steps=5)
    run.says("sending the final version to the standby; workers receive it then")
    there.set()
    member.ends()
    assert run.ends() == 0


# The evaluator.


class Seconds:
    """A host whose clock the test sets."""

    now = 0.0

    def __init__(self):
        self.clock = Clock(lambda: self.now)
        self.scheduler = HOST.scheduler


def test_a_hanging_evaluator_is_reported_and_then_given_up():
    on, said, judge = Seconds(), [], Judge(hangs=True)
    watch = EvaluatorWatch(lambda at: judge, "", None, Path(), said.append, on)
    watch.look("the evaluation of version 3")
    while on.now < 299:
        on.now += 0.5
        watch.look("the evaluation of version 3")
    assert said[0] == ("the evaluator has not worked at the evaluation of version 3 for 20 s; "
                       "ending it after 300 s")
    assert len(said) == 14
    on.now += 3600  # of this process, which was stopped
    watch.look("the evaluation of version 3")
    with pytest.raises(EvaluatorError, match="the evaluator hangs: .* version 3 for 300 s"):
        for _ in range(10):
            on.now += 0.5
            watch.look("the evaluation of version 3")


def test_a_working_evaluator_may_take_any_time():
    on, said, judge = Seconds(), [], Judge()
    watch = EvaluatorWatch(lambda at: judge, "", None, Path(), said.append, on)
    for _ in range(1000):
        on.now += 1
        watch.look("the evaluation of version 3")
    assert not said


@pytest.mark.parametrize("blocks, what", [(5, "the evaluation of version 5"),
                                          (SAVE, "the file model.keras")])
def test_a_run_ends_without_an_evaluator_that_hangs(tmp_path, monkeypatch, blocks, what):
    monkeypatch.setattr("wbsp.timeouts.EVALUATOR_HANGS", 0.3)
    run = Run(tmp_path, Judge(blocks, hangs=True)).starts()
    run.member(steps=5).ends()
    assert run.ends() == 0
    run.says(f"no model.keras: the evaluator hangs: it has not worked at {what} for 0.3 s; its "
             "process was ended")


def test_a_late_worker_has_its_answer_while_the_last_version_is_evaluated(tmp_path):
    run = Run(tmp_path, Judge(SAVE)).starts()
    run.member(steps=5).ends()
    assert run.judge.thinking.wait(PATIENCE)
    with pytest.raises(TransportError, match="the run has ended"):
        run.member().ends(20)
    run.judge.killed.set()
    assert run.ends() == 0


def test_a_run_continues_without_an_evaluator_that_died(tmp_path):
    run = Run(tmp_path, Judge(fails=2), target_accuracy=0.75).starts()
    member = run.member()
    run.says("continuing without evaluations: it was killed; "
             "--target_accuracy=0.75 can no longer be checked\n")
    seq = member.agent.seq
    pushed(member, seq + 5)
    member.leave()
    member.ends()
    assert run.ends() == 0
    run.says(f"no final accuracy, no model.keras: it was killed; {CHECKPOINT} holds the final")
    assert run.left()["accuracy"] is None and not (tmp_path / "model.keras").exists()


def test_an_evaluator_that_dies_at_the_end_costs_only_the_saved_model(tmp_path):
    run = Run(tmp_path, Judge(fails=SAVE)).starts()
    run.member(steps=5).ends()
    assert run.ends() == 0
    run.says("] no model.keras: it was killed")
    assert run.left()["accuracy"] == 0.5


def test_a_good_end_is_evaluated_and_saved(tmp_path):
    run = Run(tmp_path, Judge()).starts()
    run.member(steps=5).ends()
    assert run.ends() == 0
    assert run.left()["accuracy"] == 0.5 and (tmp_path / "model.keras").exists()
    assert "no model.keras" not in run.output.getvalue()


def test_an_evaluator_that_cannot_begin_ends_the_run_with_a_line_for_waiting_workers(tmp_path):
    judge = Judge()
    judge.reads = lambda: None
    run = Run(tmp_path, judge).starts()
    member = run.member()
    sessions = run.server.dispatcher.sessions
    until(lambda: any(session.joined for session in list(sessions)), "a worker")
    judge._problem = EvaluatorError("no such data")
    with pytest.raises(TransportError, match="the run has ended before it began .*no such data"):
        member.ends(20)
    assert run.ends() == 1
    assert run.output.getvalue().count("stopping: no such data\n") == 1
    assert "Traceback" not in run.output.getvalue()


def test_an_outer_step_resumes_from_a_checkpoint(tmp_path):
    (tmp_path / "first").mkdir(), (tmp_path / "second").mkdir()
    run = Run(tmp_path / "first", sync="bsp", samples=40, outer=create_outer("nesterov")).starts()
    member = run.member()
    all_end([member])
    assert run.ends() == 0
    saved = checkpoint.load(tmp_path / "first" / CHECKPOINT)
    assert saved.vector.tobytes() == member.replica.x.tobytes()
    velocity = run.server.engine.store.outer.state()["velocity"]
    assert saved.outer["velocity"].tobytes() == velocity.tobytes() and velocity.any()
    later = Run(tmp_path / "second", sync="bsp", outer=create_outer("nesterov"))
    later.server.resume(saved)
    assert later.server.engine.store.outer.state()["velocity"].tobytes() == velocity.tobytes()
    later.server.close()


def test_a_layers_statistics_are_no_part_of_the_outer_step(tmp_path):
    run = Run(tmp_path, sync="bsp", outer=create_outer("nesterov"))
    layout = [TensorSpec("dense/kernel", (4,)), TensorSpec("norm/moving_variance", (4,))]
    run.server.take(np.ones(8, np.float32), layout, frozen=NOTHING)
    store = run.server.engine.store
    for _ in range(2):
        store.accept(np.full(8, -0.25, np.float32), 1.0)
        store.commit()
    kernel, variance = np.split(store.latest.vector, 2)
    assert (variance == 0.5).all() and (kernel < 0.3).all()
    run.server.close()


# Workers missing at the end.


def fails_at_step_5(run):
    """A worker that leaves with this message."""
    def fail(step):
        if step == 5:
            lost.runtime.transport.leave("its fit was interrupted or failed", finished=False)
            raise ZeroDivisionError("in a step")
    lost = run.member(0, after_step=fail)
    with pytest.raises(ZeroDivisionError):
        lost.ends()
    run.says("worker 0 left")


@pytest.mark.parametrize("asked", [False, True])
def test_a_lost_worker_is_in_the_last_line_and_in_the_exit_code_if_asked(
        tmp_path, caplog, asked):
    run = Run(tmp_path, workers=2, fail_if_lost=asked).starts()
    member = run.member(1)
    fails_at_step_5(run)
    member.leave()
    member.ends()
    assert run.ends() == int(asked)
    why = "worker 0 (its fit was interrupted or failed)"
    summary = run.left()
    assert summary["reason"] == f"all other workers finished; missing: {why}"
    assert summary["missing"] == {"0": "its fit was interrupted or failed"}
    assert caplog.messages[-1] == (f"missing at the end: {why}; the final version lacks the rest "
                                   "of its work")


def test_a_worker_that_returns_and_finishes_is_not_missing(tmp_path):
    run = Run(tmp_path, workers=1, fail_if_lost=True).starts()
    fails_at_step_5(run)
    run.member(0, steps=5).ends()
    assert run.ends() == 0
    assert run.left()["missing"] == {}


# Internal errors of the server.


def test_an_internal_error_of_the_server_is_reported_and_the_workers_finish(tmp_path):
    run = Run(tmp_path, Judge(), workers=2)
    check, members = run.server.dispatcher.check_silence, []

    def fail():
        if members and members[1].agent and members[1].agent.seq > 20:
            run.server.dispatcher.check_silence = check
            raise ZeroDivisionError("a bug")
        check()
    run.server.dispatcher.check_silence = fail
    run.starts()
    members += [run.member(worker) for worker in range(2)]
    all_end(members)
    assert run.ends() == 1
    run.says("stopping: the server failed: ZeroDivisionError('a bug')")
    run.says("Traceback")
    summary = run.left()
    assert summary["reason"] == "interrupted: the server failed: ZeroDivisionError('a bug')"
    model = checkpoint.load(tmp_path / CHECKPOINT).vector.tobytes()
    assert all(member.replica.x.tobytes() == model for member in members)


def test_a_repeated_fault_still_writes_all_files(tmp_path):
    run = Run(tmp_path, sync="wbsp", workers=2).starts()
    go = threading.Event()
    run.member(0)
    run.member(1, after_step=lambda step: step == 5 and go.wait(PATIENCE))
    until(lambda: run.server.engine and run.server.engine.store.accepted > 5, "pending updates")

    def fail():
        raise ZeroDivisionError("a bug")
    run.server.dispatcher.check_silence = fail
    assert run.ends() == 1
    go.set()
    assert run.output.getvalue().count("stopping: the server failed") == 2
    assert run.left()["total"]["steps"] >= 10
    assert not run.server.engine.store.accepted, "what was accepted is in no version"


class Own(BSP):
    """Does `wrong` at the fifth push, in its own way for each event."""

    name = "own"

    def __init__(self, event, wrong):
        super().__init__()
        self.event, self.wrong, self.pushes = event, wrong, 0

    def push(self, push, now):
        self.pushes += 1
        answer = super().push(push, now)
        if self.pushes >= 5 and self.event == "push":
            return self.wrong(self, push, answer)
        if self.pushes >= 5 and self.event == "tick":
            self.alarm = now
        return answer

    def tick(self, now):
        self.alarm = None
        return self.wrong(self, None, [])

    def join(self, worker, now):
        return self.wrong(self, None, []) if self.event == "join" else super().join(worker, now)

    def leave(self, worker, now):
        return self.wrong(self, None, []) if self.event == "leave" else super().leave(worker, now)


def fails(model, push, answer):
    raise ZeroDivisionError("a bug of the model's")


def refers(model, push, answer):
    raise ValueError("no such worker")


def exits(model, push, answer):
    raise SystemExit(0)


def wakes(model, push, answer):
    model.alarm = "soon"
    return answer


BROKE = "stopping: the synchronization model broke its contract: own "
FAILED = "stopping: the synchronization model own failed: "


@pytest.mark.parametrize("event, wrong, says", [
    ("push", lambda *_: [], BROKE + "neither accepted nor rejected Push(worker="),
    ("push", lambda *_: None, FAILED + "TypeError"), ("push", fails, FAILED + "ZeroDivisionError"),
    ("push", refers, FAILED + "ValueError('no such worker')"), ("push", exits, FAILED + "SystemEx"),
    ("push", lambda model, push, _: [Accept(push, "1")], BROKE + "accepted Push(worker="),
    ("push", lambda model, push, _: [Reject(push, None)], BROKE + "rejected Push(worker="),
    ("push", lambda model, push, answer: [*answer, Direct(push.worker, batch=0.5)],
     BROKE + "answered with Direct(worker="),
    ("push", wakes, BROKE + "has set `alarm` to 'soon'"),
    ("tick", fails, FAILED + "ZeroDivisionError"), ("tick", lambda *_: 3, FAILED + "TypeError"),
    ("join", lambda *_: [Grant(0)], BROKE + "does not have worker 0 in `active` after its join"),
    ("leave", lambda *_: [], BROKE + "still has worker "), ("leave", fails, FAILED + "ZeroDiv"),
])
def test_a_failing_user_defined_model_ends_the_run_and_no_worker_waits(tmp_path, event, wrong,
                                                                       says):
    run = Run(tmp_path, sync=Own(event, wrong), workers=2).starts()
    members = [run.member(0, steps=3 if event == "leave" else 100_000)]
    told = threading.Event()  # who leaves is alone in it: what the run ends for is drawn by no race
    members.append(run.member(1, steps=4 if event == "leave" else 100_000, after_step=lambda step: (
        event == "leave" and step == 3 and told.wait(PATIENCE))))
    run.says(says)
    told.set()
    all_end(members)
    assert run.ends() == 1
    assert ("Traceback" in run.output.getvalue()) == (FAILED in says)
    assert run.output.getvalue().count("stopping: the synchronization model") == 1
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["reason"].startswith("interrupted: the synchronization mod")
    model = checkpoint.load(tmp_path / CHECKPOINT).vector.tobytes()
    assert all(member.replica.x.tobytes() == model for member in members)


@pytest.mark.parametrize("wrong, says", [(lambda *_: [], BROKE + "still has worker 0"),
                                         (fails, FAILED + "ZeroDiv")])
def test_a_model_that_fails_as_the_last_worker_leaves_ends_the_run_as_failed(tmp_path, wrong, says):
    run = Run(tmp_path, sync=Own("leave", wrong)).starts()
    member = run.member(steps=3)
    member.ends()
    assert run.ends() == 1
    run.says(says)
    summary = run.left()
    assert summary["version"] == 3
    assert summary["reason"].startswith("interrupted: the synchronization model ")
    assert member.replica.x.tobytes() == checkpoint.load(tmp_path / CHECKPOINT).vector.tobytes()


def test_workers_learn_of_a_repeated_fault(tmp_path):
    run = Run(tmp_path, sync="asp").starts()
    member = run.member()
    pushed(member, 5)

    def fail():
        raise ZeroDivisionError("a bug")
    run.server.dispatcher.check_silence = fail
    with pytest.raises(TransportError, match="worker 0 was given up: the server failed: ZeroDivi"):
        member.ends(30)
    assert run.ends() == 1
