"""State of layers that no version carries, on the back end of this process's Keras."""

import importlib.util
import os

import numpy as np
import pytest

from wbsp.tensors.layout import STATES, other_state

pytestmark = pytest.mark.slow  # a back end takes its seconds to start

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")
L = keras.layers

DRAWN = np.random.default_rng(0).normal(3, 2, size=(64, 4)).astype(np.float32)
OTHER = np.random.default_rng(1).normal(30, 9, size=(64, 4)).astype(np.float32)
with_tensorflow = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None,
                                     reason="these layers of Keras need TensorFlow")


def adapted(layer, data):
    layer.adapt(data)
    return layer


class Assets(L.Layer):
    """As a tokenizer of keras_hub: it names the files that belong to its values."""

    def __init__(self, text):
        super().__init__()
        self.text = text

    def save_assets(self, folder):
        with open(os.path.join(folder, "words.txt"), "w") as file:
            file.write(self.text)

    def call(self, x):
        return x


class Saved(L.Layer):
    """As a layer that saves an array in addition to its variables."""

    def __init__(self, array):
        super().__init__()
        self.array = array

    def build(self, shape):
        self.gain = self.add_weight(shape=())

    def save_own_variables(self, store):
        super().save_own_variables(store)
        store["array"] = self.array

    def call(self, x):
        return self.gain * x


class Table(L.Layer):
    """Integers in a variable, and one that counts."""

    def __init__(self, values, count, dtype="int32"):
        super().__init__()
        self.values, self.first, self.type = values, count, dtype

    def build(self, shape):
        make = keras.initializers.Constant
        self.table = self.add_weight(shape=(4,), dtype=self.type, trainable=False, name="table",
                                     initializer=lambda shape, dtype=None:
                                     keras.ops.cast(np.array(self.values), dtype))
        self.count = self.add_weight(shape=(), dtype="int32", trainable=False,
                                     initializer=make(self.first))

    def call(self, x):
        return x


def quantized(seed):
    keras.utils.set_random_seed(seed)
    layer = L.Dense(3)
    layer.build((None, 4))
    layer.quantize("int8")
    return layer


# layer -> how it is made of one of two sources, the same for the same
LAYERS = {
    "Normalization": lambda k: L.Normalization(mean=[1.0, 2, 3, 4 + k], variance=4 * [1.0]),
    "Normalization, inverted": lambda k: L.Normalization(mean=1.0, variance=1.0, invert=bool(k)),
    "Rescaling": lambda k: L.Rescaling(1 / (255 + k)),
    "Discretization": lambda k: adapted(L.Discretization(num_bins=4), (DRAWN, OTHER)[k]),
    "Discretization, given": lambda k: L.Discretization(bin_boundaries=[0.0, 1.0 + k]),
    "Hashing": lambda k: L.Hashing(num_bins=8, salt=5 + k),
    "CategoryEncoding": lambda k: L.CategoryEncoding(4, output_mode=("count", "multi_hot")[k]),
    "StringLookup": lambda k: L.StringLookup(vocabulary=["a", "b", "cd"[k]]),
    "StringLookup, adapted": lambda k: adapted(L.StringLookup(), np.array(["a", "bc"[k]])),
    "IntegerLookup": lambda k: L.IntegerLookup(vocabulary=[3, 4 + k]),
    "TextVectorization": lambda k: adapted(L.TextVectorization(), np.array(["a b", "c d"])[:2 - k]),
    "TextVectorization, weights": lambda k: adapted(
        L.TextVectorization(output_mode="tf_idf"), np.array(["a b", ("a", "b")[k]])),
    "files": lambda k: Assets("ab"[k]),
    "an array": lambda k: Saved((DRAWN, OTHER)[k]),
    "an array of integers": lambda k: Saved(np.arange(5) * (1 + k)),
    "a variable of integers": lambda k: Table([1, 2, 3, 4 + k], 7),
    "a variable of bytes": lambda k: Table([1, 2, 3, 4 + k], 7, "uint8"),
    "a variable of truth": lambda k: Table([0, 1, 1, k], 7, "bool"),
    "an int8 kernel": quantized,
}


class Held(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.dense, self.held = L.Dense(1), {"in": [layer]}
        self.dense.build((None, 4))
        if not layer.built:
            layer.build((None, 4))
        self.built = True

    def call(self, x):
        return self.dense(self.held["in"][0](x))


def states(layer):
    from wbsp.replica.states import states as of
    return of(Held(layer))


ROWS = LAYERS if keras.backend.backend() == "tensorflow" else {name: LAYERS[name] for name in (
    "Normalization", "StringLookup, adapted", "an array", "a variable of truth", "an int8 kernel")}


@with_tensorflow
@pytest.mark.parametrize("make", ROWS.values(), ids=ROWS)
def test_changed_values_are_reported_and_equal_ones_are_not(make):
    first, again, other = states(make(0)), states(make(0)), states(make(1))
    assert first and other_state(again, first) is None
    found = other_state(other, first)
    assert found.partition(" ")[0] in ("layer", "variable") and "has other values than " in found


@with_tensorflow
def test_workers_on_all_back_ends_have_the_same_digests():
    words = states(LAYERS["StringLookup"](0)) + states(LAYERS["Rescaling"](0))
    assert [one.digest[:8] for one in words] == ["9be67a4a", "3c879cbf"]


def test_real_numbers_may_be_computed_in_another_order():
    mean = DRAWN.mean(0)
    first = states(L.Normalization(mean=mean, variance=DRAWN.var(0)))
    again = states(L.Normalization(mean=mean * np.float32(1 + 1e-7), variance=DRAWN.var(0)))
    assert again != first and other_state(again, first) is None
    swapped = states(L.Normalization(mean=mean[::-1], variance=DRAWN.var(0)))
    assert other_state(swapped, first)


def test_adapted_values_and_counters_are_not_compared():
    assert other_state(states(adapted(L.Normalization(), DRAWN)),
                       states(adapted(L.Normalization(), OTHER))) is None
    assert other_state(states(Table([1, 2, 3, 4], 7)), states(Table([1, 2, 3, 4], 9))) is None
    assert states(L.Dropout(0.5, seed=1)) == states(L.Dense(4)) == []


@with_tensorflow
def test_a_given_and_a_learnt_vocabulary_are_equal():
    given = states(L.StringLookup(vocabulary=["b", "a"]))
    learnt = states(adapted(L.StringLookup(), np.array(["a", "b", "b"])))
    assert other_state(given, learnt) is None


def test_a_layer_that_one_side_lacks_is_named():
    one, none = states(L.Hashing(4, name="here")), states(L.Dense(4))
    assert other_state(one, none) == "layer here is not in the run"
    assert other_state(none, one) == "layer here is missing"


def test_numbers_that_are_not_finite_can_be_sent():
    infinite = states(L.Discretization(bin_boundaries=[-np.inf, 0.0, np.inf]))
    assert np.isfinite(infinite[0].sums).all()
    assert other_state(infinite, states(L.Discretization(bin_boundaries=[0.0])))


def test_the_number_of_layer_states_is_bounded():
    from wbsp.replica.states import states as of

    def many(last):
        return of(keras.Sequential([keras.Input((1,)), *(
            L.Rescaling(1.0) for _ in range(STATES + 3)), L.Rescaling(last)]))

    assert len(many(1.0)) == STATES
    assert other_state(many(1.0), many(1.0)) is None and other_state(many(1.0), many(2.0))
