"""What a worker of any loop trains, as one flat vector: tf.Variables, pytrees of JAX, and several
kinds together; modules of PyTorch are in `torch_modules.py`."""

import numpy as np
import pytest
from back_ends import ON_TORCH
from jobs import ROOT

from wbsp.replica.base import Held, Part
from wbsp.replica.values import Values, _difference
from wbsp.tensors.layout import TensorSpec

F32 = np.float32


def names(values):
    return [spec.name for spec in values.layout]


def adopt(replica, vector, how="replace"):
    replica.adopt(replica.bring(np.asarray(vector, F32)), how)


def update(replica):
    replica.stepped()
    return np.array(replica.cut())


@ON_TORCH
def test_modules_of_pytorch(jobs):
    """In a process of its own: what torch.compile brings cannot be where TensorFlow is."""
    job = jobs.start("pytest", "-m", "pytest", "-q", "-p", "no:cacheprovider",
                     f"--basetemp={jobs.folder / 'inner'}", ROOT / "tests/replica/torch_modules.py")
    job.ends_well()
    assert job.find(r"^\d\d passed")


def test_variables_of_tensorflow_are_named_by_their_place():
    tf = pytest.importorskip("tensorflow")
    kernel, bias, count = tf.Variable([[1.0, 2.0]]), tf.Variable([3.0]), tf.Variable(7)
    values = Values({"dense": [kernel, bias], "count": count, "again": kernel})
    assert names(values) == ["dense/0", "dense/1"]
    replica = values.open()
    assert np.array_equal(replica.read(), [1, 2, 3])
    adopt(replica, [4, 5, 6])
    bias.assign_add([0.5])
    assert np.array_equal(update(replica), [0, 0, 0.5])
    assert np.array_equal(kernel, [[4, 5]]) and count.numpy() == 7
    with pytest.raises(ValueError, match="shape .None,.*whose shape is known"):
        Values([tf.Variable([1.0], shape=[None])])


def test_a_module_of_tensorflow_is_its_variables_but_not_keras_s():
    tf = pytest.importorskip("tensorflow")
    import keras

    class Own(tf.Module):
        def __init__(self):
            self.w = tf.Variable([1.0, 2.0])
            self.inner = None

    own = Own()
    assert names(Values(own)) == ["0"]
    own.inner = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="inner is of Keras, but a tf.Module does not list"):
        Values(own)
    values = Values({"own": [own.w], "inner": own.inner})
    assert names(values)[0].startswith("inner/") and names(values)[-1] == "own/0"
    with pytest.raises(ValueError, match="a variable of Keras: give the model"):
        Values(own.inner.trainable_variables)


def test_a_pytree_is_never_written_to_and_returned_unchanged_without_a_version():
    jnp = pytest.importorskip("jax.numpy")
    tree = {"b": (jnp.ones(2), None), "a": jnp.zeros((1, 2), jnp.bfloat16), "n": jnp.arange(3)}
    values = Values(tree)
    assert names(values) == ["a", "b/0"] and values.given is tree
    replica = values.open()
    adopt(replica, [1 + 2.0**-10, 2, 3, 4])
    assert not update(replica).any()
    given = values.given
    assert np.array_equal(given["a"], [[1, 2]]) and given["a"].dtype == jnp.bfloat16
    assert np.array_equal(given["b"][0], [3, 4]) and given["n"] is tree["n"]
    assert np.array_equal(tree["b"][0], [1, 1])
    moved = {**given, "b": (given["b"][0] + 1, None)}
    values.take(moved)
    assert np.array_equal(update(replica), [0, 0, 1, 1])
    assert values.given is moved


@pytest.mark.parametrize("change, line", [
    (lambda tree: None, "params = w.step.loss, params"),
    (lambda tree: {"a": tree["a"], "n": tree["n"]},
     "began with: b was removed; give it the pytree that the step"),
    (lambda tree: {**tree, "c": tree["b"], "d": tree["b"]}, "c and 1 more were added"),
    (lambda tree: {"a": tree["a"], "c": tree["b"], "n": tree["n"]},
     "b was removed and c was added"),
    (lambda tree: [*tree.values()], "a and 2 more were removed and 0 and 2 more were added"),
    (lambda tree: {**tree, "b": tree["b"].astype("bfloat16")},
     "b is bfloat16 now, but was float32"),
    (lambda tree: {**tree, "n": tree["n"] * 0.5}, "n holds float32 now, but held no floats"),
    (lambda tree: {**tree, "b": tree["b"][:1]}, r"b has shape \(1,\) now, but had \(2,\)")])
