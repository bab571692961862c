"""A Keras model as a flat vector; each test of devices in a process of its own."""

import os

import numpy as np
import pytest
from jobs import Jobs

pytestmark = pytest.mark.slow  # TensorFlow takes its seconds to start

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.fixture(scope="module")
def keras():
    return pytest.importorskip("keras")


@pytest.fixture
def model(keras):
    return keras.Sequential([
        keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=1),
        keras.layers.Dense(2)])


@pytest.fixture
def replica(model):
    from wbsp.replica.tensorflow import KerasReplica
    return KerasReplica(model)


def test_trainable_first_then_statistics_and_nothing_else(model, replica):
    model.compile("adam", "mse", metrics=["mae"])
    names = [spec.name.rpartition("/")[2] for spec in replica.layout]
    assert names == ["gamma", "beta", "kernel", "bias", "moving_mean", "moving_variance"]
    assert [spec.shape for spec in replica.layout] == [(3,), (3,), (3, 2), (2,), (3,), (3,)]
    assert any("seed" in v.path for v in model.variables), "Dropout has integers of its own"
    expected = np.concatenate([v.numpy().ravel() for v in (
        *model.trainable_weights, *model.layers[0].non_trainable_weights)])
    assert replica.read().dtype == np.float32
    assert np.array_equal(replica.read(), expected)


def test_adopt_writes_every_variable(model, replica):
    vector = np.arange(20, dtype=np.float32)
    replica.adopt(vector, "replace")
    norm, _, dense = model.layers
    assert np.array_equal(dense.kernel.numpy(), [[6, 7], [8, 9], [10, 11]])
    assert np.array_equal(norm.moving_variance.numpy(), [17, 18, 19])
    assert replica.read().tobytes() == vector.tobytes()


def test_cut_takes_the_progress_since_the_last_cut_or_adoption(model, replica):
    replica.adopt(np.arange(20, dtype=np.float32), "replace")
    move(model, replica, 2)
    assert np.array_equal(replica.cut(), moved(2))
    assert np.array_equal(replica.cut(), moved(0)), "a cut begins anew"
    move(model, replica, 3)
    move(model, replica, 4)
    assert np.array_equal(replica.cut(), moved(7))
    assert np.array_equal(replica.read(), np.arange(20) + moved(9))


def test_rebase_keeps_the_progress_and_replace_does_not(model, replica):
    replica.adopt(np.zeros(20, np.float32), "replace")
    move(model, replica, 2)
    replica.adopt(np.full(20, 100, np.float32), "rebase")
    assert np.array_equal(replica.read(), 100 + moved(2))
    assert np.array_equal(model.layers[2].bias.numpy(), [102, 102])
    move(model, replica, 1)
    assert np.array_equal(replica.cut(), moved(3)), "the progress is uncut still"
    move(model, replica, 5)
    replica.adopt(np.full(20, 7, np.float32), "replace")
    assert np.array_equal(replica.read(), np.full(20, 7))
    assert np.array_equal(replica.cut(), moved(0))


def test_an_adopted_vector_is_kept_and_never_written_to(model, replica):
    vector = np.zeros(20, np.float32)
    vector.flags.writeable = False
    replica.adopt(vector, "replace")
    move(model, replica, 1)
    update = replica.cut()
    assert not vector.any() and np.array_equal(update, moved(1))


def test_half_precision_variables_take_part_as_float32(keras):
    from wbsp.replica.tensorflow import KerasReplica
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, dtype="float16")])
    replica = KerasReplica(model)
    replica.adopt(np.array([0.5, 0.25, 2], np.float32), "replace")
    assert model.layers[0].kernel.numpy().dtype == np.float16
    assert np.array_equal(replica.read(), np.array([0.5, 0.25, 2], np.float32))


def test_a_model_that_is_not_built_is_refused(keras):
    from wbsp.replica.tensorflow import KerasReplica
    model = keras.Sequential([keras.layers.Dense(2)], name="later")
    with pytest.raises(ValueError, match="model later is not built; give it an Input layer or"):
        KerasReplica(model)


def test_a_model_without_variables_of_floats_is_refused(keras):
    from wbsp.replica.tensorflow import KerasReplica
    model = keras.Sequential([keras.Input((2,)), keras.layers.Flatten()], name="flat")
    with pytest.raises(ValueError, match="model flat has no variables of floats: there is nothing"):
        KerasReplica(model)


def move(model, replica, k):
    """A step: k is added to the layer Dense and to the moving mean."""
    for variable in (*model.layers[2].weights, model.layers[0].moving_mean):
        variable.assign_add(np.full(variable.shape, k, np.float32))
    replica.stepped()


def moved(k):
    """The update that `move` by k makes; gamma, beta, kernel, bias, mean, variance."""
    return np.repeat(np.float32([0, k, 0]), [6, 11, 3])


MIRRORED = """
import numpy as np
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], 2 * [tf.config.LogicalDeviceConfiguration()])
import keras
from wbsp.replica.tensorflow import KerasReplica

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.num_replicas_in_sync == 2
with strategy.scope():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(),
                              keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
replica = KerasReplica(model)

def copies(variable):
    return [copy.numpy() for copy in strategy.experimental_local_results(variable.value)]

def on_first(variables):
    return np.concatenate([copies(variable)[0].ravel() for variable in variables])

def same_everywhere(variables):
    return all(np.array_equal(*copies(variable)) for variable in variables)

everything = [*model.trainable_weights, *model.non_trainable_weights]

w = np.arange(replica.read().size, dtype=np.float32) / 8
replica.adopt(w, "replace")
assert same_everywhere(everything) and np.array_equal(on_first(everything), w)
x, y = np.random.default_rng(0).normal(size=(2, 8, 3)).astype(np.float32)
class Step(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        replica.stepped()
        self.x = replica.read()
step = Step()
model.fit(x, y[:, :2], batch_size=8, epochs=1, verbose=0, callbacks=[step])
assert not np.array_equal(step.x, w)
assert np.array_equal(on_first(everything), step.x)
# Keras lets every device keep statistics of its own; the first one's count
assert same_everywhere(model.trainable_weights)
new = np.full_like(w, 3)
progress = step.x - w
replica.adopt(new, "rebase")
assert same_everywhere(everything) and np.array_equal(on_first(everything), new + progress)
assert np.array_equal(replica.cut(), replica.read() - new)
assert not replica.cut().any()
print("all is as it should be")
"""


def test_under_a_mirrored_strategy_all_devices_hold_the_same(tmp_path):
    script = tmp_path / "mirrored.py"
    script.write_text(MIRRORED)
    with Jobs(tmp_path) as jobs:
        job = jobs.start("mirrored", script)
        job.ends_well()
        assert job.find("all is as it should be")
