"""Two layouts agree if they hold the same variables in the same order, wherever they were built."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wbsp.tensors.layout import (
    TensorSpec,
    canonical_names,
    check_layout,
    difference,
    statistics,
)

many = settings(max_examples=3 * settings.default.max_examples)


def layout(*names):
    return [TensorSpec(name, (3, 3)) for name in names]


def vectors_of_three(names):
    return [TensorSpec(name, (3,)) for name in names]


@pytest.mark.parametrize("mine, theirs", [
    (["dense_7/kernel", "dense_7/bias", "dense_8/kernel"],
     ["dense/kernel", "dense/bias", "dense_1/kernel"]),
    (["dense_9/kernel", "dense_10/kernel"], ["dense/kernel", "dense_1/kernel"]),
    (["sequential_3/dense_4/kernel"], ["sequential/dense/kernel"]),
    (["mine/a/kernel", "mine/b/kernel"], ["yours/a/kernel", "yours/b/kernel"]),
    (["sequential/dense/kernel", "sequential/dense/bias"], ["dense_1/kernel", "dense_1/bias"]),
    (["model/a/kernel", "model/b/kernel"], ["a/kernel", "b/kernel"]),
    (["block_1/kernel", "block_2/kernel"], ["block_1/kernel", "block_2/kernel"]),
    (["block_2/kernel", "block_2_1/kernel"], ["block_2_5/kernel", "block_2_6/kernel"]),
    (["variable_4", "variable_5"], ["variable", "variable_1"]),
    (["kernel"], ["kernel_1"]),
    (["a//kernel_", "_7"], ["a//kernel_", "_9"]),
    (["scale", "scale"], ["scale_3", "scale_3"]),
    ([], []),
])
def test_other_models_of_a_process_do_not_change_the_names(mine, theirs):
    assert canonical_names(mine) == canonical_names(theirs)
    assert difference(layout(*mine), layout(*theirs)) is None


@pytest.mark.parametrize("mine, theirs", [
    (["b/kernel", "a/kernel"], ["a/kernel", "b/kernel"]),
    (["dense_1/kernel", "dense/kernel"], ["dense/kernel", "dense_1/kernel"]),
    (["dense_10/kernel", "dense_9/kernel"], ["dense/kernel", "dense_1/kernel"]),
    (["m/dense_1/kernel", "m/dense_2/kernel", "m/dense/kernel"],
     ["m/dense_5/kernel", "m/dense_6/kernel", "m/dense_7/kernel"]),
    (["block_2_1/kernel", "block_1_2/kernel"], ["block_1_2/kernel", "block_2_1/kernel"]),
])
def test_the_same_variables_in_another_order_are_a_difference(mine, theirs):
    words = re.escape(f"variable 0 is {mine[0]}[3, 3] here and {theirs[0]}[3, 3] there; both "
                      "have the same variables, but in another order, such as with other "
                      "`trainable` flags of layers")
    assert re.fullmatch(words, difference(layout(*mine), layout(*theirs)))


@pytest.mark.parametrize("mine, theirs, says", [
    ([("a/kernel", (3, 4))], [("a/kernel", (4, 3))],
     "variable 0 is a/kernel[3, 4] here and a/kernel[4, 3] there"),
    ([("a/kernel", (3,)), ("a/bias", ())], [("a/kernel", (3,)), ("a/scale", ())],
     "variable 1 is a/bias[] here and a/scale[] there"),
    ([("a/kernel", (3,))], [("a/kernel", (3,)), ("a/bias", ())],
     "1 variables here and 2 there"),
    ([("dense/kernel", (3,)), ("dense/bias", (3,))],
     [("dense/kernel", (3,)), ("dense_1/kernel", (3,))],
     "variable 1 is dense/bias[3] here and dense_1/kernel[3] there"),
])
def test_other_variables_are_named(mine, theirs, says):
    assert difference(*([TensorSpec(*spec) for spec in specs] for specs in (mine, theirs))) == says


def test_the_first_different_shape_is_named_in_models_of_different_lengths():
    mine = [TensorSpec("a", (3,)), TensorSpec("b", (3,))]
    theirs = [TensorSpec("a", (3,)), TensorSpec("b", (4,)), TensorSpec("c", ())]
    assert difference(mine, theirs) == (
        "2 variables here and 3 there; variable 1 is b[3] here and b[4] there")


def test_the_cost_of_a_name_is_linear_in_its_length():
    """Of 300 KB it was more than a server's hour; a hundredth of a second now."""
    for name in ("_0" * 150_000 + "x", "_0" * 150_000, "a/" * 150_000, "_" * 300_000,
                 "_" + "9" * 300_000):
        assert difference(layout(name, "b"), layout(name, "c"))
        assert len(canonical_names([name, name])) == 2


@pytest.mark.parametrize("spec, says", [
    (("x" * 1001, (4,)), "1,001 characters"), (("x", (1,) * 33), "33 dimensions"),
    (("x", (1 << 33, 2)), "17,179,869,184 float values"), (("x", (0,)), "0 float values"),
    (("x\n", (-4,)), r"'x\\n'")])
def test_a_layout_that_no_server_takes_is_refused_in_a_line(spec, says):
    with pytest.raises(ValueError, match=says) as error:
        check_layout([TensorSpec(*spec)])
    assert str(error.value).isprintable()


def test_a_shape_may_be_a_list():
    assert difference([TensorSpec("a", [3, 3])], [TensorSpec("a", (3, 3))]) is None


