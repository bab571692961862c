"""The records of decisions: a follower of them comes to the same versions, in part or in whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wbsp.core.decisions import Accepted, Committed, Rejected
from wbsp.core.engine import Engine
from wbsp.core.store import Store
from wbsp.sync import MODELS, Push, create

SIZE, WORKERS = 6, 3
EVENTS = st.lists(st.tuples(st.integers(0, WORKERS - 1),
                            st.sampled_from(["push", "push", "push", "bad", "leave"])),
                  max_size=40)


class Followed(Store):
    """A store that records the applied decisions."""

    def __init__(self, initial):
        super().__init__(initial)
        self.told = []

    def apply(self, record, update, square=None):
        self.told.append((record, None if update is None else update.copy()))
        super().apply(record, update, square)


def driven(sync, events):
    """The store of an engine to which `events` happened, a second apart."""
    rng = np.random.default_rng(len(events))
    store = Followed(rng.standard_normal(SIZE).astype(np.float32))
    engine = Engine(create(sync), store, WORKERS)
    for worker in range(WORKERS):
        engine.join(worker, 0.0)
    for now, (worker, what) in enumerate(events, 1):
        if not engine.members[worker].active:
            engine.join(worker, float(now))
        elif what == "leave":
            engine.leave(worker, float(now), "lost")
        else:
            update = rng.standard_normal(SIZE).astype(np.float32)
            if what == "bad":
                update[2] = np.nan
            seq = engine.ledger.next_seq(worker)
            engine.push(Push(worker, seq, store.latest.version, 1, 8, 1.0), update, float(now))
    return store


@pytest.mark.parametrize("sync", MODELS)
@settings(max_examples=settings.default.max_examples // 4)
@given(EVENTS)
def test_a_shard_that_follows_the_log_makes_the_same_versions(sync, events):
    store = driven(sync, events)
    initial = np.random.default_rng(len(events)).standard_normal(SIZE).astype(np.float32)
    whole, half = Store(initial), Store(initial[:SIZE // 2])
    for record, update in store.told:
        whole.apply(record, None if update is None else update.copy())
        half.apply(record, None if update is None else update[:SIZE // 2].copy())
    assert whole.latest.version == half.latest.version == store.latest.version
    assert whole.latest.vector.tobytes() == store.latest.vector.tobytes()
    assert half.latest.vector.tobytes() == store.latest.vector[:SIZE // 2].tobytes()
    assert whole.accepted == store.accepted


@pytest.mark.parametrize("sync", MODELS)
@settings(max_examples=settings.default.max_examples // 4)
@given(EVENTS)
def test_every_push_is_in_the_records_once_and_versions_follow_one_another(sync, events):
    records = [record for record, _ in driven(sync, events).told]
    for worker in range(WORKERS):
        seqs = [r.seq for r in records if isinstance(r, Accepted | Rejected) and r.worker == worker]
        assert seqs == list(range(len(seqs)))
    versions = [r.version for r in records if isinstance(r, Committed)]
    assert versions == list(range(1, len(versions) + 1))
