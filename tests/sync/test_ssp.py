"""SSP: nobody starts a step more than s ahead of the slowest."""

import pytest
from clusters import Witness, many, plans
from hypothesis import given
from hypothesis import strategies as st

from wbsp.sync import Grant, Push, create


class Bound(Witness):
    def starts(self, worker, now):
        ahead = self.clock[worker] - min(self.clock.values())
        assert ahead <= self.model.s, f"worker {worker} starts {ahead} steps ahead"


def every_push_is_a_version(witness, effects, push):
    assert witness.committed == (push is not None)


@many
@given(plans(), st.integers(0, 5))
def test_random_clusters_keep_the_laws_and_the_bound(plan, s):
    Bound(plan, create("ssp", s=s), every_push_is_a_version)


@many
@given(plans(), st.integers(0, 5))
def test_random_lazy_clusters_keep_the_laws_and_the_bound(plan, s):
    Bound(plan, create("ssp", s=s, lazy=True), every_push_is_a_version)


def push(worker, seq):
    return Push(worker, seq, 0, 1, 1, 1.0)


def grants(actions):
    return [action.worker for action in actions if isinstance(action, Grant)]


def ahead_by(s, **options):
    """A model in which worker 0 has pushed until the bound stopped it; worker 1 nothing."""
    model = create("ssp", s=s, **options)
    model.join(0, 0.0)
    model.join(1, 0.0)
    for seq in range(s):
        model.push(push(0, seq), 1.0)
    return model, model.push(push(0, s), 1.0)


@pytest.mark.parametrize("s", [0, 1, 3])
def test_the_bound_is_sharp(s):
    model, stopping = ahead_by(s)
    assert grants(stopping) == []
    assert grants(model.push(push(1, 0), 2.0)) == [0, 1]


def test_the_slowest_worker_that_is_lost_frees_those_it_stopped():
    model, _ = ahead_by(2)
    assert grants(model.leave(1, 2.0)) == [0]


def test_a_joiner_starts_at_the_lowest_clock_and_stops_nobody():
    model, _ = ahead_by(2)
    model.push(push(1, 0), 2.0)
    model.join(2, 2.0)
    assert model.clock == {0: 3, 1: 1, 2: 1}


def test_a_stopped_worker_that_leaves_is_not_granted():
    model, _ = ahead_by(1)
    model.leave(0, 2.0)
    assert grants(model.push(push(1, 0), 3.0)) == [1]


def test_lazy_fetches_only_when_stopped():
    model, stopping = ahead_by(1, lazy=True)
    assert [a.hold for a in stopping if hasattr(a, "hold")] == [True]
    assert grants(model.push(push(1, 0), 2.0)) == [0]
