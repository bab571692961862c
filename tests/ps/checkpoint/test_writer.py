"""Checkpoints are taken when nothing is pending, and a full disk does not end a run."""

import gc
import json
import weakref
from dataclasses import dataclass, field

import numpy as np
import pytest
from conservation import steps_of
from full_disk import full_at
from jobs import until

from wbsp.core.engine import Engine
from wbsp.core.store import Store
from wbsp.ps.checkpoint import format as checkpoint
from wbsp.ps.checkpoint.snapshots import Snapshots
from wbsp.ps.checkpoint.state import RunState
from wbsp.ps.checkpoint.writer import CHECKPOINT, Checkpoints
from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.workloads.base import TimingWorkload
from wbsp.simulate.world.machine import Machine, constant
from wbsp.sync import MODELS, Push, create
from wbsp.tensors.frozen import NOTHING
from wbsp.tensors.layout import TensorSpec

SIZE = 1000  # floats


@dataclass
class StandbyOf:
    """The standby of a run, as a sink of its snapshots."""

    alone: bool = True
    free: bool = False
    parting: bool = False
    outdated: bool = False
    taken: list = field(default_factory=list)

    def wants(self, now):
        return self.outdated

    def named(self):
        return True

    def take(self, snapshot):
        self.taken.append(snapshot)
        self.outdated = False


class Running:
    """A run of two workers under a model, with its checkpoints in a folder."""

    def __init__(self, folder, sync="bsp", period=1.0, standby=None):
        self.engine = Engine(create(sync), Store(np.zeros(SIZE, np.float32)), 2)
        self.states, self.said = [], []
        self.file = Checkpoints(folder, self.engine, period, lambda *_: None, self.said.append)
        self.standby = standby or StandbyOf()
        self.snapshots = Snapshots(self.engine, self.state, [TensorSpec("x", (SIZE,))], NOTHING,
                                   self.file, self.standby)
        self.path = folder / CHECKPOINT
        for worker in range(2):
            self.engine.join(worker, 0.0)

    def state(self, now):
        self.states.append(self.engine.state())
        return RunState(elapsed=now, **vars(self.states[-1]))

    def push(self, worker, seq, now):
        self.engine.push(Push(worker, seq, 0, 2, 16, 0.5), np.ones(SIZE, np.float32), now)

    def round(self, seq, now):
        for worker in range(2):
            self.push(worker, seq, now)

    def written(self, now):
        """Wait until the checkpoint that was begun is there, or has failed."""
        assert self.file.writing
        until(lambda: self.snapshots.poll(now) or not self.file.writing, "the checkpoint")


def test_a_checkpoint_that_cannot_be_written_holds_no_memory(tmp_path, monkeypatch):
    """A model's memory would wait for the next collection of cycles, at each attempt anew."""
    run, taken, take = Running(tmp_path), [], Checkpoints.take
    monkeypatch.setattr(Checkpoints, "take", lambda self, snapshot: (
        taken.append(weakref.ref(snapshot.whole)), take(self, snapshot)))
    gc.disable()
    try:
        with full_at(SIZE):
            for seq in range(3):
                run.round(seq, 2.0 * seq)
                run.snapshots.poll(2.0 * seq + 1)
                run.written(2.0 * seq + 1.5)
        assert run.file.failed and len(taken) == 3
        until(lambda: not any(one() for one in taken), "the thread to let go of the last", 10)
    finally:
        gc.enable()


def test_a_checkpoint_waits_until_nothing_is_pending(tmp_path):
    run = Running(tmp_path)
    run.round(0, 1.0)
    run.push(0, 1, 2.0)
    run.snapshots.poll(2.5)  # due, but version 1 is not all that was accepted
    assert run.states == []
    run.push(1, 1, 3.0)
    run.push(0, 2, 4.0)
    run.written(5.0)
    saved = checkpoint.load(run.path)
    assert saved.state.elapsed == 3.0 and saved.state.version == 2
    assert saved.state.next_seq == {0: 2, 1: 2} and steps_of(saved.state) == {0: 4, 1: 4}
    assert np.array_equal(saved.vector, np.full(SIZE, 2, np.float32))


