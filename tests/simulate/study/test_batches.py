"""Smaller batches in an advice: which are tried, and what is printed about them."""

from dataclasses import replace

import keras
import pytest
from made_runs import result

from wbsp.core.goal import Goal
from wbsp.simulate.study.batches import (
    Trained,
    best_of,
    doubles,
    halves,
    others,
    still_gains,
    table,
    trained,
)
from wbsp.simulate.study.runs import Plan
from wbsp.simulate.study.spec import ClusterSpec, Group
from wbsp.simulate.study.variants import Variant
from wbsp.simulate.workloads.keras import Experiment
from wbsp.sync import BSP, MODELS

BSP_VARIANT = Variant(BSP, {}, "bsp")


@pytest.fixture(scope="module")
def experiment():
    return Experiment("small", "shapes10", 128, decays={100: 0.1})


def plan_of(experiment, batch=128):
    group = Group(2, step_seconds=0.02, sleep_seconds=0.5)
    return Plan(ClusterSpec((group,), batch_size=batch), experiment, batch, target=Goal.of(0.85))


def test_half_a_batch_has_half_the_rate_and_the_time_but_not_of_a_sleep(experiment):
    half, quarter = halves(BSP_VARIANT, plan_of(experiment))
    [group] = half.cluster.groups
    assert (group.step_seconds, group.sleep_seconds) == (0.01, 0.5)
    assert half.batch_size == half.settings["batch_size"] == 64
    assert half.experiment.rate == half.settings["lr"] == pytest.approx(0.05)
    assert half.experiment.decays == {200: 0.1}  # the same examples before
    assert quarter.experiment.rate == pytest.approx(0.025)
    assert quarter.experiment.decays == {400: 0.1}
    assert quarter.settings["lr_decays"] == "400:0.1"
    assert quarter.batch_size == 32


def test_the_rate_of_adam_goes_with_the_root_of_the_batch():
    adam = Experiment("small", "shapes10", 64, optimizer="adam")
    assert adam.with_batch(16).rate == pytest.approx(0.0005)


def test_a_window_of_text_is_more_than_an_image(experiment):
    plan = replace(plan_of(experiment, 8), settings={"text": "Python 3"})
    assert [one.batch_size for one in halves(BSP_VARIANT, plan)] == [4, 2]
    assert halves(BSP_VARIANT, plan_of(experiment, 8)) == []


def comes_compiled(experiment, monkeypatch, optimizer):
    """Let the experiment's network come compiled with this optimizer."""
    build = experiment._build

    def make(name, seed):
        model = build(name, seed)
        model.compile(optimizer(), "sparse_categorical_crossentropy")
        return model

    monkeypatch.setattr(experiment, "_build", make)
    monkeypatch.setattr(experiment, "_networks", {})


def test_a_model_that_is_compiled_with_a_schedule_keeps_its_batch(experiment, monkeypatch):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.5)
    comes_compiled(experiment, monkeypatch, lambda: keras.optimizers.SGD(schedule))
    assert experiment.with_batch(64) is None
    assert halves(BSP_VARIANT, plan_of(experiment)) == []


@pytest.mark.parametrize("optimizer, rate", [("SGD", 0.1), ("Adam", 0.2)])
def test_a_model_that_is_compiled_with_a_rate_has_one_that_suits(monkeypatch, optimizer, rate):
    experiment = Experiment("small", "shapes10", 128)
    comes_compiled(experiment, monkeypatch, lambda: getattr(keras.optimizers, optimizer)(0.4))
    assert experiment.with_batch(32).rate == pytest.approx(rate)


def test_the_least_batch_and_one_that_does_not_divide_are_not_halved(experiment):
    assert halves(BSP_VARIANT, plan_of(experiment, 8)) == []
    assert halves(BSP_VARIANT, plan_of(experiment, 65)) == []
    assert halves(BSP_VARIANT, plan_of(None)) == []
    saps = Variant(MODELS["saps"], {}, "saps")  # four micro-batches
    assert [one.batch_size for one in halves(saps, plan_of(experiment, 40))] == [20]
    assert halves(saps, plan_of(experiment, 36)) == []


