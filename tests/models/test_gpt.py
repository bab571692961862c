"""The decoder of bytes is one network in Keras, JAX and PyTorch, and is trained alike by them."""

import os
import subprocess
import sys

import keras
import numpy as np
import pytest
from back_ends import ON_TORCH, TORCH
from jobs import ROOT

import models
from models import training
from models.adamw import AdamW, adamw, checked
from models.gpt import Shape, initial, shape
from models.gpt_jax import Training, logits

SMALL = "gpt:width=32:layers=2:heads=2:context=16"
FORM = Shape(32, 2, 2, 16)
RANDOM = np.random.default_rng(0)
SEEN, WANTED = (RANDOM.integers(0, 256, (12, 16)).astype(np.uint8) for _ in range(2))


def built(name=SMALL, seed=3):
    return models.build(name, seed, dataset="stdlib")


def flat(model):
    return np.concatenate([keras.ops.convert_to_numpy(v).ravel() for v in model.variables])


def test_a_name_gives_the_size_of_the_decoder():
    assert shape("gpt") == Shape(64, 3, 4, 64) and shape("gpt").parameters == 168_384
    assert shape("gpt:layers=6:width=256").parameters == 4_803_840
    assert shape("cnn") is None
    assert shape("gpt:build") is None, "a function of the user's module gpt"
    for name in (SMALL, "gpt:width=48:layers=1"):
        assert built(name).count_params() == shape(name).parameters


@pytest.mark.parametrize("name, says", [
    ("gpt:width=wide", "'width=wide' is no option of gpt; give width=, layers=, heads=, context="),
    ("gpt:depth=3", "'depth=3' is no option"), ("gpt:layers=0", "'layers=0' is no option"),
    ("gpt:width=64:heads=5", "a width of 64 does not divide into 5 heads"),
    ("gpt:width=6400", "has 1,476,652,800 parameters; give it at most 50,000,000")])
def test_a_bad_size_is_refused_in_one_line(name, says):
    with pytest.raises(ValueError, match=says):
        models.check(name, "stdlib")


def test_text_and_images_have_networks_of_their_own():
    with pytest.raises(ValueError, match="reads bytes, not cifar10: its data set is stdlib"):
        models.build("gpt", 0)
    with pytest.raises(ValueError, match="stdlib is text, which model 'cnn' does not read"):
        models.build("cnn", 0, dataset="stdlib")
    with pytest.raises(ValueError, match="weight_decay=0.1 has no effect on the model 'gpt'"):
        models.build("gpt", 0, 0.1, dataset="stdlib")
    assert (models.dataset_of("gpt:width=8:heads=1"), models.dataset_of("cnn")) == (
        "stdlib", "cifar10")


def test_keras_and_jax_compute_the_same_function():
    theirs = keras.ops.convert_to_numpy(built()(SEEN))
    ours = logits(FORM, initial(FORM, 3), SEEN)
    assert ours.shape == (12, 16, 256)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    assert abs(theirs).max() > 0.1


@ON_TORCH
def test_pytorch_computes_the_same_function():
    import torch

    from models.gpt_torch import GPT

    network, seen = GPT(FORM, 3), torch.from_numpy(SEEN).long()
    np.testing.assert_allclose(network(seen).detach(), logits(FORM, initial(FORM, 3), SEEN),
                               rtol=1e-5, atol=1e-5)
    loss = network.loss(seen, torch.from_numpy(WANTED).long())
    [theirs] = [Training(FORM, AdamW(), (SEEN, WANTED), (SEEN, WANTED)).evaluate(
        np.concatenate([value.ravel() for value in initial(FORM, 3).values()]))["loss"]]
    assert loss.item() == pytest.approx(theirs, rel=1e-5)


def test_no_byte_sees_a_later_one():
    changed = SEEN.copy()
    changed[:, 9] ^= 1
    before, after = (np.asarray(logits(FORM, initial(FORM, 0), seen)) for seen in (SEEN, changed))
    assert (before[:, :9] == after[:, :9]).all()
    assert (before[:, 9:] != after[:, 9:]).any(-1).all()