def test_an_unwritten_first_version_is_retried_although_a_standby_holds_it(tmp_path):
    run = Running(tmp_path / "gone", standby=StandbyOf(alone=False, free=True))
    run.snapshots.poll(0.0)
    run.written(0.5)
    assert run.file.failed and run.file.saved is None and not run.file.wants(1.0)
    (tmp_path / "gone").mkdir()
    run.snapshots.poll(1.5)
    run.written(2.0)
    assert run.file.saved == (0, False, False) and not run.file.wants(9.0)
    assert checkpoint.load(run.path).state.version == 0


def test_a_checkpoint_marks_the_last_version(tmp_path):
    """A server that resumes an older checkpoint readmits a worker that was given up later."""
    run = Running(tmp_path)
    run.round(0, 1.0)
    run.snapshots.poll(1.0)
    run.written(1.5)
    assert run.file.settled
    for worker in range(2):
        run.engine.leave(worker, 2.0, "finished", finished=True)
    assert run.engine.newest == (1, True, True) and not run.file.settled
    run.file.hurry()
    run.snapshots.poll(2.0)
    run.written(2.5)
    assert run.file.settled and checkpoint.load(run.path).state.ended


def test_with_a_standby_a_checkpoint_is_made_of_a_snapshot_for_it(tmp_path):
    """The file does not decide what is durable then."""
    run = Running(tmp_path, standby=StandbyOf(alone=False, free=False))
    run.round(0, 1.0)
    run.snapshots.poll(1.0)
    assert run.file.wants(1.0) and run.states == [], "it waits for the standby"
    run.standby.free = True
    run.snapshots.poll(1.5)
    assert not run.file.wants(1.5) and len(run.states) == 1
    run.written(2.0)
    saved = checkpoint.load(run.path).state
    assert (saved.elapsed, saved.version) == (1.5, 1)
    (copy,) = run.standby.taken
    assert copy.mark == run.engine.ledger.mark == 1 and run.engine.ledger.durable == 0
    run.snapshots.held(copy.mark)
    assert run.engine.ledger.durable == 1


def test_the_file_holds_the_last_version_before_a_standby_is_left_behind(tmp_path):
    run = Running(tmp_path, standby=StandbyOf(alone=False, free=False, parting=True))
    run.round(0, 1.0)
    run.snapshots.poll(1.0)
    run.written(1.5)
    assert checkpoint.load(run.path).state.version == 1 and not run.standby.taken
    assert run.engine.ledger.durable == 0, "the standby may still serve from an older snapshot"


def test_one_snapshot_serves_all_that_want_one(tmp_path):
    run = Running(tmp_path, standby=StandbyOf(alone=False, free=True))
    for version in (1, 2):
        run.standby.outdated = True
        run.round(version - 1, 10.0 * version)
        run.snapshots.poll(10.0 * version)
        run.written(10.0 * version + 1)
    assert [copy.mark for copy in run.standby.taken] == [1, 2] and len(run.states) == 2
    assert checkpoint.load(run.path).state.mark == 2


def test_a_checkpoint_that_cannot_be_written_is_retried(tmp_path):
    run = Running(tmp_path)
    run.round(0, 1.0)
    run.snapshots.poll(1.0)
    run.written(1.5)
    with full_at(4 * SIZE):
        for seq, now in ((1, 10.0), (2, 20.0)):
            run.round(seq, now)
            run.snapshots.poll(now)
            run.written(now)
        assert checkpoint.load(run.path).state.version == 1, "the one before it stays"
    assert run.said == [f"cannot write {run.path}: File too large; the one before it stays, trying "
                        "again every 1 s"]
    run.snapshots.poll(20.5)
    assert len(run.states) == 3, "not before a period is over"
    run.snapshots.poll(21.0)
    run.written(21.5)
    assert checkpoint.load(run.path).state.version == 3
    assert run.said[1:] == [f"{run.path} is written again"]
    assert not run.file.failed


