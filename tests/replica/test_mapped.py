"""Variables under the names, and with the axes, of another framework."""

import numpy as np
import pytest
import tensorflow as tf

from wbsp.replica.values import Values
from wbsp.tensors.layout import TensorSpec

NAMES = {"fc/bias": "b", "conv/kernel": ("a", (2, 0, 1))}


@pytest.fixture
def variables():
    return {"a": tf.Variable(np.arange(24.0, dtype="float32").reshape(2, 3, 4)),
            "b": tf.Variable([100.0, 200.0])}


def test_a_vector_is_in_the_runs_order(variables):
    values = Values(variables, names=NAMES)
    assert values.layout == [TensorSpec("fc/bias", (2,)), TensorSpec("conv/kernel", (4, 2, 3))]
    assert values.states() is None
    replica = values.open()
    kernel = variables["a"].numpy().transpose(2, 0, 1)
    assert replica.read().tolist() == [100.0, 200.0, *kernel.reshape(-1)]


@pytest.mark.parametrize("how", ["replace", "rebase"])
def test_versions_and_updates_travel_as_the_run_has_them(variables, how):
    replica = Values(variables, names=NAMES).open()
    before = replica.read().copy()
    variables["a"].assign_add(np.full((2, 3, 4), 0.5, "float32"))
    replica.stepped()
    version = np.arange(26, dtype=np.float32)
    replica.adopt(replica.bring(version.copy()), how)
    step = np.array([0] * 2 + [0.5] * 24, np.float32) if how == "rebase" else 0
    assert np.array_equal(replica.read(), version + step) and not np.array_equal(before, version)
    expected = (version[2:].reshape(4, 2, 3) + (0.5 if how == "rebase" else 0)).transpose(1, 2, 0)
    assert np.array_equal(variables["a"].numpy(), expected)
    assert variables["b"].numpy().tolist() == [0.0, 1.0]
    variables["b"].assign([7.0, 7.0])
    replica.stepped()
    update = np.asarray(replica.cut())
    assert np.array_equal(update, np.array([7, 6, *[0] * 24], np.float32) + step)


@pytest.mark.parametrize("names, words", [
    ({"x": "b"}, "names= lacks a: give each variable a name of the run"),
    ({"x": "c", "y": "a", "z": "b"}, "names={'x': 'c'}: there is no variable 'c'; there are: a, b"),
    ({"x": "a", "y": "a", "z": "b"}, "names={'y': 'a'}: 'a' is named twice"),
    ({"x": ("a", (0, 1)), "z": "b"}, "a is of shape (2, 3, 4); give each of its axes, [0, 1, 2], "
                                     "once"),
])
def test_a_map_that_is_not_whole_is_refused_in_one_line(variables, names, words):
    with pytest.raises(ValueError) as refused:
        Values(variables, names=names)
    assert words in str(refused.value) and "\n" not in str(refused.value)


def test_frozen_variables_are_not_renamed(variables):
    with pytest.raises(ValueError, match="^names= names only variables that are .*, but b is fr"):
        Values(variables, frozen=["b"], names={"x": "a"})
