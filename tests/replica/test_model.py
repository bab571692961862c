"""A Keras model as a flat vector, on the back end that this process's Keras runs on."""

import importlib
import os

import numpy as np
import pytest

from wbsp.tensors.buffers import BufferPool

pytestmark = pytest.mark.slow  # a back end takes its seconds to start

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")


@pytest.fixture
def model():
    return keras.Sequential([
        keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=1),
        keras.layers.Dense(2)])


@pytest.fixture(params=["on a CPU", "on devices"])
def open_(request, monkeypatch):
    """Opens a model's replica; on devices: the CPU is treated as a GPU would be."""
    from wbsp.replica.flat import FlatReplica
    from wbsp.replica.layers import derive
    from wbsp.replica.model import open_replica

    name = keras.backend.backend()
    back_end = importlib.import_module(f"wbsp.replica.{name}")
    if name == "tensorflow":
        monkeypatch.setattr(back_end, "SMALL", 0)
        monkeypatch.setattr(back_end, "TOGETHER", 6)  # some by themselves, some not

    def on_devices(model):
        replica = open_replica(model)
        weights = [*model.trainable_weights, *model.non_trainable_weights]
        chosen = [v for v in weights if "float" in v.dtype]
        if name == "tensorflow":
            import tensorflow as tf
            variables = back_end.OnDevices([v.value for v in chosen], replica.layout,
                                           tf.distribute.get_strategy())
        elif name == "torch":
            variables = back_end.OnDevices([back_end.same(v.value) for v in chosen],
                                           replica.layout)
        else:
            variables = back_end.OnDevices(chosen, replica.layout)
        return FlatReplica(variables, replica.layout, replica._rounds, lambda: derive(model))

    return on_devices if request.param == "on devices" else open_replica


@pytest.fixture
def replica(model, open_):
    return open_(model)


def test_trainable_first_then_statistics_and_nothing_else(model, replica):
    model.compile("adam", "mse", metrics=["mae"])
    names = [spec.name.rpartition("/")[2] for spec in replica.layout]
    assert names == ["gamma", "beta", "kernel", "bias", "moving_mean", "moving_variance"]
    assert [spec.shape for spec in replica.layout] == [(3,), (3,), (3, 2), (2,), (3,), (3,)]
    assert any("seed" in v.path for v in model.variables), "Dropout has integers of its own"
    expected = np.concatenate([value(v).ravel() for v in (
        *model.trainable_weights, *model.layers[0].non_trainable_weights)])
    assert replica.read().dtype == np.float32
    assert np.array_equal(replica.read(), expected)


def test_adopt_writes_every_variable(model, replica):
    vector = np.arange(20, dtype=np.float32)
    adopt(replica, vector, "replace")
    norm, _, dense = model.layers
    assert np.array_equal(value(dense.kernel), [[6, 7], [8, 9], [10, 11]])
    assert np.array_equal(value(norm.moving_variance), [17, 18, 19])
    assert replica.read().tobytes() == vector.tobytes()


def test_an_adopted_vector_is_independent_of_the_model(model, replica):
    memory = np.zeros(20 + 16, np.float32)
    start = -memory.ctypes.data // 4 % 16
    vector = memory[start:start + 20]
    assert vector.ctypes.data % 64 == 0, "as some back ends like to have it, to take it as it is"
    adopt(replica, vector, "replace")
    move(model, replica, 1)
    cut(replica)
    vector[:] = 7
    assert np.array_equal(value(model.layers[0].gamma), np.zeros(3))


def test_an_adopted_vector_is_independent_of_a_model_of_one_variable(open_):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, use_bias=False)])
    replica = open_(model)
    memory = np.zeros(16 + 16, np.float32)
    start = -memory.ctypes.data // 4 % 16
    vector = memory[start:start + 16]
    replica.adopt(replica.bring(vector), "replace")
    assert np.array_equal(np.asarray(replica.cut()), np.zeros(16))
    kernel = model.layers[0].kernel
    before = value(kernel).copy()
    vector[:] = 7
    assert np.array_equal(value(kernel), before)


def test_cut_takes_the_progress_since_the_last_cut_or_adoption(model, replica):
    adopt(replica, np.arange(20, dtype=np.float32), "replace")
    move(model, replica, 2)
    assert np.array_equal(cut(replica), moved(2))
    assert np.array_equal(cut(replica), moved(0)), "a cut begins anew"
    move(model, replica, 3)
    move(model, replica, 4)
    assert np.array_equal(cut(replica), moved(7))
    assert np.array_equal(replica.read(), np.arange(20) + moved(9))


def test_an_update_stays_what_it_is_while_training_continues(model, replica):
    adopt(replica, np.zeros(20, np.float32), "replace")
    move(model, replica, 2)
    first = replica.cut()
    move(model, replica, 3)
    second = replica.cut()
    adopt(replica, np.ones(20, np.float32), "rebase")
    move(model, replica, 4)
    assert np.array_equal(first, moved(2)) and np.array_equal(second, moved(3))
    assert np.array_equal(cut(replica), moved(4))


