"""What a cluster is worth of its fastest machine: who matters, the bound, and the sentence."""

from types import SimpleNamespace

import pytest
from made_runs import result

from wbsp.core.goal import Goal
from wbsp.core.messages import SharedData
from wbsp.simulate.study.batches import Trained
from wbsp.simulate.study.compare import Result
from wbsp.simulate.study.runs import Plan
from wbsp.simulate.study.spec import ClusterSpec, Group
from wbsp.simulate.study.worth import (
    NOISE_VERSIONS,
    bound,
    bounded,
    fast_ones,
    fastest,
    lone,
    missed,
    noise_plan,
    own_data,
    verdict,
    within_reach,
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
    plan = noise_plan(Plan(CLUSTER, None, 32, target=Goal.of(0.8), outer="nesterov", wire="int8"))
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


def test_the_bound_is_marked_as_theoretical():
    assert bounded(cluster_of(1, 6)).startswith("A bound of theory, not a measurement")
    assert "4.5, 3.5 and 3.5 times" in bounded(cluster_of(1, 6))
    assert bounded(cluster_of(1, 6)).endswith("the fastest 1, 2 and 2 machines.")
    assert bounded(cluster_of(0, 6)) == ""


EIGHT = cluster_of(*[1] * 4, *[26] * 4)
SERVER = "wbsp ps --worker_num=8 --sync=pcc"


def at(batch, one):
    return Trained(batch, 0.1, one)


def advised(model, alone, few=None, cluster=EIGHT, noise=None):
    return verdict(model, alone, few, cluster, SERVER, noise)


def test_the_verdict_is_the_first_line_and_compares_with_the_machine_alone_at_its_best_batch():
    said = advised(at(16, result("auto", 4, 5)), at(64, result("alone", 9, 9)))
    assert said[0] == ("it pays: 2.0 times the fastest machine alone, with auto at batch 16 "
                       "(4.5 s to 85 %; alone 9 s, at batch 64)")
    assert said[1] == f"Train with {SERVER}; in the script batch 16, learning rate 0.1."
    assert len(said) == 4


def test_a_small_gain_by_one_seed_may_be_chance():
    model, alone = at(16, result("auto", 4)), at(64, result("alone", 4.8))
    assert advised(model, alone)[0].startswith("it may pay: 1.2 times the fastest machine alone")
    assert advised(model, at(64, result("alone", 6)))[0].startswith("it pays: 1.5 times")


def test_machines_that_add_nothing_are_named():
    model, alone = at(16, result("pcc", 4, 5)), at(64, result("alone", 9, 9))
    assert ("Without the slowest 4 of 8 it takes 5 s: they add nothing that these runs show."
            in advised(model, alone, result("few", 5, 5))[2])
    assert "it takes 6.5 s: they are worth their place." in advised(
        model, alone, result("few", 6, 7))[2]


def test_advice_names_the_gain_that_the_measured_noise_allows():
    said = advised(at(16, result("pcc", 4, 5)), at(64, result("alone", 9, 9)), None,
                   cluster_of(*[1] * 8), 4.0)  # 8 (1 + 4) / (8 + 4)
    assert said[2] == ("All machines together have 8.00 times the speed of the fastest, of which "
                       "the noise of the gradients allows about 3.3 at batch 16.")


@pytest.mark.parametrize("model, alone", [((12.4,), (12.4,)), ((12,), (12.4,)), ((3, 4), (4, 4))])
def test_a_cluster_that_is_not_faster_beyond_chance_does_not_pay(model, alone):
    best, one = at(64, result("pcc", *model)), at(32, result("alone", *alone))
    said = advised(best, one)
    assert said[0].startswith("it does not pay: ") and "it pays" not in " ".join(said)
    assert "(pcc at batch 64)" in said[0] and "with the fastest alone (at batch 32)" in said[0]
    assert said[1] == "Train on the fastest machine alone: batch 32, learning rate 0.1."


def test_how_sure_it_is_depends_on_the_seeds():
    assert "one seed, so small differences may be chance (--seeds=3)" in advised(
        at(16, result("pcc", 4)), at(64, result("alone", 9)))[3]
    assert "2 seeds" in advised(at(16, result("pcc", 4, 4)), at(64, result("alone", 9, 9)))[3]


def test_a_model_that_misses_the_target_is_not_recommended():
    said = advised(None, at(64, result("alone", 9, 9)))
    assert said[0] == ("it does not pay: no model reached the target in every run; the fastest "
                       "machine alone did, in 9 s at batch 64")


def test_a_target_that_the_machine_alone_misses_is_named_with_one_that_it_reaches():
    run = SimpleNamespace(time_to=lambda _: None, summary={"t": 268.0, "total": {}},
                          metric=lambda goal: [0.5, 0.763, 0.7])
    assert missed(Result("alone", (run,), Goal.of(0.85))) == (
        "the fastest machine alone came to 76 % in 268.0 s, not to 85 %, so there is nothing to "
        "compare with: give --target_accuracy=0.7, or a later end by --epochs")


@pytest.mark.parametrize("metric, came, flag", [
    ("accuracy", 0.765, "--target_accuracy=0.7"), ("accuracy", 0.99, "--target_accuracy=0.95"),
    ("accuracy", 0.2, "--target_accuracy=0.15"), ("accuracy", 0.05, ""),
    ("loss", 1.65, "--target=loss:1.68"), ("score", 50.0, "--target=score:49")])
def test_a_reachable_target_is_below_the_best_result(metric, came, flag):
    assert within_reach(Goal.parse("target", metric, valued=False), came) == flag


def test_slow_machines_without_shared_data_are_worth_nothing():
    said = own_data(cluster_of(1, 26), SharedData(1000, 100, 3))
    assert "at least 390.0 s on a part each (worth 0.08 of" in said  # 15 steps of 26 s
    assert "steps alone, 30.0 s), at least 780.0 s on all data each (worth 0.04)" in said
    assert "at least 15.0 s on a part each (worth 2.00 of" in own_data(
        cluster_of(1, 1), SharedData(1000, 100, 3))
