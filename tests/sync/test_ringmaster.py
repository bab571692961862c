"""Ringmaster: every push is a version, unless its lag is R or more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pushes import push
from random_clusters import Witness, answer_in, events, granted_in, plans

from wbsp.sync import Accept, Commit, Grant, Reject, create
from wbsp.sync.ringmaster import STALE, Ringmaster


class Bounded(Witness):
    """Knows the lag of each push from the store's versions, and R."""

    def __init__(self, plan, model, weight):
        super().__init__(plan, model, Bounded.judge, weight, rejects=True)
        self.assert_idle_for("push", "pull", "data")

    def judge(self, outgoing, push):
        assert self.committed == (push is not None and answer_in(outgoing).accepted)
        if push:
            latest = self.cluster.engine.store.latest.version
            before = latest - self.committed
            bound = self.model.r or max(1, int(before ** 0.5))
            assert self.committed == (before - push.base_version < bound)
            assert granted_in(outgoing) == {push.worker: latest}


@given(plans(), st.integers(0, 4), st.booleans())
def test_random_clusters_keep_the_laws_and_the_bound(plan, r, mean):
    model = Ringmaster(r=r, weight="mean" if mean else "full")
    Bounded(plan, model, None if mean else lambda push: 1.0)


@given(plans())
def test_without_a_bound_it_is_asp(plan):
    assert events(Ringmaster(r=10**6, weight="mean"), plan) == events(create("asp"), plan)


def model_with(n, **options):
    model = Ringmaster(**options)
    for worker in range(n):
        assert model.join(worker, 0.0) == [Grant(worker)]
    return model


def test_an_update_is_ignored_from_lag_r_on():
    model = model_with(3, r=2)
    assert model.push(push(0), 1.0) == [Accept(push(0), 1.0), Commit(), Grant(0)]
    assert model.push(push(1), 2.0) == [Accept(push(1), 1.0), Commit(), Grant(1)]  # lag 1
    assert model.push(push(2), 3.0) == [Reject(push(2), STALE), Grant(2)]  # lag 2
    assert model.push(push(2, 1, base=2), 4.0)[1] == Commit()
    assert model.leave(0, 5.0) == []


@pytest.mark.parametrize("versions, bound", [(0, 1), (1, 1), (3, 1), (4, 2), (8, 2), (9, 3),
                                             (100, 10)])
def test_by_default_r_is_the_root_of_the_versions(versions, bound):
    model = model_with(2)
    for version in range(versions):
        model.push(push(0, version, base=version), 1.0)
    newest = [model.push(push(1, base=versions - lag), 2.0)[0] for lag in (bound,)]
    assert versions < bound or isinstance(newest[0], Reject)
    assert isinstance(model.push(push(1, base=versions - bound + 1), 3.0)[0], Accept)
