"""Each layer of Keras with a state, trained by two workers (docs/reference/layers.md).

Two models take a step each on data of their own, and exchange what they have learnt, as under bsp,
on the back end that this process's Keras runs on.
"""

import os
import re

import numpy as np
import pytest
from jobs import ROOT

pytestmark = pytest.mark.slow  # a back end takes its seconds to start

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")
L = keras.layers
BACK_END = keras.backend.backend()
DOCS = (ROOT / "docs/reference/layers.md").read_text()


def image(*layers):
    return keras.Sequential([keras.Input((6, 6, 2)), *layers, L.Flatten(), L.Dense(1)])


def volume(layer):
    return keras.Sequential([keras.Input((3, 4, 4, 2)), layer, L.Flatten(), L.Dense(1)])


def film(layer):
    return keras.Sequential([keras.Input((2, 4, 4, 2)), layer, L.Flatten(), L.Dense(1)])


def long_film(layer):
    return keras.Sequential([keras.Input((2, 3, 4, 4, 2)), layer, L.Flatten(), L.Dense(1)])


def line(*layers):
    return keras.Sequential([keras.Input((6, 4)), *layers, L.Flatten(), L.Dense(1)])


def flat(*layers):
    return keras.Sequential([keras.Input((4,)), *layers, L.Dense(1)])


def attended(layer, together=False):
    """`together`: the layer takes a list."""
    x = keras.Input((6, 4))
    return keras.Model(x, L.Dense(1)(L.Flatten()(layer([x, x]) if together else layer(x, x))))


def words(layer):
    return keras.Sequential([keras.Input((6,), dtype="int32"), layer, L.Flatten(), L.Dense(1)])


def low_rank(layer):
    layer.enable_lora(2)
    return layer


def built(layer, *shape):
    layer.build((None, *shape))
    return layer


def quantized(layer, mode):
    layer.quantize(mode)
    return layer


def adapted():
    layer = L.Normalization()
    layer.adapt(np.random.default_rng(5).normal(3, 2, (64, 4)))
    return layer


# Layers whose variables take part as they are.
PLAIN = {
    "Dense": lambda: flat(L.Dense(3)),
    "EinsumDense": lambda: line(L.EinsumDense("abc,cd->abd", (6, 3), bias_axes="d")),
    "Embedding": lambda: words(L.Embedding(9, 3)),
    "Conv1D": lambda: line(L.Conv1D(2, 3)),
    "Conv1DTranspose": lambda: line(L.Conv1DTranspose(2, 3)),
    "SeparableConv1D": lambda: line(L.SeparableConv1D(2, 3)),
    "DepthwiseConv1D": lambda: line(L.DepthwiseConv1D(3)),
    "Conv2D": lambda: image(L.Conv2D(2, 3)),
    "Conv2DTranspose": lambda: image(L.Conv2DTranspose(2, 3)),
    "SeparableConv2D": lambda: image(L.SeparableConv2D(2, 3)),
    "DepthwiseConv2D": lambda: image(L.DepthwiseConv2D(3)),
    "Conv3D": lambda: volume(L.Conv3D(2, 2)),
    "Conv3DTranspose": lambda: volume(L.Conv3DTranspose(2, 2)),
    "SimpleRNN": lambda: line(L.SimpleRNN(3)),
    "LSTM": lambda: line(L.LSTM(3)),
    "GRU": lambda: line(L.GRU(3)),
    "ConvLSTM1D": lambda: keras.Sequential([
        keras.Input((2, 4, 2)), L.ConvLSTM1D(2, 2), L.Flatten(), L.Dense(1)]),
    "ConvLSTM2D": lambda: film(L.ConvLSTM2D(2, 2)),
    "ConvLSTM3D": lambda: long_film(L.ConvLSTM3D(1, 2)),
    "RNN": lambda: line(L.RNN(L.StackedRNNCells([
        L.SimpleRNNCell(2), L.GRUCell(2), L.LSTMCell(2)]))),
    "LSTM, with dropout": lambda: line(L.LSTM(2, dropout=0.5, recurrent_dropout=0.5)),
    "Bidirectional": lambda: line(L.Bidirectional(L.GRU(2))),
    "TimeDistributed": lambda: line(L.TimeDistributed(L.Dense(2))),
    "PReLU": lambda: flat(L.PReLU()),
    "Attention": lambda: attended(L.Attention(use_scale=True), True),
    "AdditiveAttention": lambda: attended(L.AdditiveAttention(), True),
    "MultiHeadAttention": lambda: attended(L.MultiHeadAttention(2, 2)),
    "GroupQueryAttention": lambda: attended(L.GroupQueryAttention(2, 2, 1)),
    "GroupNormalization": lambda: line(L.GroupNormalization(2)),
    "LayerNormalization": lambda: line(L.LayerNormalization()),
}
if hasattr(L, "RMSNormalization"):
    PLAIN["RMSNormalization"] = lambda: line(L.RMSNormalization())
