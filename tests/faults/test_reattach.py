"""Servers that die at any moment of the protocol: no answered push is lost or doubled."""

import os

import numpy as np
import pytest
from lockstep import World
from lockstep_worker import SIZE

from wbsp.core.engine import Engine
from wbsp.core.messages import Ack, Directed, Granted, Model
from wbsp.core.rendezvous import Rendezvous
from wbsp.core.stats import AnsweredWork
from wbsp.core.store import UNSENT, Store
from wbsp.sync import MODELS, Push, create
from wbsp.testing.once import Pushes

OPTIONS = {"adsp": {"period": 5}, "dssp": {"s_u": 6}, "ssp": {"s": 2}, "localsgd": {"tau": 3}}
SEEDS = 25 if "WBSP_LONG" in os.environ else 4


def check(world):
    """The final version is W_0 plus each worker's cuts, with the weights of its answers."""
    assert not any(worker.refused for worker in world.workers)
    engine = world.life.engine
    total = np.full(SIZE, 7.0)
    for worker, planned in zip(world.workers, world.planned, strict=True):
        pushes = Pushes(f"worker {worker.index}", dict(enumerate(worker.cuts)), worker.weights)
        pushes.check()
        total += pushes.total()
        assert np.allclose(worker.made, sum(worker.cuts) + worker.unsent, rtol=1e-5), "all is sent"
        assert engine.ledger.next_seq(worker.index) == len(worker.cuts)
        member = engine.members[worker.index]
        assert (member.steps, member.pushes) == (planned, len(worker.cuts)), "counted once"
        assert worker.most_kept <= 2
        assert np.array_equal(worker.final, engine.store.latest.vector)
    unsent = engine.store.state().get(UNSENT, 0)
    assert np.allclose(engine.store.latest.vector + unsent, total, rtol=1e-5)


@pytest.mark.parametrize("sync", MODELS)
def test_an_answered_push_counts_once_whenever_the_server_dies(sync):
    for seed in range(SEEDS):
        check(World(sync, seed, OPTIONS.get(sync), breaks=0).run())


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("sync, part", [("bsp", 1), ("localsgd", 1), ("lbbsp", 1 / 128)])
def test_pushes_keep_their_rounds_whenever_the_server_dies(sync, part, workers):
    """Also between two answers of a round, and if connections break while the next server answers.
    Each push has its weight of 1 / N; under lbbsp that of its part of 128 N examples."""
    for seed in range(2 * SEEDS):
        world = World(sync, seed, OPTIONS.get(sync), workers=workers, kills=4, breaks=8,
                      brief=True)
        for worker in world.workers:
            worker.steps = 12
        world.planned = [12] * workers
        check(world.run())
        weights = {weight for worker in world.workers for weight in worker.weights.values()}
        assert weights == {part / workers}


WORK = AnsweredWork(0, 0, 1, 1, 1.0, 0, {})  # one push


def restarted(sync="bsp", workers=2):
    """The engine of a server that resumes with these workers, from version 0."""
    engine, gone = (Engine(create(sync), Store(np.full(SIZE, 7, np.float32), 0), workers)
                    for _ in "12")
    for worker in range(workers):
        gone.join(worker, 0.0)
    engine.restore(gone.state())
    return engine


def attached(engine, *waits):
    """The messages to the workers, each of which waits for a version or does not."""
    return [outgoing for worker, waiting in enumerate(waits)
            for outgoing in engine.attach(worker, 0, False, waiting, 0.0)]


def granted(outgoing):
    """The versions that each worker may fetch."""
    grants = {worker: message.version for worker, message in outgoing
              if isinstance(message, Granted)}
    return grants | {worker: message.granted for worker, message in outgoing
                     if isinstance(message, Ack) and message.granted is not None}


def push(engine, worker=0, seq=0):
    return engine.push(Push(worker, seq, 0, 1, 1, 1.0), np.ones(SIZE, np.float32), 1.0)


def weight(outgoing):
    (ack,) = (message for _, message in outgoing if isinstance(message, Ack))
    return ack.weight


def test_a_step_under_way_answers_the_new_models_first_grant():
    engine = restarted()
    assert granted(attached(engine, False, True)) == {1: 1}
    assert granted(push(engine)) == {}
    assert granted(push(engine, 1)) == {0: 2, 1: 2}


def test_a_step_under_way_answers_a_later_first_grant():
    """A worker is ahead: the others have not made the version yet from which it continues."""
    engine = restarted()
    engine.resend(1, WORK, np.ones(SIZE, np.float32), 0.0)
    assert granted(attached(engine, True, False)) == {0: 1}
    assert granted(push(engine)) == {0: 2}, "worker 1 has begun its next step"
    assert granted(push(engine, 1, 1)) == {}
    assert granted(push(engine, 0, 1)) == {0: 3, 1: 3}


def test_a_push_before_the_first_grant_makes_that_grant_valid():
    engine = restarted()
    engine.resend(1, WORK, np.ones(SIZE, np.float32), 0.0)
    attached(engine, True, False)
    assert granted(push(engine, 1, 1)) == {}
    assert granted(push(engine)) == {0: 2}, "worker 1 has pushed for two rounds"
    assert granted(push(engine, 0, 1)) == {0: 3, 1: 3}


def test_a_new_process_of_a_worker_in_mid_step_waits():
    engine = restarted()
    engine.resend(1, WORK, np.ones(SIZE, np.float32), 0.0)
    attached(engine, True, False)
    engine.leave(1, 0.5, "killed")
    assert granted(engine.join(1, 0.6)) == {1: 1}