def test_the_last_checkpoint_holds_decisions_after_the_last_version(tmp_path):
    run = Running(tmp_path, "asp")
    run.push(0, 0, 1.0)
    run.snapshots.poll(1.0)
    run.engine.push(Push(0, 1, 0, 2, 16, 0.5), np.full(SIZE, np.nan, np.float32), 2.0)
    run.snapshots.finish(3.0)
    state = checkpoint.load(run.path).state
    assert state.version == run.engine.store.latest.version
    assert (state.next_seq[0], state.members[0].pushes) == (2, 2)
    assert state.members[0].rejected == {"not finite": 1}


def test_a_last_checkpoint_that_cannot_be_written_is_known_to_have_failed(tmp_path):
    run = Running(tmp_path)
    run.round(0, 1.0)
    with full_at(4 * SIZE):
        run.snapshots.finish(3.0)
    assert run.file.failed
    assert len(run.said) == 1 and run.said[0].startswith(f"cannot write {run.path}: ")


@pytest.mark.parametrize("sync", MODELS)
def test_every_model_has_a_moment_for_a_checkpoint_at_each_version(sync):
    rested, committed = [], []

    def rest(now):
        rested.append(cluster.engine.store.latest.version)

    def log(now, kind, **fields):
        if kind == "accept":
            cluster.engine.at_rest(rest, now)
        elif kind == "commit":
            committed.append(fields["version"])

    workers = [Machine(constant(seconds)) for seconds in (1.0, 1.5, 4.0)]
    cluster = Cluster(create(sync), workers, TimingWorkload(128), log=log)
    cluster.run(until=1000.0)
    assert len(rested) > 5 and rested == committed


def test_the_engines_state_returns_through_json():
    run = Engine(create("asp"), Store(np.zeros(2, np.float32)), 2)
    for worker in range(2):
        run.join(worker, 0.0)
    for seq, value in enumerate((1.0, np.nan, 1.0)):
        run.push(Push(1, seq, seq // 2, 3, 24, 0.25), np.full(2, value, np.float32), 1.0)
    text = json.dumps(RunState(**vars(run.state()), elapsed=1.0).to_json())
    state = RunState.from_json(json.loads(text))
    again = Engine(create("asp"), Store(run.store.latest.vector, state.version), 2)
    again.restore(state)
    assert again.state() == run.state()
    member = again.members[1]
    assert (member.steps, member.samples, member.seconds, member.pushes, member.base) == (
        9, 72, 0.75, 3, 1)
    assert member.rejected == {"not finite": 1} and not member.active
    assert (again.steps, again.samples) == (9, 72)
    assert again.ledger.next_seq(1) == 3 and again.ledger.next_seq(0) == 0


def test_a_state_of_an_older_release_is_read():
    again = Engine(create("asp"), Store(np.zeros(2, np.float32), 7), 2)
    again.restore(RunState.from_json({"version": 7, "elapsed": 1.5, "next_seq": {"0": 3},
                                      "totals": [3, 96], "steps": {"0": 3}}))
    assert again.members[0].steps == 3 and again.members[0].pushes == 0
    assert (again.steps, again.samples, again.ledger.next_seq(0)) == (3, 96, 3)


def test_a_demanded_checkpoint_is_written_though_its_version_was(tmp_path):
    run = Running(tmp_path, period=100.0)
    run.round(0, 1.0)
    run.snapshots.poll(1.0)
    run.written(1.0)
    run.snapshots.poll(2.0)
    assert not run.file.writing and len(run.states) == 1
    run.file.demand(run.engine.ledger.mark)
    run.push(0, 1, 3.0)
    run.snapshots.poll(3.0)
    assert not run.file.writing, "something is pending"
    run.push(1, 1, 4.0)
    run.written(4.0)
    assert [state.version for state in run.states] == [1, 2]
    assert not run.file.writing
    mark = run.engine.ledger.mark
    run.file.demand(mark)
    run.snapshots.poll(5.0)
    run.written(5.0)
    assert [state.version for state in run.states] == [1, 2, 2]
    run.file.demand(mark)
    run.snapshots.poll(6.0)
    assert not run.file.writing, "it is durable"