def test_rebase_keeps_the_progress_and_replace_does_not(model, replica):
    adopt(replica, np.zeros(20, np.float32), "replace")
    move(model, replica, 2)
    adopt(replica, np.full(20, 100, np.float32), "rebase")
    assert np.array_equal(replica.read(), 100 + moved(2))
    assert np.array_equal(value(model.layers[2].bias), [102, 102])
    move(model, replica, 1)
    assert np.array_equal(cut(replica), moved(3)), "the progress is uncut still"
    move(model, replica, 5)
    adopt(replica, np.full(20, 7, np.float32), "replace")
    assert np.array_equal(replica.read(), np.full(20, 7))
    assert np.array_equal(cut(replica), moved(0))


@pytest.mark.parametrize("how", ["cut", "replace", "rebase"])
def test_writes_while_x_is_held_are_not_progress(model, replica, how):
    adopt(replica, np.zeros(20, np.float32), "replace")
    move(model, replica, 2)
    replica.hold()
    model.set_weights([np.full(w.shape, 50, w.dtype) for w in model.get_weights()])
    if how == "cut":
        assert np.array_equal(cut(replica), moved(2))
        assert np.array_equal(cut(replica), moved(0))
    else:
        adopt(replica, np.full(20, 10, np.float32), how)
        kept = moved(2) if how == "rebase" else moved(0)
        assert np.array_equal(replica.read(), 10 + kept)
        assert np.array_equal(value(model.layers[2].bias), 10 + kept[12:14])
        assert np.array_equal(cut(replica), kept)


def test_foreign_writes_are_undone_and_reported_unless_they_are_rounding(model, replica):
    adopt(replica, np.arange(20, dtype=np.float32), "replace")
    assert not replica.put_back()
    bias = model.layers[2].bias
    bias.assign(bias + np.float32(1e-5))  # of 19
    assert not replica.put_back() and np.array_equal(replica.read(), np.arange(20))
    assert np.array_equal(value(bias), [12, 13])
    bias.assign(np.array([12, np.nan], np.float32))
    assert replica.put_back() and np.array_equal(value(bias), [12, 13])
    move(model, replica, 1)
    assert not replica.put_back(), "what a step has done stays"
    assert np.array_equal(cut(replica), moved(1))
    bias.assign(2 * bias)
    assert replica.put_back(), "a cut is of what is known from there on"


def test_a_model_that_is_not_finite_is_restored_too(model, replica):
    vector = np.arange(20, dtype=np.float32)
    vector[3], vector[4] = np.nan, np.inf
    adopt(replica, vector, "replace")
    assert not replica.put_back()
    model.layers[2].bias.assign(np.zeros(2, np.float32))
    assert replica.put_back() and np.array_equal(replica.read(), vector, equal_nan=True)


def test_a_step_ends_the_hold(model, replica):
    adopt(replica, np.zeros(20, np.float32), "replace")
    replica.hold()
    move(model, replica, 2)
    assert np.array_equal(cut(replica), moved(2))


def test_a_read_only_version_is_never_written_to(model, replica):
    vector = np.zeros(20, np.float32)
    vector.flags.writeable = False
    adopt(replica, vector, "replace")
    move(model, replica, 1)
    update = cut(replica)
    assert not vector.any() and np.array_equal(update, moved(1))


def test_the_numbers_of_a_rebase_are_those_of_one_formula(model, replica):
    """x = W + (x - anchor), rounded after each operation, on every back end."""
    draw = np.random.default_rng(0)
    anchor, x, w = draw.normal(size=(3, 20)).astype(np.float32)
    adopt(replica, anchor.copy(), "replace")
    adopt(replica, x.copy(), "replace")
    adopt(replica, anchor.copy(), "replace")
    model.layers[2].bias.assign(x[12:14])
    replica.stepped()
    adopt(replica, w.copy(), "rebase")
    expected = (w + (x - anchor))[12:14]
    assert value(model.layers[2].bias).tobytes() == expected.tobytes()
    assert cut(replica)[12:14].tobytes() == (expected - w[12:14]).tobytes()
    assert not cut(replica).any()


def test_half_precision_variables_take_part_as_float32(open_):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="float16")])
    replica = open_(model)
    adopt(replica, np.array([0.5, 0.25, 2], np.float32), "replace")
    assert value(model.layers[0].kernel).dtype == np.float16
    replica.stepped()
    assert np.array_equal(replica.read(), np.array([0.5, 0.25, 2], np.float32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounding_of_a_version_to_a_variable_is_not_progress(open_, dtype):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, dtype=dtype)])
    replica = open_(model)
    w = np.random.default_rng(0).normal(size=16).astype(np.float32)
    adopt(replica, w, "replace")
    assert not cut(replica).any() and np.any(replica.read() != w)
    bias = model.layers[0].bias
    for how in ("rebase", "rebase", "replace"):
        bias.assign(bias + 1)
        replica.stepped()
        adopt(replica, w, how)
        if how == "rebase":
            progress = cut(replica)
            assert not progress[:12].any() and np.allclose(progress[12:], 1, atol=0.01)
        assert not cut(replica).any()