if hasattr(L, "ReversibleEmbedding"):
    PLAIN["ReversibleEmbedding"] = lambda: words(L.ReversibleEmbedding(9, 3))
# Layers that have or change their variables in another way, and yet all of them take part.
OWN_WAY = {
    "BatchNormalization": lambda: line(L.BatchNormalization()),
    "BatchNormalization, renewed slowly": lambda: line(L.BatchNormalization(momentum=0.5)),
    "SpectralNormalization": lambda: flat(L.SpectralNormalization(L.Dense(3))),
    "Normalization": lambda: flat(adapted()),
    "Dense with enable_lora": lambda: flat(low_rank(built(L.Dense(3), 4))),
    "EinsumDense with enable_lora": lambda: line(low_rank(built(
        L.EinsumDense("abc,cd->abd", (6, 3)), 6, 4))),
    "Embedding with enable_lora": lambda: words(low_rank(built(L.Embedding(9, 3), 6))),
    "Dropout": lambda: flat(L.Dropout(0.5)),
    "SpatialDropout1D": lambda: line(L.SpatialDropout1D(0.5)),
    "AlphaDropout": lambda: flat(L.AlphaDropout(0.5)),
    "GaussianNoise": lambda: flat(L.GaussianNoise(0.5)),
    "GaussianDropout": lambda: flat(L.GaussianDropout(0.5)),
    "RandomFlip": lambda: image(L.RandomFlip()),
    "Lambda": lambda: flat(L.Lambda(lambda x: 2 * x)),
    "Dense of bfloat16": lambda: flat(L.Dense(3, dtype="bfloat16")),
    "Dense of mixed_bfloat16": lambda: flat(L.Dense(3, dtype="mixed_bfloat16")),
    "Dense of mixed_float16": lambda: flat(L.Dense(3, dtype="mixed_float16")),
    "an int8 kernel": lambda: flat(L.Dense(3), quantized(built(L.Dense(2), 3), "int8")),
    "frozen Dense": lambda: flat(L.Dense(3, trainable=False)),
}


def tied():
    shared = L.Dense(4)
    return flat(shared, L.Activation("relu"), shared)


def jax_layer():
    def apply(params, state, inputs, training):
        return inputs * params["gain"] + state["shift"], {"shift": state["shift"] + 1}

    return flat(L.JaxLayer(apply, params={"gain": np.ones(4, np.float32)},
                           state={"shift": np.zeros(4, np.float32)}))


def flax_layer():
    import flax.linen as nn
    return flat(L.FlaxLayer(nn.Dense(3)))


def torch_module():
    import torch
    torch.manual_seed(0)
    return flat(L.TorchModuleWrapper(torch.nn.Linear(4, 3), output_shape=(None, 3)))


OWN_WAY["one layer, used twice"] = tied
if BACK_END == "jax":
    OWN_WAY |= {"JaxLayer": jax_layer, "FlaxLayer": flax_layer}
if BACK_END == "torch":
    OWN_WAY["TorchModuleWrapper"] = torch_module


def made(make, seed, eager):
    """A compiled model, with initial values of its own."""
    keras.utils.set_random_seed(seed)
    model = make()
    optimizer = keras.optimizers.SGD(0.05)
    model.compile(optimizer, "mse", run_eagerly=eager, jit_compile=False)
    return model


def data(model, seed):
    draw = np.random.default_rng(seed)
    shape = (8, *model.input_shape[1:])
    integers = "int" in str(model.inputs[0].dtype)
    x = draw.integers(0, 9, shape) if integers else draw.normal(seed, 1 + seed, shape)
    return x.astype("int32" if integers else "float32"), draw.normal(size=(8, 1)).astype("float32")


def exchanged(make, eager=True):
    """Two models of two workers that have adopted W after a step of each, and W."""
    from wbsp.replica.frozen import Frozen
    from wbsp.replica.layers import derive
    from wbsp.replica.model import KerasPart, open_replica

    models = [made(make, seed, eager) for seed in range(2)]
    first, second = (Frozen([KerasPart(model)]) for model in models)
    second.take(first.read())
    replicas = [open_replica(model) for model in models]
    w = replicas[0].read().copy()
    for model, replica in zip(models, replicas, strict=True):
        replica.adopt(replica.bring(w.copy()), "replace")
        derive(model)
        assert not np.asarray(replica.cut()).any(), "a version is no progress"
    for seed, (model, replica) in enumerate(zip(models, replicas, strict=True)):
        model.train_on_batch(*data(model, seed))
        replica.stepped()
    updates = [np.array(replica.cut()) for replica in replicas]
    assert all(np.isfinite(update).all() and update.any() for update in updates)
    w = w + (updates[0] + updates[1]) / 2
    for model, replica in zip(models, replicas, strict=True):
        replica.adopt(replica.bring(w.copy()), "replace")
        derive(model)
    return models, w


