"""A model under a strategy of two devices; in a process of its own, which has two."""

import forked
import pytest

pytestmark = pytest.mark.slow  # TensorFlow takes its seconds to start


MIRRORED = """
import numpy as np
import tensorflow as tf
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], 2 * [tf.config.LogicalDeviceConfiguration()])
import keras
from wbsp.replica.model import open_replica
from wbsp.worker.keras.loss_meter import LossMeter

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
assert strategy.num_replicas_in_sync == 2
with strategy.scope():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(),
                              keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
replica = open_replica(model)

def copies(variable):
    return [copy.numpy() for copy in strategy.experimental_local_results(variable.value)]

def on_first(variables):
    return np.concatenate([copies(variable)[0].ravel() for variable in variables])

def same_everywhere(variables):
    return all(np.array_equal(*copies(variable)) for variable in variables)

everything = [*model.trainable_weights, *model.non_trainable_weights]

w = np.arange(replica.read().size, dtype=np.float32) / 8
replica.adopt(replica.bring(w), "replace")
assert same_everywhere(everything) and np.array_equal(on_first(everything), w)
x, y = np.random.default_rng(0).normal(size=(2, 8, 3)).astype(np.float32)
class Step(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.meter = LossMeter(self.model)
    def on_train_batch_end(self, batch, logs=None):
        assert self.meter.step(batch, 1, logs).samples == 8, "those of both devices"
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
replica.adopt(replica.bring(new), "rebase")
assert same_everywhere(everything) and np.array_equal(on_first(everything), new + progress)
assert np.array_equal(np.asarray(replica.cut()), replica.read() - new)
assert not np.asarray(replica.cut()).any()
replica.hold()
held = on_first(everything)
assert not replica.put_back()
model.set_weights([np.full_like(value, 50) for value in model.get_weights()])
assert replica.put_back() and not replica.put_back()
assert same_everywhere(everything) and np.array_equal(on_first(everything), held)
assert not np.asarray(replica.cut()).any()
print("all is as it should be")
"""


def test_under_a_mirrored_strategy_all_devices_hold_the_same(jobs):
    (jobs.folder / "mirrored.py").write_text(MIRRORED)
    job = jobs.start("mirrored", "mirrored.py", fork=forked.KERAS)
    job.ends_well()
    assert job.find("all is as it should be")