def test_scalars_and_variables_without_values_take_part(open_):
    class Odd(keras.layers.Layer):
        def build(self, shape):
            self.none = self.add_weight(shape=(0, 3), name="none of it")
            self.one = self.add_weight(shape=(), name="a \"scalar\" é", initializer="ones")
            self.twice = self.one

        def call(self, x):
            return x * self.one

    model = keras.Sequential([keras.Input((3,)), Odd()])
    replica = open_(model)
    assert [spec.shape for spec in replica.layout] == [(0, 3), ()]
    adopt(replica, np.float32([3]), "replace")
    model.layers[0].one.assign(5.0)
    replica.stepped()
    assert cut(replica).tolist() == [2] and float(value(model.layers[0].twice)) == 5


def test_a_model_that_is_not_built_is_refused(open_):
    model = keras.Sequential([keras.layers.Dense(2)], name="later")
    with pytest.raises(ValueError, match="later has no variables yet, .*; call the model on a b"):
        open_(model)


def test_a_model_without_variables_of_floats_is_refused(open_):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Flatten()], name="flat")
    with pytest.raises(ValueError, match="model flat has no variables of floats: there is nothing"):
        open_(model)


def test_a_large_model_needs_two_further_vectors_however_often_it_cuts():
    from wbsp.replica.model import open_replica

    class CountingPool(BufferPool):
        """Notes each vector that it makes."""

        def take(self, size):
            before = len(self._vectors)
            vector = super().take(size)
            made.append(vector.nbytes) if len(self._vectors) > before else None
            return vector

    made = []
    model = keras.Sequential([keras.Input((300,)), keras.layers.Dense(300)])
    replica = open_replica(model, CountingPool())
    for _ in range(5):
        model.layers[0].bias.assign(value(model.layers[0].bias) + 1)
        replica.stepped()
        update = replica.cut()
        assert np.asarray(update).sum() == 300
        del update
    assert len(made) == 2, "the anchor, and the update that is on its way"


def value(variable):
    return np.asarray(keras.ops.convert_to_numpy(variable))


def adopt(replica, vector, how):
    replica.adopt(replica.bring(vector), how)


def cut(replica):
    return np.asarray(replica.cut())


def move(model, replica, k):
    """A step: k is added to the layer Dense and to the moving mean."""
    for variable in (*model.layers[2].weights, model.layers[0].moving_mean):
        variable.assign(value(variable) + np.full(variable.shape, k, np.float32))
    replica.stepped()


def moved(k):
    """The update that `move` by k makes; gamma, beta, kernel, bias, mean, variance."""
    return np.repeat(np.float32([0, k, 0]), [6, 11, 3])


class Late(keras.Model):
    """Without an Input layer; `late`: a layer that only a step builds."""

    def __init__(self, late=False):
        super().__init__(name="late")
        self.first, self.second, self.late = keras.layers.Dense(2), keras.layers.Dense(1), late

    def call(self, inputs, training=False):
        x = self.first(inputs)
        return self.second(x) if training or not self.late else x


def test_the_advice_for_a_model_that_is_not_built_works(open_):
    model = Late()
    for _ in range(2):
        with pytest.raises(ValueError, match="late has no variables yet, .*; call the model on a"):
            open_(model)
        model.build((None, 3))  # does not build the layers in it
    model(np.zeros((1, 3), np.float32))
    assert len(open_(model).layout) == 4


def test_variables_that_the_first_step_makes_are_refused_after_it(open_):
    from wbsp.replica.model import check_whole

    model = Late(late=True)
    model(np.zeros((1, 3), np.float32))
    layout = open_(model).layout
    check_whole(model, layout)
    model(np.zeros((1, 3), np.float32), training=True)
    with pytest.raises(ValueError, match="the first step has created variable .*dense.* and 1 "
                                         "more, which the other workers do not have"):
        check_whole(model, layout)


@pytest.mark.parametrize("layer, optimizer, known", [
    ("Dropout", {}, True), ("BatchNormalization", {}, False), ("Dropout", {"momentum": 0.9}, False),
    ("Dropout", {"clipnorm": 1.0}, False), ("Dropout", {"weight_decay": 0.1}, False)])
def test_updates_of_plain_sgd_without_statistics_are_sums_of_gradients(layer, optimizer, known):
    from wbsp.replica.model import sums_gradients

    options = {"rate": 0.5} if layer == "Dropout" else {}
    model = keras.Sequential([keras.Input((3,)), getattr(keras.layers, layer)(**options),
                              keras.layers.Dense(2)])
    assert not sums_gradients(model), "not compiled"
    model.compile(keras.optimizers.SGD(0.1, **optimizer), "mse")
    assert sums_gradients(model) == known
    model.compile("adam", "mse")
    assert not sums_gradients(model)
