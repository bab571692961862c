"""Updates that are finite make no version that is not: the push is rejected, and nothing else."""

import numpy as np
import pytest

from wbsp.core.decisions import Accepted, Committed
from wbsp.core.engine import Engine
from wbsp.core.messages import Ack
from wbsp.core.outer_optimizer import create_outer
from wbsp.core.overflow import MOST
from wbsp.core.store import Store
from wbsp.sync import Push, create
from wbsp.sync.base import NOT_FINITE, TOO_LARGE, Accept, Commit, Grant, SyncModel, WorkerRule
from wbsp.tensors.codecs import parse
from wbsp.tensors.ops import bound, largest, squared

SIZE = 300
OUTERS = [("identity", {}), ("nesterov", {"rate": 3, "momentum": 0.9}),
          ("nesterov", {"momentum": 1}), ("qhm", {"rate": 8, "momentum": 0.9, "nu": 0.8}),
          ("qhm", {"rate": 8, "momentum": 0.9, "nu": 0.8, "outlast": 16}),
          ("delayed-nesterov", {"delay": 3, "rate": 2})]


class Patient(SyncModel):
    """Commits when the test sets it, with the weights that the test sets."""

    name = "patient"
    rule = WorkerRule("every_step", "ack", "replace")
    weight, commits = 1.0, False

    def push(self, push, now):
        return [Accept(push, self.weight), *([Commit()] if self.commits else []),
                Grant(push.worker)]


def begun(model, store):
    engine = Engine(model, store)
    engine.join(0, 0.0)
    return engine


def pushed(engine, vector, seq):
    """The answer to a push of these values."""
    answer = engine.push(Push(0, seq, 0, 1, 1, 0.1), np.array(vector, np.float32), 1.0)
    return next(message for _, message in answer if isinstance(message, Ack))


@pytest.mark.parametrize("outer", OUTERS, ids=str)
@pytest.mark.parametrize("wire", ["float32", "bfloat16", "int8", "topk:0.01"])
def test_finite_updates_never_make_an_infinite_version(outer, wire):
    random = np.random.default_rng(0)
    model = Patient()
    engine = begun(model, Store(np.zeros(SIZE, np.float32), 0, create_outer(outer[0], **outer[1]),
                                parse(wire)))
    taken = 0
    with np.errstate(all="raise", under="ignore"):
        for seq in range(300):
            model.commits = bool(random.integers(2))
            model.weight = float(random.choice([1.0, 0.1, 7.0]))
            scale = 10.0 ** random.uniform(30, 38.4)
            update = np.clip(random.normal(size=SIZE) * scale, -3e38, 3e38)
            answer = pushed(engine, update, seq)
            assert answer.accepted or answer.reason == TOO_LARGE
            taken += answer.accepted
            assert np.isfinite(engine.store.latest.vector).all()
            assert all(np.isfinite(one).all() for one in engine.store.state().values())
    assert taken, "what is large is not too large yet"


@pytest.mark.parametrize("outer", OUTERS, ids=str)
@pytest.mark.parametrize("wire", ["float32", "int8", "topk:0.01"])
def test_the_bounds_are_above_the_values(outer, wire):
    random = np.random.default_rng(1)
    store = Store(random.normal(size=SIZE).astype(np.float32), 0,
                  create_outer(outer[0], **outer[1]), parse(wire))
    for seq in range(40):
        update = random.normal(size=SIZE).astype(np.float32)
        record = Accepted(0, seq, -0.5, 1 + seq % 20)
        most = bound(squared(update))
        store.apply(record, update)
        store.reach.follow(record, most)
        if seq % 3 == 0:
            store.apply(Committed(seq + 1), None)
            store.reach.follow(Committed(seq + 1), 0.0)
        assert store.reach.version >= largest(store.latest.vector)
        assert store.reach.pending >= largest(store._pending)


def test_grown_bounds_are_measured_again():
    """Updates that take each other back leave the values where they were, and no bound stops."""
    model = Patient()
    model.commits = True
    engine = begun(model, Store(np.zeros(4, np.float32)))
    for seq in range(60):
        assert pushed(engine, np.full(4, (-1) ** seq * 1e37), seq).accepted
    assert not engine.members[0].rejected


def test_a_too_large_push_is_answered_and_training_continues():
    engine = begun(create("asp"), Store(np.zeros(5, np.float32)))
    assert pushed(engine, np.full(5, 3e38), 0).reason == TOO_LARGE
    assert pushed(engine, np.full(5, np.nan), 1).reason == NOT_FINITE
    assert pushed(engine, np.full(5, 2.0), 2).accepted
    assert engine.members[0].rejected == {TOO_LARGE: 1, NOT_FINITE: 1}
    assert np.array_equal(engine.store.latest.vector, np.full(5, 2, np.float32))


def test_the_norm_gives_a_bound_and_is_infinite_where_a_value_is():
    random = np.random.default_rng(2)
    for scale in (1e-30, 1.0, 1e10, 1e25, 1e38):
        vector = (random.uniform(-1, 1, 200_000) * scale).astype(np.float32)
        square = float(np.square(vector, dtype=np.float64).sum())
        assert squared(vector) == pytest.approx(square, rel=1e-7, abs=1e-40)
        assert largest(vector) <= bound(squared(vector)) < np.inf
        assert largest(vector) <= MOST * 3
    for bad in (np.nan, np.inf, -np.inf):
        vector[150_000] = bad
        assert squared(vector) == np.inf
    assert largest(None) == 0.0 and largest(np.empty(0, np.float32)) == 0.0