@pytest.mark.parametrize("times, batches", [
    ([10, 8, 7], [128, 64, 32]), ([10, 9.5, 1], [128, 64]), ([10, None, 1], [128, 64]),
    ([None, 9, 9], [128, 64, 32]), ([None, None, 1], [128, 64])])
def test_batches_are_halved_while_the_time_falls_by_a_tenth(experiment, times, batches):
    left = dict(zip((128, 64, 32), times, strict=True))
    plan = plan_of(experiment)
    tried = others(BSP_VARIANT, plan, trained(plan, result("x", left[128])),
                   lambda half: result("x", left[half.batch_size]))
    assert [one.batch for one in tried] == batches


def with_a_fixed_part(experiment, fixed):
    plan = plan_of(experiment)
    group = Group(2, step_seconds=0.02, fixed_seconds=fixed, example_seconds=(0.02 - fixed) / 128)
    return replace(plan, cluster=replace(plan.cluster, groups=(group,)))


def test_a_batch_is_doubled_where_most_of_a_step_is_fixed(experiment):
    double, fourfold = doubles(BSP_VARIANT, with_a_fixed_part(experiment, 0.016))
    assert (double.batch_size, fourfold.batch_size) == (256, 512)
    [group] = fourfold.cluster.groups
    assert group.step_seconds == pytest.approx(0.016 + 4 * 0.004)
    assert fourfold.experiment.rate == pytest.approx(0.4)
    assert doubles(BSP_VARIANT, with_a_fixed_part(experiment, 0.008)) == []
    assert doubles(BSP_VARIANT, plan_of(experiment)) == []


@pytest.mark.parametrize("times, batches", [
    ({128: 10, 64: 8, 32: 9}, [128, 64, 32]),
    ({128: 10, 64: 11, 256: 5, 512: 4}, [128, 64, 256, 512]),
    ({128: None, 64: None, 256: 5, 512: 6}, [128, 64, 256, 512])])
def test_larger_batches_are_tried_where_smaller_ones_do_not_gain(experiment, times, batches):
    plan = with_a_fixed_part(experiment, 0.016)
    tried = others(BSP_VARIANT, plan, trained(plan, result("x", times[128])),
                   lambda other: result("x", times[other.batch_size]))
    assert [one.batch for one in tried] == batches
    assert still_gains(tried) == ("larger" if times.get(512) == 4 else "")


def tried(label, *seconds):
    return [Trained(128 >> n, 0.1 / 2 ** n, result(label, at)) for n, at in enumerate(seconds)]


def test_the_table_has_each_model_at_each_batch():
    lines = table([tried("auto", 4, 2, None), tried("alone", 6, 5)]).splitlines()
    assert lines[0].startswith("Seconds to 85 % by the batch, if a step takes its part of the time")
    assert lines[2:] == ["| batch | rate | auto | alone |", "| --- | --- | --- | --- |",
                         "| 128 | 0.1 | 4.0 | 6.0 |", "| 64 | 0.05 | 2.0 | 5.0 |",
                         "| 32 | 0.025 | not reached | not trained |"]
    assert table([tried("auto", 4), tried("alone", 5)]) == "", "nothing was tried"


def test_the_best_batch_is_the_fastest_that_reached_the_target():
    assert best_of(tried("auto", 4, 2, None)).batch == 64
    assert best_of(tried("auto", None, None)) is None


@pytest.mark.parametrize("seconds, still", [((9, 6, 4), "smaller"), ((9, 4, 6), ""), ((9, 4), "")])
def test_a_gain_at_the_least_batch_is_noticed(seconds, still):
    assert still_gains(tried("auto", *seconds)) == still


def test_the_settings_of_a_training_name_decays_that_move_with_the_batch():
    assert Trained(64, 0.05, result("auto", 2)).settings == "batch 64, learning rate 0.05"
    assert Trained(64, 0.05, result("auto", 2), "200:0.1").settings.endswith(", decays 200:0.1")
    assert trained(plan_of(None), result("auto", 2)).settings == "batch 128", "no network"
