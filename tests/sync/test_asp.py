"""ASP: no worker waits for another one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_clusters import Witness, answer_in, events, many, plans

from wbsp.simulate.nodes.cluster import Cluster
from wbsp.simulate.world.machine import Machine, constant
from wbsp.sync import create
from wbsp.sync.asp import ASP


def every_push_is_a_version(witness, outgoing, push):
    assert witness.committed == (push is not None)
    if push:
        assert answer_in(outgoing).granted == len(witness.bytes) - 1
        assert witness.merged[-1] == 1


@many
@given(plans())
def test_random_clusters_keep_the_laws_and_no_worker_waits_at_all_with_overlap(plan):
    witness = Witness(plan, create("asp", overlap=True), every_push_is_a_version)
    witness.assert_idle_for()


@many
@given(plans())
def test_random_clusters_keep_the_laws_and_no_worker_waits(plan):
    witness = Witness(plan, create("asp"), every_push_is_a_version)
    witness.assert_idle_for("push", "pull", "data")


@given(plans())
def test_random_clusters_weighted_by_time_keep_the_laws(plan):
    model = create("asp", weight="time")
    Witness(plan, model, every_push_is_a_version, lambda push: model.shares.of(push.worker))


def test_by_time_a_slow_workers_push_weighs_as_many_of_a_fast_ones():
    model = create("asp", weight="time")
    cluster = Cluster(model, [Machine(constant(1.0)), Machine(constant(4.0))], stop_samples=40)
    cluster.run()
    assert [model.shares.of(worker) for worker in (0, 1)] == [1 / 5, 4 / 5]


@many
@given(plans(), st.integers(1, 5))
def test_random_clusters_under_the_published_refresh_are_those_of_ssp(plan, s):
    model = type("Bounded", (ASP,), {"s": s})(refresh="published")
    assert events(model, plan) == events(create("ssp", s=s, refresh="published"), plan)


@pytest.mark.parametrize("samples, pulls, waited", [(1200, 2, 0), (1260, 3, 0), (1900, None, 350)])
def test_published_asp_asks_a_thousand_steps_beyond_the_granted_clock(samples, pulls, waited):
    cluster = Cluster(create("asp", refresh="published"),
                      [Machine(constant(1.0)), Machine(constant(4.0))], stop_samples=samples)
    cluster.run()
    fast, slow = cluster.reports
    assert fast.seconds["wait"] == pytest.approx(waited, abs=4)
    if pulls is None:  # at 1,000, 1,250, 1,312 ... steps, until it is 1,000 ahead
        assert 999 <= fast.steps - slow.steps <= 1000
    else:  # the first model, the last, and that at 1,000 steps
        assert fast.pulls == pulls and fast.steps == pytest.approx(0.8 * samples, abs=1)


def test_overlap_and_the_published_refresh_exclude_each_other():
    with pytest.raises(ValueError, match="asp: overlap=true .* refresh=published"):
        create("asp", overlap=True, refresh="published")