def test_a_step_under_way_has_its_examples():
    told = [message.direct for _, message in attached(restarted("lbbsp"), False, True)
            if isinstance(message, Directed)]
    assert [direct.worker for direct in told] == [1]
    assert told[0].start is not None


def test_a_worker_that_has_finished_ahead_of_the_others_counts_in_their_round():
    engine = restarted(workers=3)
    engine.resend(2, WORK, np.ones(SIZE, np.float32), 0.0)
    engine.attach(2, 1, True, False, 0.0)
    attached(engine, False, False)
    assert [weight(push(engine, worker)) for worker in range(2)] == [1 / 3, 1 / 3]
    assert weight(push(engine, 0, 1)) == 1 / 2, "it has no part in the next"


@pytest.mark.parametrize(("known", "left", "first"), [
    (5, True, 6), (5, False, 6), (0, True, 0), (0, False, 1)])
def test_a_version_number_that_a_worker_knows_is_not_reused(known, left, first):
    """Also if that worker has finished; the checkpoint holds the same version."""
    engine = restarted("asp", workers=2)
    engine.attach(0, known, left, False, 0.0)
    engine.attach(1, 0, True, False, 0.0)
    assert engine.started and engine.store.latest.version == first


@pytest.fixture
def ahead():
    """An engine whose worker 1 has pushed for the round that worker 0 has yet to push for."""
    engine = restarted()
    engine.resend(1, WORK, np.ones(SIZE, np.float32), 0.0)
    assert granted(attached(engine, True, True)) == {0: 1}
    assert engine.fetch(1, 1) == [], "a version that worker 0 has no part in"
    return engine


def test_a_worker_that_is_ahead_gets_a_version_with_the_others(ahead):
    assert (1, Granted(2)) in push(ahead)
    assert ahead.fetch(1, 1) == [(1, Model(1, 2))]


def test_a_worker_that_was_ahead_gets_the_last_version(ahead):
    ahead.leave(1, 0.5, "finished", finished=True)
    push(ahead)
    ahead.leave(0, 1.5, "finished", finished=True)
    assert ahead.done and ahead.fetch(1, 1)


def test_a_worker_that_is_ahead_when_the_run_is_stopped_need_not_wait(ahead):
    ahead.stop("enough", 0.5)
    assert ahead.fetch(1, 1)


@pytest.mark.parametrize("wire", ["bfloat16", "int8", "topk:0.25"])
@pytest.mark.parametrize("sync", ["bsp", "asp", "wbsp", "pcc", "nbsync"])
def test_an_update_in_a_lossy_format_counts_once(sync, wire):
    differences = 0
    for seed in range(6):
        world = World(sync, seed, OPTIONS.get(sync), steps=20, wire=wire).run()
        refused = {worker.refused for worker in world.workers} - {None}
        assert all("the run has ended" in reason for reason in refused)
        if not refused:
            check(world)
        differences += world.differences
    assert differences > 10


@pytest.mark.parametrize("sync", MODELS)
def test_absent_workers_are_readmitted_later(sync):
    late, seeds = 0, max(SEEDS, 8)  # fewer do not show how often a worker is too late
    for seed in range(seeds):
        world = World(sync, seed, OPTIONS.get(sync), kills=2, steps=30, late=True).run()
        refused = {worker.refused for worker in world.workers} - {None}
        if refused:
            late += 1
            assert all("the run has ended" in reason for reason in refused)
        else:
            check(world)
    assert late < seeds / 2


@pytest.mark.parametrize("sync", [*MODELS, "pcc late"])
def test_repeatedly_broken_connections_lose_nothing(sync):
    """Also while workers join, and while some wait for a directive."""
    name, _, late = sync.partition(" ")
    options = {"late": True, "trigger": "all_pushed"} if late else OPTIONS.get(name)
    for seed in range(SEEDS):
        world = World(name, seed, options, kills=0, breaks=20, steps=20).run()
        refused = {worker.refused for worker in world.workers} - {None}
        assert all("the run has ended" in reason for reason in refused)
        if not refused:
            check(world)


def test_a_cut_query_is_decided_once_and_its_answer_repeated():
    asked = 0
    for seed in range(10):
        world = World("esync", seed, kills=0, breaks=20, steps=20, brief=True)
        query, heard = world.life.engine.model.query, []
        world.life.engine.model.query = lambda *a, q=query, h=heard: (h.append(a), q(*a))[1]
        check(world.run())
        assert len(heard) == sum(worker.agent._queries for worker in world.workers)
        asked += len(heard)
    assert asked > 100


@pytest.mark.parametrize("messages", range(12))
def test_a_connection_may_break_at_each_message_of_the_beginning(messages):
    """A message to a worker that joins is repeated."""
    world = World("wbsp", 0, workers=1, kills=0, breaks=0)
    (worker,) = world.workers
    for _ in range(messages):
        while not (worker.line.up or worker.line.down):
            worker.carry_out() if worker.shared.commands else worker.compute()
        world.deliver(worker) if worker.line.up else worker.hear()
    worker.line.break_off()
    check(world.run())


@pytest.mark.parametrize("owed, waits", [([0, 1, 2], {1, 2}), ([0], set()), (None, {1, 2})])
def test_a_run_that_has_ended_waits_for_all_workers_that_do_not_have_its_last_version(owed, waits):
    """Also if the checkpoint is of an earlier release, which did not name these workers."""
    rendezvous = Rendezvous(3, [], True, owed)
    assert not rendezvous.complete(set())
    rendezvous.left.add(0)
    for worker in (1, 2):
        assert rendezvous.complete(set()) == (not waits)
        rendezvous.left.add(worker)
        waits -= {worker}
    assert rendezvous.complete(set())