WORDS = st.sampled_from(["dense", "conv2d", "block_2", "kernel", "my_layer", "v2"])
TREES = st.recursive(st.none(), lambda children: st.lists(
    st.tuples(WORDS, children), min_size=1, max_size=4), max_leaves=12)


def built(tree, counters):
    """Paths of a tree of layers, each numbered as Keras does: by how many it has numbered."""
    if tree is None:
        return [[]]
    paths = []
    for word, inner in tree:
        number = counters.get(word, 0)
        counters[word] = number + 1
        name = f"{word}_{number}" if number else word
        paths += [[name, *path] for path in built(inner, counters)]
    return paths


def names_of(tree, before):
    return ["/".join(path) for path in built(tree, dict(before))]


@many
@given(TREES.filter(bool), st.dictionaries(WORDS, st.integers(0, 120)), st.randoms())
def test_one_builder_in_two_processes_makes_equal_lists_in_any_order(tree, before, random):
    here, there = names_of(tree, {}), names_of(tree, before)
    canonical = canonical_names(here)
    assert canonical == canonical_names(there)
    assert len(set(canonical)) == len(set(here)), "two names of one model never become one"
    order = random.sample(range(len(here)), len(here))
    shuffled = canonical_names([there[index] for index in order])
    assert shuffled == [canonical[index] for index in order]
    moved = difference(layout(*here), layout(*[there[index] for index in order]))
    assert (moved is None) == (shuffled == canonical)


@many
@given(st.lists(st.text("ab_/012", max_size=12), max_size=6))
def test_other_names_have_other_canonical_ones(names):
    canonical = canonical_names(names)
    assert len(set(zip(names, canonical, strict=True))) == len(set(names)) == len(set(canonical))


# What Keras makes of one builder, the first time in a process and later.

def functional(keras):
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(2, 3, activation="relu")(inputs)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Add()([keras.layers.Conv2D(2, 3, padding="same")(x), x])
    x = keras.layers.Dense(4)(keras.layers.Flatten()(x))
    return keras.Model(inputs, keras.layers.Dense(4)(x))


def nested(keras):
    def tower():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(4)])
    return keras.Sequential([keras.Input((4,)), tower(), keras.layers.Dense(4), tower()])


def named(keras):
    return keras.Sequential([keras.Input((4,)), *(
        keras.layers.Dense(4, name=f"block_{number}") for number in (1, 2)), keras.layers.Dense(4)])


def recurrent(keras):
    return keras.Sequential([
        keras.Input((5, 4)), keras.layers.GRU(3, return_sequences=True),
        keras.layers.Bidirectional(keras.layers.LSTM(3)), keras.layers.Dense(3)])


def attention(keras):
    inputs = keras.Input((5, 4))
    x = keras.layers.MultiHeadAttention(2, 4)(inputs, inputs)
    x = keras.layers.LayerNormalization()(keras.layers.MultiHeadAttention(2, 4)(x, x))
    return keras.Model(inputs, x)


def subclassed(keras):
    class Block(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.first, self.second = keras.layers.Dense(4), keras.layers.Dense(4)

        def build(self, shape):
            self.first.build(shape)
            self.second.build(shape)
            self.scale = self.add_weight(shape=(4,))

        def call(self, x):
            return self.scale * self.second(self.first(x))

    class Mine(keras.Model):
        def __init__(self):
            super().__init__()
            self.blocks = [Block(), Block()]

        def build(self, shape):
            for block in self.blocks:
                block.build(shape)

        def call(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    model = Mine()
    model.build((None, 4))
    return model


def specs(model):
    weights = [*model.trainable_weights, *model.non_trainable_weights]
    return [TensorSpec(v.path, tuple(v.shape)) for v in weights if "float" in v.dtype]


@pytest.mark.slow
@pytest.mark.parametrize("build", [functional, nested, named, recurrent, attention, subclassed])
def test_keras_models_of_one_builder_agree_and_frozen_ones_do_not(build):
    keras = pytest.importorskip("keras")
    import tensorflow as tf

    first = build(keras)
    for _ in range(9):  # the process builds something else
        keras.Sequential([keras.layers.Dense(4), keras.layers.LSTM(4)])
    with tf.distribute.OneDeviceStrategy("/cpu:0").scope():
        second = build(keras)
    third = build(keras)
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        fourth = build(keras)
    for model in (second, third, fourth):
        assert difference(specs(model), specs(first)) is None
    next(layer for layer in third.layers if layer.weights).trainable = False
    assert "in another order" in difference(specs(third), specs(first))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnn", "alexnet", "small"])
def test_the_projects_own_models_agree_wherever_they_are_built(name):
    import models

    assert difference(specs(models.build(name, 0)), specs(models.build(name, 1))) is None


@pytest.mark.parametrize(("names", "found"), [
    (["1.weight", "1.running_mean", "1.running_var", "2.weight"], [(3, 9)]),
    (["sequential/dense/kernel", "sequential/batch_normalization/moving_mean",
      "sequential/batch_normalization_1/moving_variance_1", "dense_1/bias"], [(3, 9)]),
    (["params/BatchNorm_0/scale", "batch_stats/BatchNorm_0/mean", "params/Dense_0/kernel"],
     [(3, 6)]),
    (["['batch_stats']['norm']['var']", "['bn.running_var']", "['w']"], [(0, 6)]),
    (["running_mean", "trunk.running/kernel", "fast_moving_kernel", "batch_stats"], [(0, 3)]),
    (["kernel", "bias"], [])])
def test_statistics_of_layers_are_known_by_their_names(names, found):
    assert [(at.start, at.stop) for at in statistics(vectors_of_three(names))] == found