def trained(options="adamw"):
    """Whatever Keras trains on, its steps are those of JAX: return the largest difference, and the
    way that the values have gone."""
    model = training.compile(built(), SMALL, 0.01, kind=options)
    task = Training(FORM, adamw(options), (SEEN, WANTED), (SEEN, WANTED))
    values, n = task.make(3)
    assert n == 12
    begin, state = values, task.make_state()
    for step in range(4):
        chosen = np.arange(3) + 3 * step
        rate = 0.01 * adamw(options).factor(step / 4)
        model.optimizer.learning_rate = rate
        logs = model.train_on_batch(SEEN[chosen].astype("int32"), WANTED[chosen].astype("int32"),
                                    return_dict=True)
        values, state, loss = task.step(values, state, chosen, rate)
        if not step:
            assert float(logs["loss"]) == pytest.approx(float(loss), rel=1e-5)
    measured, theirs = task.evaluate(np.asarray(values)), model.evaluate(
        SEEN.astype("int32"), WANTED.astype("int32"), verbose=0, return_dict=True)
    assert measured == pytest.approx(theirs, rel=1e-4)
    assert measured["bits_per_byte"] == pytest.approx(measured["loss"] / np.log(2))
    return abs(flat(model) - values).max(), abs(values - begin).max()


@pytest.mark.parametrize("options", [
    pytest.param("adamw", marks=pytest.mark.long), "adamw:beta1=0:decay=3:clip=0:beta2=0.9",
    pytest.param("adamw:clip=0.01:warmup=0.5", marks=pytest.mark.long)])
def test_keras_and_jax_make_the_same_steps(options):
    difference, way = trained(options)
    assert difference < 1e-5 < 1e-3 < way


@pytest.mark.long
@pytest.mark.parametrize("back_end", ["jax", TORCH])
def test_other_back_ends_of_keras_make_the_same_steps(back_end):
    script = "import test_gpt; d, way = test_gpt.trained(); assert d < 1e-5 < 1e-3 < way, (d, way)"
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "helpers", ROOT / "tests" / "models")))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          env={**os.environ, "KERAS_BACKEND": back_end, "PYTHONPATH": paths},
                          check=False)
    assert done.returncode == 0, done.stderr


def test_the_rate_rises_and_falls_with_the_runs_examples():
    factor = AdamW(warmup=0.1).factor
    assert 0 < factor(0) < 0.01 and factor(0.05) == pytest.approx(0.5, abs=0.01)
    assert factor(0.1) == 1 and factor(1) == factor(1.5) == pytest.approx(0.05)
    assert factor(0.55) == pytest.approx(0.525)
    assert AdamW(warmup=0).factor(0) == 1


def test_only_matrices_decay():
    model = training.compile(built(), SMALL, 0.01, kind="adamw:decay=5")
    model.optimizer.build(model.trainable_variables)
    decays = {v.path for v in model.trainable_variables if model.optimizer._use_weight_decay(v)}
    assert decays == {v.path for v in model.variables if "norm" not in v.path}


def test_adamw_trains_other_networks_as_well():
    model = training.compile(models.build("small", 0), "small", kind="adamw:beta2=0.99")
    assert type(model.optimizer) is keras.optimizers.AdamW
    assert float(model.optimizer.learning_rate) == pytest.approx(0.003)
    assert (model.optimizer.beta_2, model.optimizer.global_clipnorm) == (0.99, 1.0)


@pytest.mark.parametrize("text, says", [
    ("lion", "--optimizer=lion: choose sgd, nesterov, adam, or adamw with its options"),
    ("adam:beta1=0", "--optimizer=adam:beta1=0: choose"),
    ("adamw:beta3=0", "'beta3=0' is no option of adamw"), ("adamw:beta1=1", "'beta1=1' is no op"),
    ("adamw:decay=much", "'decay=much' is no option"), ("adamw:clip=nan", "'clip=nan' is no o"),
    ("adamw:warmup=-1", "'warmup=-1' is no option")])
def test_a_bad_optimizer_is_refused_in_one_line(text, says):
    with pytest.raises(ValueError, match=says):
        checked(text)


def test_the_usual_optimizer_of_text_is_adamw():
    assert checked(None) is None and checked("sgd") is None
    assert checked("adamw") == AdamW(0.1, 1.0, 0.9, 0.95, 0.05)
    assert type(training.compile(built(), SMALL).optimizer) is keras.optimizers.AdamW
