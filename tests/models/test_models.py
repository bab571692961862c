import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import models
from models.layers import local_response_normalization


def images(count=4):
    return np.random.default_rng(0).standard_normal((count, 32, 32, 3)).astype("float32")


def weights(model):
    return b"".join(variable.numpy().tobytes() for variable in model.variables)


@pytest.mark.parametrize(
    ("name", "parameters"), [("cnn", 148_298), ("alexnet", 1_783_562), ("small", 33_834)]
)
def test_a_network_has_the_published_size(name, parameters):
    model = models.build(name, seed=1)
    assert model.count_params() == parameters
    assert not model.non_trainable_variables
    assert model(images()).shape == (4, 10)
    assert not model.compiled


@pytest.mark.parametrize("name", models.KNOWN)
def test_the_seed_alone_decides_the_initial_bytes(name):
    first = weights(models.build(name, seed=1))
    keras.utils.set_random_seed(99)
    assert weights(models.build(name, seed=1)) == first
    assert weights(models.build(name, seed=2)) != first


def test_no_two_layers_start_equal():
    kernels = [v.numpy().ravel()[:9] for v in models.build("alexnet", 1).variables if v.ndim > 1]
    assert len({kernel.tobytes() for kernel in kernels}) == 8


def test_the_cnn_starts_as_published():
    conv1, bias1, conv2, bias2, dense, _ = (v.numpy() for v in models.build("cnn", 1).variables)
    for kernel, stddev in ((conv1, 0.05), (conv2, 0.05), (dense, 1 / 192)):
        assert abs(kernel).max() <= 2 * stddev
        assert kernel.std() == pytest.approx(0.88 * stddev, rel=0.05)  # truncated at two sigma
    assert (bias1 == 0).all()
    assert (bias2 == np.float32(0.1)).all()


@pytest.mark.parametrize(("radius", "bias", "alpha"), [(4, 1.0, 0.001 / 9), (2, 2.0, 1e-4)])
def test_normalization_and_its_gradient_equal_tensorflows(radius, bias, alpha):
    x = tf.constant(np.random.default_rng(0).normal(0, 20, (2, 5, 5, 64)), tf.float32)

    def value_and_gradient(normalize):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = normalize(x)
            loss = tf.reduce_sum(y**3)
        return y, tape.gradient(loss, x)

    ours = value_and_gradient(lambda x: local_response_normalization(x, radius, bias, alpha))
    theirs = value_and_gradient(
        lambda x: tf.nn.local_response_normalization(x, radius, bias, alpha, 0.75)
    )
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our, their, rtol=1e-5, atol=1e-5 * abs(their).numpy().max())


@pytest.mark.long
def test_plain_keras_loads_a_saved_model(tmp_path):
    x = images()
    for name in ("cnn", "alexnet"):
        model = models.build(name, seed=1)
        model.save(tmp_path / f"{name}.keras")
        np.savez(tmp_path / f"{name}.npz", x=x, y=model(x))
    script = """
import keras, numpy, sys
for name in ("cnn", "alexnet"):
    model, saved = keras.models.load_model(f"{name}.keras"), numpy.load(f"{name}.npz")
    numpy.testing.assert_allclose(model(saved["x"]), saved["y"], rtol=1e-5, atol=1e-5)
assert "models" not in sys.modules
"""
    run = [sys.executable, "-c", script]
    result = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_names_are_known_without_keras():
    script = "import models, sys; assert not {'keras', 'tensorflow', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_weight_decay_is_the_tutorials_and_off_by_default():
    assert not models.build("cnn", seed=1).losses
    model = models.build("cnn", seed=1, weight_decay=0.004)
    (penalty,) = model.losses
    kernel = model.get_layer("logits").kernel
    assert float(penalty) == pytest.approx(0.004 * float(tf.nn.l2_loss(kernel)), rel=1e-5)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="unknown model 'resnet': choose one of cnn, alexnet, sma"):
        models.build("resnet", seed=1)
    with pytest.raises(ValueError, match="cifar10 has no model 'resnet50': choose one of cnn, ale"):
        models.build("resnet50", seed=1)
    with pytest.raises(ValueError, match="imagenet has no model 'cnn': choose one of alexnet, vgg"):
        models.build("cnn", seed=1, dataset="imagenet")


