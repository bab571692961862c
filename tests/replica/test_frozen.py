"""Variables that a framework declares frozen, and those that a step is found to change."""

import numpy as np
import pytest

from wbsp.replica.frozen import Frozen
from wbsp.replica.model import KerasPart
from wbsp.replica.values import Values
from wbsp.tensors.frozen import FrozenValues

keras = pytest.importorskip("keras")
L = keras.layers


def base():
    return keras.Sequential([keras.Input((4,)), L.Dense(3, name="in"), L.BatchNormalization(),
                             L.Dense(2, name="out")], name="base")


def model(frozen=True):
    inner = base()
    inner.trainable = not frozen
    return keras.Sequential([keras.Input((4,)), inner, L.BatchNormalization(name="norm"),
                             L.Dense(1, name="head")])


def names(layout):
    return ["/".join(spec.name.split("/")[-2:]) for spec in layout]


def test_frozen_layers_are_not_in_the_vector_and_statistics_that_change_are():
    part = KerasPart(model())
    assert names(part.layout) == ["norm/gamma", "norm/beta", "head/kernel", "head/bias",
                                  "norm/moving_mean", "norm/moving_variance"]
    assert len(part.frozen) == 8, "the statistics of a BatchNormalization that is frozen too"
    assert len(KerasPart(model(frozen=False)).layout) == 14
    assert part.open().read().size == 1 * 4 * 2 + 3


def test_lora_leaves_the_kernel_out():
    one = keras.Sequential([keras.Input((4,)), L.Dense(3)])
    one.layers[0].enable_lora(1)
    part = KerasPart(one)
    assert names([held.spec for held in part.frozen]) == ["dense/kernel"] or len(part.frozen) == 1
    assert len(part.layout) == 3


def test_a_layers_own_state_travels_with_any_frozen_variables():
    class Counts(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x):
            self.seen.assign(self.seen + 1)
            return x

    one = keras.Sequential([keras.Input((4,)), Counts(), L.Dense(1)])
    one.trainable = False
    one.layers[-1].trainable = True
    assert len(KerasPart(one).layout) == 3


def test_a_changed_frozen_value_is_found_and_the_runs_values_are_adopted():
    values, other = Values(model()), Values(model())
    still, mine = values.frozen, other.frozen
    assert still.digest != mine.digest
    assert FrozenValues(still.layout, still.read()).digest == still.digest
    taken = mine.take(still.read())
    assert names(other.frozen.layout)[0] == "in/kernel" and len(taken) == 2  # kernels are drawn
    assert mine.digest == still.digest and not mine.take(still.read())
    other.check_first()
    inner = values.given.layers[0]
    inner.layers[0].bias.assign([1, 2, 3])
    with pytest.raises(ValueError, match="has changed base/in/bias, which is frozen") as found:
        values.check_first()
    assert "\n" not in str(found.value)
    (line,) = values.finish()
    assert "have changed base/in/bias, which is frozen" in line


def test_a_later_fit_trains_the_unfrozen_variables():
    one = model()
    assert len(Values(one).layout) == 6
    one.layers[0].trainable = True
    assert len(Values(one).layout) == 14 and not Frozen([KerasPart(one)]).layout


def test_several_models_of_which_one_is_frozen():
    still = base()
    still.trainable = False
    values = Values({"back": still, "head": model(frozen=False)})
    assert len(values.layout) == 14 and len(values.frozen.layout) == 8
    assert values.open().read().size == sum(np.prod(w.shape, dtype=int) for w
                                            in model(False).get_weights())
