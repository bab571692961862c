"""An engine that resumes from a checkpoint with workers that reattach: their rounds, and the
numbers of their versions."""

import numpy as np
import pytest

from wbsp.core.engine import Engine
from wbsp.core.messages import Ack, Directed, Granted, Model
from wbsp.core.rendezvous import Rendezvous
from wbsp.core.stats import AnsweredWork
from wbsp.core.store import Store
from wbsp.sync import Push, create

SIZE = 12  # floats of the model
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
