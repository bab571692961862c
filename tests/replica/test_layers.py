"""State of layers outside the flat vector, on the back end that this process's Keras runs on."""

import os

import numpy as np
import pytest

pytestmark = pytest.mark.slow  # a back end takes its seconds to start

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")

X = np.random.default_rng(0).normal(3, 2, size=(64, 4)).astype(np.float32)
Y = X.sum(1, keepdims=True)


@pytest.fixture
def said():
    return []


@pytest.fixture
def ends(said):
    """Ends a fit: the final version has these values, or is what the model has."""
    from wbsp.replica.layers import finalize
    from wbsp.replica.model import open_replica

    def end(model, final=None, steps=8):
        if final is not None:
            replica = open_replica(model)
            replica.adopt(replica.bring(final), "replace")
        finalize(model, steps > 0, True, said.append)

    return end


def normal():
    layer = keras.layers.Normalization()
    layer.adapt(X)
    return layer


class Held(keras.Model):
    """A user's own model, with a layer in a list and one in a dict."""

    def __init__(self, layer):
        super().__init__()
        self.some, self.others = [keras.layers.Dense(1)], {"first": layer}

    def build(self, shape):
        self.some[0].build(shape)

    def call(self, x):
        return self.some[0](self.others["first"](x))


class Wrapped(keras.layers.Layer):
    def __init__(self, layer):
        super().__init__()
        self.inner = layer

    def call(self, x):
        return self.inner(x)


def held(layer):
    model = Held(layer)
    model.build((None, 4))
    return model


def stacked(*layers):
    return keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])


def submodel(layer):
    x = keras.Input((4,))
    return stacked(keras.Model(x, keras.layers.Dense(4)(layer(x))))