def test_the_alexnet_of_imagenet_has_the_published_layers():
    model = models.build("alexnet", seed=1, dataset="imagenet")
    assert model.input_shape == (None, 224, 224, 3) and model.output_shape == (None, 1000)
    shapes = [variable.shape for variable in model.trainable_variables if len(variable.shape) > 1]
    assert shapes == [(11, 11, 3, 64), (5, 5, 64, 64), (3, 3, 64, 128), (3, 3, 128, 128),
                      (3, 3, 128, 64), (2304, 1024), (1024, 1024), (1024, 1000)]
    assert model.count_params() == 4_855_912
    again = models.build("alexnet", seed=1, dataset="imagenet")
    assert weights(again) == weights(model)


@pytest.mark.parametrize("name, least", [
    ("alexnet", 57), ("vgg16", 32), ("resnet50", 32), ("inception_v3", 75)])
def test_images_too_small_for_a_network_are_refused_in_one_line(name, least):
    assert models.check(name, "imagenet") == (299 if name == "inception_v3" else 224)
    assert models.check(name, "imagenet", least) == least
    with pytest.raises(ValueError, match=f"{name} needs images of at least {least} pixels a side, "
                                         f"not --image_size={least - 1}"):
        models.build(name, seed=1, dataset="imagenet", image_size=least - 1)


def test_the_least_size_of_the_alexnet_is_the_least():
    build = models._function(models.IMAGENET["alexnet"])
    assert build(1, 0.0, 57, 4).output_shape == (None, 4)
    with pytest.raises(ValueError):
        build(1, 0.0, 56, 4)


OWN = """
import keras

def good():
    return keras.Sequential([keras.Input((32, 32, 3)), keras.layers.Flatten(),
                             keras.layers.Dense(10)])

def unbuilt():
    return keras.Sequential([keras.layers.Dense(10)])

def number():
    return 10
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_networks.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    yield
    sys.modules.pop("own_networks", None)


@pytest.mark.usefixtures("own_module")
def test_a_user_defined_model_is_built_from_the_current_folder():
    first = models.build("own_networks:good", seed=1)
    assert first(images()).shape == (4, 10)
    assert weights(models.build("own_networks:good", seed=1)) == weights(first)
    assert weights(models.build("own_networks:good", seed=2)) != weights(first)


@pytest.mark.usefixtures("own_module")
def test_a_user_defined_model_must_fit_imagenets_images_and_classes():
    def build(side, classes):
        return models.build("own_networks:good", 1, dataset="imagenet", image_size=side,
                            classes=classes)

    assert build(32, 10).output_shape == (None, 10)
    with pytest.raises(ValueError, match=r"takes \(32, 32, 3\), images are \(224, 224, 3\): --ima"):
        build(None, 10)
    with pytest.raises(ValueError, match="gives 10 values, but there are 1000 classes"):
        build(32, 1000)


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_module:build", "no module 'no_such_module' in"),
        ("own_networks:bad", "own_networks.py has no function 'bad'"),
        ("os:path", "has no function 'path'"),
        ("own_networks:unbuilt", "returned 'Sequential', it must return a built keras.Model"),
        ("own_networks:number", "returned 'int', it must return a built keras.Model"),
    ],
)
def test_a_wrong_user_defined_model_is_named(name, says):
    with pytest.raises(ValueError, match=says):
        models.build(name, seed=1)


@pytest.mark.usefixtures("own_module")
def test_weight_decay_of_a_user_defined_model_is_not_silently_ignored():
    with pytest.raises(ValueError, match=r"weight_decay=0.004 has no effect on"):
        models.build("own_networks:good", seed=1, weight_decay=0.004)
