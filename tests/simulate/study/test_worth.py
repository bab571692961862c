"""What a cluster is worth of its fastest machine: who matters, the bound, and the sentence."""

import pytest
from made_runs import result

from wbsp.core.messages import SharedData
from wbsp.simulate.study.runs import Plan
from wbsp.simulate.study.spec import ClusterSpec, Group
from wbsp.simulate.study.worth import (
    NOISE_VERSIONS,
    bound,
    bounded,
    fast_ones,
    fastest,
    lone,
    noise_plan,
    own_data,
    verdict,
)
from wbsp.simulate.world.machine import INF

SLOW = Group(2, step_seconds=0.5, latency=0.1, up=10.0)
FAST = Group(3, step_seconds=0.01, sleep_seconds=0.01, latency=0.1, up=10.0)
CLUSTER = ClusterSpec((SLOW, FAST), model_bytes=4.0)


def cluster_of(*seconds):
    return ClusterSpec(tuple(Group(step_seconds=one) for one in seconds))


def test_the_fastest_machines_are_kept():
    assert fastest(CLUSTER, 2).groups == (Group(2, step_seconds=0.01, sleep_seconds=0.01,
                                                latency=0.1, up=10.0),)
    assert [(group.count, group.mini_batch) for group in fastest(CLUSTER, 4).groups] == [
        (3, 0.02), (1, 0.5)]
    assert fastest(CLUSTER, 4).size == 4 and fastest(CLUSTER, 4).model_bytes == 4.0


def test_a_machine_alone_sends_nothing():
    alone = lone(CLUSTER)
    assert (alone.size, alone.pace, alone.cycle(1e9), alone.model_bytes) == (1, 50, 0.02, 0)
    [group] = alone.groups
    assert (group.latency, group.up, group.down) == (0.0, INF, INF)


def test_the_noise_is_measured_by_two_machines_that_send_nothing():
    plan = noise_plan(Plan(CLUSTER, None, 32, target=0.8, outer="nesterov", wire="int8"))
    assert (plan.cluster.size, plan.cluster.cycle(1e9)) == (2, 0.02)
    assert plan.outer is plan.wire is None and plan.stop_samples == 2 * NOISE_VERSIONS * 32


@pytest.mark.parametrize("seconds, count", [
    ([1, 1, 1, 1], 4), ([1, 26], 1), ([1, 2], 2), ([1] * 4 + [26] * 4, 4), ([3], 1)])
def test_the_fast_machines_have_nearly_all_of_the_speed(seconds, count):
    assert fast_ones(cluster_of(*seconds)) == count


@pytest.mark.parametrize("seconds, noise, ratio, machines", [
    ([1, 6], 1, 4.5, 1), ([1, 6], 8, 3.5, 2),  # 6 (1 + 1/2) / 2; 6 (1 + 8/2) / (12/7 (1 + 8/2))
    ([1] * 7 + [6], 1, 5.9, 7), ([6, *[1] * 7], 64, 5.4, 8),
    ([1, 2, 3, 4, 5, 6, 7, 8], 8, 2.8, 5), ([2, 2], 3, 1.0, 2)])
def test_the_bound_on_the_time_of_any_method(seconds, noise, ratio, machines):
    found, used = bound(seconds, noise)
    assert (round(found, 1), used) == (ratio, machines)


def test_the_bound_is_said_to_be_one_of_theory():
    assert bounded(cluster_of(1, 6)).startswith("A bound of theory, not a measurement")
    assert "4.5, 3.5 and 3.5 times" in bounded(cluster_of(1, 6))
    assert bounded(cluster_of(1, 6)).endswith("the fastest 1, 2 and 2 machines.")
    assert bounded(cluster_of(0, 6)) == ""


EIGHT = cluster_of(*[1] * 4, *[26] * 4)


def test_a_model_that_is_faster_is_taken_and_its_worth_said():
    said = verdict(result("pcc", 4, 5), result("alone", 9, 9), result("few", 5, 5), EIGHT)
    assert said.startswith("Take pcc: it reaches the target in 4.5 s, worth 2.0 of the fastest "
                           "machine alone (9.0 s).")
    assert "add up to 4.15 of" in said
    assert "Without the slowest 4 of 8 machines it takes 5.0 s: they add nothing" in said
    assert "chance" not in said


def test_advice_names_the_gain_that_the_measured_noise_allows():
    said = verdict(result("pcc", 4, 5), result("alone", 9, 9), None, cluster_of(*[1] * 8), 4.0)
    assert ("add up to 8.00 of that one's, of which the noise of the gradients allows about 3.3 at "
            "this batch size (its scale is about 4 batches).") in said  # 8 (1 + 4) / (8 + 4)


def test_slow_machines_that_help_are_worth_their_place():
    said = verdict(result("pcc", 4, 5), result("alone", 9, 9), result("few", 6, 7), EIGHT)
    assert "it takes 6.5 s: they are worth their place." in said


def test_a_cluster_that_is_not_faster_is_not_taken():
    said = verdict(result("pcc", 4), result("alone", 4), None, cluster_of(1, 26))
    assert said.startswith("Take the fastest machine alone (4.0 s): the best model of the cluster, "
                           "pcc, is not faster (4.0 s).")
    assert "is not faster beyond the seeds (3.5 s)" in verdict(
        result("pcc", 3, 4), result("alone", 4, 4), None, cluster_of(1, 26))
    assert "one seed, so small differences may be chance" in said


def test_slow_machines_without_shared_data_are_worth_nothing():
    said = own_data(cluster_of(1, 26), SharedData(1000, 100, 3))
    assert "at least 390.0 s on a part each (worth 0.08 of" in said  # 15 steps of 26 s
    assert "steps alone, 30.0 s), at least 780.0 s on all data each (worth 0.04)" in said
    assert "at least 15.0 s on a part each (worth 2.00 of" in own_data(
        cluster_of(1, 1), SharedData(1000, 100, 3))


def test_a_model_that_misses_the_target_is_not_recommended():
    assert verdict(result("pcc", 4), result("alone", None), None, EIGHT).startswith(
        "Take pcc: it reaches the target in 4.0 s, which the fastest machine alone did not")
    assert verdict(result("pcc", 4, None), result("alone", 9, 9), None, EIGHT) == (
        "No model reached the target in every run; the fastest machine alone did, in 9.0 s.")
    assert verdict(result("pcc", None), result("alone", None), None, EIGHT).endswith(
        "did not, either.")