PLACES = {
    "in the model": stacked,
    "in a model in it": submodel,
    "in a layer of Keras": lambda layer: stacked(keras.layers.Pipeline([layer])),
    "in a layer in a layer": lambda layer: stacked(Wrapped(keras.layers.Pipeline([layer]))),
    "in a list or dict": held,
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_normalization_computes_with_the_values_of_its_variables(place):
    from wbsp.replica.layers import derive

    layer = normal()
    model = place(layer)
    before = model.predict(X, verbose=0)  # compiled with the constants of `adapt`
    layer.adapt_mean.assign(np.zeros(4))
    layer.adapt_variance.assign(np.ones(4))
    derive(model)
    after = model.predict(X, verbose=0)
    assert not np.allclose(before, after)
    other = keras.layers.Normalization()
    other.build((None, 4))
    fresh = place(other)
    fresh.set_weights(model.get_weights())
    derive(fresh)
    assert np.allclose(after, fresh.predict(X, verbose=0), atol=1e-5)


def test_a_normalization_built_in_a_graph_is_supported():
    from wbsp.replica.layers import derive, statistics

    layer = keras.layers.Normalization()
    model = stacked(keras.layers.Pipeline([layer]))
    assert not statistics(model)
    layer.adapt_mean.assign(np.full(4, 3.0))
    derive(model)
    assert np.array_equal(keras.ops.convert_to_numpy(layer.mean).ravel(), 4 * [3])


def test_a_normalization_adapted_to_other_data_is_found():
    from wbsp.replica.layers import statistics

    layer = normal()
    model = stacked(Wrapped(layer), keras.layers.Normalization())
    (found,) = statistics(model)  # the other layer was not adapted
    assert found.layer is layer and not found.differ
    mean = found.mean.copy()
    layer.adapt_mean.assign(mean * (1 + 1e-6))  # computed elsewhere, of the same data
    assert not found.differ
    layer.adapt_mean.assign(mean + [0, 0, 0.1, 0])
    assert found.differ
    layer.adapt_mean.assign(mean)
    layer.adapt_variance.assign(2 * found.variance)
    assert found.differ


@pytest.mark.parametrize("wrap", [lambda sgd: sgd, keras.optimizers.LossScaleOptimizer],
                         ids=["plain", "wrapped"])
def test_fit_leaves_the_averages_of_an_optimizer_that_makes_some(ends, said, wrap):
    model = stacked()
    sgd = keras.optimizers.SGD(0.01, use_ema=True, ema_momentum=0.9)
    model.compile(wrap(sgd), "mse")
    model.fit(X, Y, batch_size=8, epochs=2, verbose=0)
    averages = model.get_weights()
    ends(model, np.full(5, 7, np.float32))
    assert all(map(np.allclose, averages, model.get_weights()))
    assert len(said) == 1 and "the optimizer has use_ema: fit leaves the aver" in said[0]


def test_without_a_step_no_averages_exist(ends, said):
    model = stacked()
    model.compile(keras.optimizers.SGD(0.01, use_ema=True), "mse")
    ends(model, np.full(5, 7, np.float32), steps=0)
    assert not said and np.all(model.get_weights()[0] == 7)


def test_constraints_are_applied_to_the_final_version(ends, said):
    model = stacked(keras.layers.Dense(3, kernel_constraint="non_neg", use_bias=False))
    model.compile(keras.optimizers.SGD(0.01), "mse")
    final = np.arange(16, dtype=np.float32) - 4
    ends(model, final)
    kernel, rest, bias = model.get_weights()
    assert kernel.ravel().tolist() == [0, 0, 0, 0, *range(8)]
    assert rest.ravel().tolist() == [8, 9, 10] and bias.tolist() == [11]
    assert len(said) == 1 and "the final version breaks the constraint of " in said[0]
    assert "kernel, because versions are sums" in said[0]


@pytest.mark.parametrize("constraint", ["non_neg", keras.constraints.MaxNorm(2.0),
                                        keras.constraints.UnitNorm()],
                         ids=["non_neg", "max_norm", "unit_norm"])
def test_a_constraint_that_holds_is_left_alone(ends, said, constraint):
    model = stacked(keras.layers.Dense(3, kernel_constraint=constraint))
    model.layers[0].kernel.assign(model.layers[0].kernel.constraint(np.ones((4, 3), np.float32)))
    before = model.get_weights()
    ends(model)
    assert not said
    assert all(a.tobytes() == b.tobytes() for a, b in zip(before, model.get_weights(), strict=True))


class Spectral(keras.layers.Layer):
    def __init__(self, trainable_gain):
        super().__init__()
        self.of_gain = trainable_gain

    def build(self, shape):
        self.gain = self.add_weight(shape=(4,), dtype="complex64", name="gain",
                                    trainable=self.of_gain, initializer=lambda shape, dtype=None:
                                    keras.ops.cast(keras.ops.ones(shape), dtype))

    def call(self, x):
        return keras.ops.real(keras.ops.cast(x, "complex64") * self.gain)


def test_complex_variables_are_refused_if_trained_and_reported_otherwise():
    from wbsp.replica.layers import remarks
    from wbsp.replica.model import open_replica

    with pytest.raises(ValueError, match="^variable .*gain is complex64, but wbsp trains real"):
        open_replica(stacked(Spectral(True)))
    model = stacked(Spectral(False))
    assert len(open_replica(model).layout) == 2
    (remark,) = remarks(model)
    assert "gain is complex: each worker keeps its own values" in remark


def test_a_line_reports_that_versions_of_float64_are_float32():
    from wbsp.replica.layers import remarks

    model = stacked(keras.layers.Dense(3, dtype="float64"))
    (remark,) = remarks(model)
    assert "/kernel and 1 more are float64, but versions are float32" in remark
    assert not list(remarks(stacked()))


def test_the_scales_of_a_float8_layer_are_each_workers_own():
    from wbsp.replica.model import open_replica

    model = stacked()
    before = open_replica(model).layout
    model.layers[-1].quantize("float8")
    assert open_replica(model).layout == before
