"""Goodput and progress on a cluster, and which models an advice trains."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from wbsp.core.goal import Goal
from wbsp.simulate.study.compare import Result
from wbsp.simulate.study.runs import Plan
from wbsp.simulate.study.screen import (
    CLOSE,
    FEWEST,
    LATE,
    Screened,
    closest,
    promising,
    screen,
)
from wbsp.simulate.study.spec import ClusterSpec, Group
from wbsp.simulate.study.variants import variants

UNEQUAL = ClusterSpec((Group(step_seconds=0.1), Group(step_seconds=1.0)), model_bytes=0.0)
TARGET = Goal.of(0.8)
PLAN = Plan(UNEQUAL, None, 32, target=TARGET)


def screened(name, cluster=UNEQUAL):
    [variant] = variants([name], [])
    return screen(variant, replace(PLAN, cluster=cluster), 0)


def test_the_pace_of_a_model_is_what_the_cluster_allows():
    assert screened("bsp").rate == pytest.approx(2, rel=0.05)
    assert screened("pcc").rate == pytest.approx(11, rel=0.05)


@pytest.mark.parametrize("name, width", [
    ("bsp", 2), ("localsgd", 2), ("wbsp", 2), ("asp", 2), ("pcc:weight=work", 1.2)])
def test_a_step_averages_the_given_number_of_batches(name, width):
    """pcc by work: ten pushes of weight 10/11 / 10 each, and one of 1/11."""
    found = screened(name)
    usual = found.versions[len(found.versions) // 2][1]
    assert usual == pytest.approx(width, rel=0.1)


@pytest.mark.parametrize("name, steps", [
    ("bsp", 80), ("asp", 440), ("localsgd", 80), ("pcc", 440), ("ringmaster", 880)])
def test_the_steps_of_the_network_are_those_of_the_workers_by_their_weights(name, steps):
    """In 80 s, in which one worker makes 800 steps and the other 80: 80 where they wait for each
    other, else half of all steps, or all."""
    assert screened(name).steps(80.0) == pytest.approx(steps, rel=0.15)


def test_a_step_of_momentum_counts_as_several():
    [variant] = variants(["bsp"], [])
    usual, more = (screen(variant, replace(PLAN, outer=outer, outer_options=options), 0)
                   for outer, options in ((None, {}), ("nesterov", {"rate": 1, "momentum": 0.8})))
    assert more.steps(100.0) == pytest.approx(5 * usual.steps(100.0), rel=0.1)


@pytest.mark.parametrize("wire, shards", [("int8", 1), ("topk:0.1", 1), ("int8", 3)])
def test_steps_are_counted_in_every_format_and_with_shards(wire, shards):
    [variant] = variants(["bsp"], [])
    cluster = replace(UNEQUAL, model_bytes=1e6).sharded(shards)
    found = screen(variant, replace(PLAN, wire=wire, cluster=cluster), 0)
    assert found.steps(100.0) == pytest.approx(100, rel=0.15)


def test_steps_continue_at_the_mean_pace():
    pace = Screened(1.0, (), ((1.0, 4.0), (2.0, 10.0)))
    assert [pace.steps(seconds) for seconds in (0.5, 1.0, 1.5, 2.0, 4.0)] == [0, 4, 4, 10, 20]


def test_goodput_falls_with_the_batches_of_a_step():
    pace = Screened(10.0, ((64, 2.0), (64, 2.0)))
    assert pace.goodput(None) == 10
    assert pace.goodput(4.0) == pytest.approx(10 * 5 / 6)
    assert pace.goodput(0.0) == 5


def trained(label, seconds, noise=None):
    run = SimpleNamespace(time_to=lambda accuracy: seconds, summary={
        "t": 100.0, "total": {}, "noise": noise and {"scale": noise, "batch": 1.0}})
    return Result(label, (run,), TARGET)


def advised(names, times, noise=None):
    """(model, until) of each training, and the line on those that are not trained."""
    compared = [(variant, PLAN) for variant in variants(names, [])]
    asked = []

    def train(variant, plan):
        asked.append((variant.label, plan.until))
        return trained(variant.label, times[variant.label], noise)

    results, of, line = closest(compared, 0, train)
    assert [one.label for one in results] == [variant.label for variant, _ in of]
    return asked, line


def test_models_of_little_goodput_are_not_trained():
    asked, line = advised(["bsp", "pcc", "asp"], {"pcc": 5.0, "asp": 6.0})
    assert {label for label, _ in asked} == {"pcc", "asp"}
    assert f"Not trained, because their goodput is less than 1/{CLOSE:g} of pcc's: bsp (" in line


def test_models_whose_steps_cannot_suffice_are_not_trained():
    """In 2 s `auto` makes 19 steps, `pcc` 10; the fastest machine alone needed 30."""
    alone = Result("alone", (SimpleNamespace(),), TARGET)
    vars(alone).update(times=[3.0], batches=30.0)
    compared = [(variant, PLAN) for variant in variants(["auto", "pcc", "asp"], [])]
    asked = []

    def train(variant, plan):
        asked.append(variant.label)
        return trained(variant.label, 2.0)

    _, _, line = closest(compared, 0, train, alone)
    assert asked == ["auto"]
    assert "Not trained, because in 2.0 s they take the network less than " \
           f"{FEWEST:g} of the 19 steps" in line and "steps of the shortest training" in line
    assert "pcc (" in line and "asp (" in line and "goodput" not in line


def test_all_are_trained_while_none_reaches_the_target():
    asked, line = advised(["bsp", "pcc"], {"bsp": None, "pcc": None})
    assert {label for label, _ in asked} == {"bsp", "pcc"} and not line


def test_a_training_ends_when_it_is_later_than_the_best():
    asked, _ = advised(["pcc", "auto"], {"auto": 4.0, "pcc": 3.0})
    assert asked == [("auto", float("inf")), ("pcc", LATE * 4.0)], "the default model comes first"


def test_the_noise_that_a_training_measures_decides_over_the_rest():
    """With little noise, the batches that a step averages are hardly worth one."""
    paces = {"alone": Screened(10.0, ((64, 1.0),)), "wide": Screened(9.0, ((64, 8.0),))}
    assert promising(paces, [trained("alone", 4.0)]) == ["wide"]
    assert promising(paces, [trained("alone", 4.0, noise=100.0)]) == ["wide"]
    assert promising(paces, [trained("alone", 4.0, noise=1.0)]) == []
