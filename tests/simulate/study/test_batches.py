"""Smaller batches in an advice: which are tried, and what is said of them."""

from types import SimpleNamespace

import keras
import pytest

from wbsp.simulate.study.batches import Trained, advice, halved, smaller
from wbsp.simulate.study.compare import Result
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
    return Plan(ClusterSpec((group,), batch_size=batch), experiment, batch, target=0.85)


def of(label, *seconds):
    """Finished runs of a model that reached the target at `seconds`, or never (None)."""
    return Result(label, tuple(SimpleNamespace(time_to=lambda _, at=at: at) for at in seconds),
                  0.85)


def test_half_a_batch_has_half_the_rate_and_the_time_but_not_of_a_sleep(experiment):
    half = halved(BSP_VARIANT, plan_of(experiment))
    [group] = half.cluster.groups
    assert (group.step_seconds, group.sleep_seconds) == (0.01, 0.5)
    assert half.batch_size == half.settings["batch_size"] == 64
    assert half.experiment.rate == half.settings["lr"] == pytest.approx(0.05)
    assert half.experiment._decays == {200: 0.1}  # the same examples before
    quarter = halved(BSP_VARIANT, half)
    assert quarter.experiment.rate == pytest.approx(0.025)
    assert quarter.experiment._decays == {400: 0.1}


def test_the_rate_of_adam_goes_with_the_root_of_the_batch():
    adam = Experiment("small", "shapes10", 64, optimizer="adam")
    assert adam.with_batch(16).rate == pytest.approx(0.0005)


def test_a_model_that_is_compiled_with_a_schedule_keeps_its_batch(experiment, monkeypatch):
    build = experiment._build

    def compiled(rate):
        def make(name, seed):
            model = build(name, seed)
            model.compile(keras.optimizers.SGD(rate), "mse")
            return model
        return make

    monkeypatch.setattr(experiment, "_build", compiled(
        keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.5)))
    assert experiment.with_batch(64) is None
    assert halved(BSP_VARIANT, plan_of(experiment)) is None
    monkeypatch.setattr(experiment, "_build", compiled(0.3))
    assert experiment.with_batch(64) is not None


def test_the_least_batch_and_one_that_does_not_divide_are_not_halved(experiment):
    assert halved(BSP_VARIANT, plan_of(experiment, 16)) is None
    assert halved(BSP_VARIANT, plan_of(experiment, 65)) is None
    assert halved(BSP_VARIANT, plan_of(None)) is None
    saps = Variant(MODELS["saps"], {}, "saps")  # four micro-batches
    assert halved(saps, plan_of(experiment, 40)).batch_size == 20
    assert halved(saps, plan_of(experiment, 36)) is None


def tried(experiment, times):
    """Return batch -> seconds of what is trained if batch has these times, None: not reached."""
    def train(plan):
        return of("bsp", times[plan.batch_size]), of("alone", 9)

    return [one.batch for one in smaller(BSP_VARIANT, plan_of(experiment), of("bsp", times[128]),
                                         of("alone", 9), train)]


def test_batches_are_halved_while_the_time_falls_by_a_tenth(experiment):
    assert tried(experiment, {128: 10, 64: 8, 32: 7.5}) == [128, 64, 32]
    assert tried(experiment, {128: 10, 64: 11}) == [128, 64]
    assert tried(experiment, {128: 10, 64: None}) == [128, 64]
    assert tried(experiment, {128: 10, 64: 8, 32: 6, 16: 5}) == [128, 64, 32, 16]


def test_the_best_batch_is_named_with_its_worth_of_the_machine_alone_at_its_own_best():
    lines = advice([Trained(128, 0.1, of("auto", 4), of("alone", 6)),
                    Trained(64, 0.05, of("auto", 2), of("alone", 5)),
                    Trained(32, 0.025, of("auto", None), of("alone", 7))]).splitlines()
    assert lines[0].startswith("Seconds to 85 % by the batch, if a step takes its part of the time")
    assert lines[4:7] == ["| 128 | 0.1 | 4.0 | 6.0 |", "| 64 | 0.05 | 2.0 | 5.0 |",
                          "| 32 | 0.025 | - | 7.0 |"]
    assert lines[-1] == ("Train with --batch_size=64 --lr=0.05: auto then takes 2.0 s, worth 2.5 "
                         "of the fastest machine alone at its best batch of these (5.0 s at 64).")


def test_no_gain_and_a_machine_that_never_arrives_are_said():
    same = [Trained(128, 0.1, of("auto", 4), of("alone", None)),
            Trained(64, 0.05, of("auto", 5), of("alone", None))]
    assert advice(same).endswith("No smaller batch is faster under auto.")
    assert advice([]) == ""