def outputs(model, x):
    y = keras.ops.cast(model(x, training=False), "float32")
    return np.asarray(keras.ops.convert_to_numpy(y))


# Variables are variables on every back end; on the others, those that differ there.
ELSEWHERE = ("BatchNormalization", "Normalization", "Dropout", "Dense with enable_lora",
             "Dense of bfloat16", "JaxLayer", "FlaxLayer", "TorchModuleWrapper")
ROWS = PLAIN | OWN_WAY if BACK_END == "tensorflow" else {
    name: OWN_WAY[name] for name in ELSEWHERE if name in OWN_WAY}


@pytest.mark.parametrize("make", [
    pytest.param(make, id=name, marks=[pytest.mark.long] * (name in PLAIN))
    for name, make in ROWS.items()])
def test_two_workers_train_one_model_with_every_layer(make):
    (first, second), _ = exchanged(make)
    x, _ = data(first, 3)
    if make is OWN_WAY["an int8 kernel"]:  # no version carries it: such workers are not let in
        second.layers[1].kernel.assign(first.layers[1].kernel)
    assert np.allclose(outputs(first, x), outputs(second, x), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(BACK_END != "tensorflow", reason="Keras keeps no such state elsewhere")
def test_the_state_of_a_batch_is_each_workers_own():
    def make():
        return keras.Sequential([keras.Input((6, 4), batch_size=8), L.LSTM(3, stateful=True),
                                 L.Dense(1)])

    models, w = exchanged(make)
    assert w.size == sum(np.size(v) for v in models[0].get_weights()), "the state is no part of W"
    first, second = (keras.ops.convert_to_numpy(model.layers[0].states[0]) for model in models)
    assert np.any(first != second) and first.any()


def test_the_scales_of_float8_are_each_workers_own():
    def make():
        return flat(quantized(built(L.Dense(3), 4), "float8"))

    models, w = exchanged(make, eager=False)
    assert w.size == 4 * 3 + 3 + 3 + 1
    scales = [keras.ops.convert_to_numpy(model.layers[0].inputs_amax_history).max()
              for model in models]
    assert scales[0] != scales[1] and min(scales) > 0


def test_seeds_are_each_workers_own():
    models, _ = exchanged(OWN_WAY["Dropout"])
    first, second = (keras.ops.convert_to_numpy(model.layers[0].seed_generator.state)
                     for model in models)
    assert np.any(first != second)


@pytest.mark.skipif(BACK_END != "torch", reason="modules of PyTorch are for PyTorch")
def test_pytorch_buffers_stay_with_each_worker_and_a_line_reports_it():
    import torch

    from wbsp.replica.layers import remarks

    def make():
        return flat(L.TorchModuleWrapper(torch.nn.BatchNorm1d(4), output_shape=(None, 4)))

    models, w = exchanged(make)
    assert w.size == 4 + 4 + 4 + 1
    first, second = (model.layers[0].module.running_mean for model in models)
    assert torch.any(first != second)
    (remark,) = remarks(models[0])
    assert "torch_module_wrapper" in remark and "each worker keeps its own" in remark


@pytest.mark.skipif(BACK_END != "tensorflow", reason="these models are TensorFlow's")
def test_variables_of_a_saved_model_take_part(tmp_path):
    inner = flat()
    inner.export(tmp_path / "saved", verbose=False)

    def make():
        return flat(L.TFSMLayer(tmp_path / "saved", call_endpoint="serve"))

    (first, second), w = exchanged(make)
    x, _ = data(first, 3)
    assert w.size == 5 + 2 and np.allclose(outputs(first, x), outputs(second, x), atol=1e-5)


# Layers that have nothing that training or the data of a worker could change.
STATELESS = re.compile(
    r"Activation|ActivityRegularization|Layer|InputLayer|Identity|Masking|Wrapper|Pipeline|ReLU|"
    r"LeakyReLU|ELU|Softmax|UnitNormalization|Flatten|Permute|RepeatVector|Reshape|Dot|Add|Subtract|"
    r"Multiply|Maximum|Minimum|Average|Concatenate|MaxNumBoundingBoxes|Resizing|CenterCrop|"
    r"(Cropping|ZeroPadding|UpSampling)[123]D|"
    r"(Global|Adaptive)?(Average|Max|Avg)Pool(ing)?[123]D|"
    r"AutoContrast|Equalization|Solarization|ContrastLimitedAdaptiveHistogramEqualization")


def test_the_docs_name_every_layer_of_keras_with_a_state():
    named = set(re.findall(r"\w+", DOCS))
    layers = {layer.__name__ for layer in vars(L).values()
              if isinstance(layer, type) and issubclass(layer, L.Layer)}
    aliases = {"GroupedQueryAttention": "GroupQueryAttention"}
    missing = [name for name in sorted(layers) if not STATELESS.fullmatch(name)
               and aliases.get(name, name) not in named]
    assert not missing