def test_another_pytree_is_refused_in_one_line(change, line):
    jnp = pytest.importorskip("jax.numpy")
    tree = {"a": jnp.zeros(1), "b": jnp.zeros(2), "n": jnp.arange(2)}
    values = Values(tree)
    with pytest.raises(ValueError, match=line) as error:
        values.take(change(tree))
    assert "\n" not in str(error.value)


def test_a_pytree_other_than_the_adopted_version_is_refused():
    jnp = pytest.importorskip("jax.numpy")
    tree = {"w": jnp.zeros(3)}
    values = Values(tree)
    adopt(values.open(), [1, 2, 3])
    with pytest.raises(ValueError, match="take params = w.values at the beginning"):
        values.take(tree)
    values.take(values.given)


def test_donated_arrays_are_reported():
    jax = pytest.importorskip("jax")
    values = Values({"w": jax.numpy.zeros(3)})
    replica = values.open()
    jax.jit(lambda w: w + 1, donate_argnums=0)(values.given["w"])
    replica.stepped()
    with pytest.raises(ValueError, match="w was donated to a step after"):
        update(replica)


def test_variables_that_the_user_replaces_inside_the_block_are_named():
    tf = pytest.importorskip("tensorflow")
    given = {"w": tf.Variable([1.0]), "b": [tf.Variable(2.0)]}
    values = Values(given)
    values.check()
    given["b"][0] = tf.Variable(3.0)
    given["c"] = tf.Variable(4)  # not of floats: each worker's own in any case
    with pytest.raises(ValueError, match="^b/0 was replaced by another variable inside the block:"):
        values.check()


def test_a_variable_moved_to_another_device_is_named_unless_it_returned():
    part, it = Part([]), object()
    here, there = (Held(TensorSpec("w", (2,)), "float32", it, device=device)
                   for device in ("cpu", "cuda:0"))
    assert _difference(part, here, there) == "was moved from cpu to cuda:0"
    assert _difference(part, there, here) is None and _difference(part, here, here) is None


def test_a_layer_that_a_keras_model_is_given_inside_the_block_is_named():
    pytest.importorskip("tensorflow")
    import keras

    def network():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="body"),
                                 keras.layers.Dense(3, name="head")])

    model = network()
    values = Values({"net": model})
    values.check()
    model.pop()
    with pytest.raises(ValueError, match="^net/.*head/kernel was removed from the model inside"):
        values.check()
    model.add(keras.layers.Dense(5, name="head"))
    with pytest.raises(ValueError, match=r"head/kernel was replaced .*was \(2, 3\) and is \(2, 5"):
        values.check()
    model = network()
    values = Values(model)
    model.layers[0].enable_lora(1)
    with pytest.raises(ValueError, match="body/.* was added to the model inside the block"):
        values.check()


@pytest.mark.parametrize("given, line", [
    (3, "an int has no variables of floats"), (None, "a NoneType has no variables"),
    ({"w": 1.5}, "w is of type float, but a step would return an array")])
def test_a_model_of_an_unknown_kind_is_refused_in_one_line(given, line):
    pytest.importorskip("jax")
    with pytest.raises(ValueError, match=f"^{line}"):
        Values(given)


def test_models_of_several_kinds_are_one_vector():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: scripts/test_torch.sh")
    tf = pytest.importorskip("tensorflow")
    import keras
    critic = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    actor, scale = torch.nn.Linear(2, 1), tf.Variable(1.0)
    values = Values({"actor": actor, "critic": critic, "scale": scale})
    assert names(values) == [*(f"critic/{v.path}" for v in critic.variables), "actor/weight",
                             "actor/bias", "scale"]
    replica = values.open()
    adopt(replica, np.arange(7))
    assert np.array_equal(actor.bias.detach(), [5]) and scale.numpy() == 6
    assert np.array_equal(keras.ops.convert_to_numpy(critic.layers[0].bias), [2])
    scale.assign_add(2.0)
    replica.stepped()
    adopt(replica, np.zeros(7), "rebase")
    assert scale.numpy() == 2 and np.array_equal(update(replica), [0, 0, 0, 0, 0, 0, 2])
    assert replica.put_back() is False
