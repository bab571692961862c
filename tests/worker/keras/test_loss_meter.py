"""What Keras trained is what is counted, however its batches are made into steps."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from wbsp.worker.keras.loss_meter import LossMeter

X = np.random.default_rng(0).normal(size=(92, 3)).astype(np.float32)  # 12 batches, the last of 4
Y = X.sum(1, keepdims=True)


class Metered(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_train_begin(self, logs=None):
        self.meter = LossMeter(self.model)

    def on_epoch_begin(self, epoch, logs=None):
        self.meter.reset()
        self.epochs.append([])

    def on_train_batch_end(self, batch, logs=None):
        self.epochs[-1].append(self.meter.step(batch, self.params["steps"], logs))
        assert self.meter.batches == sum(step.batches for step in self.epochs[-1])


def test_known_samples_give_the_losses_that_the_counter_gives():
    class Told(Metered):
        def on_train_batch_end(self, batch, logs=None):
            samples = 8 if batch < 11 else 4
            self.epochs[-1].append(self.meter.step(batch, self.params["steps"], logs, samples))

    counted, told = (metered((X, Y), batch_size=8, kind_of_meter=kind)[0]
                     for kind in (Metered, Told))
    assert told == counted


class Silent(keras.Sequential):
    """A user-defined loop, which gives Keras no loss."""

    def train_step(self, batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables),
                             self.trainable_variables)
        return {"mine": loss}


def metered(data, kind=keras.Sequential, optimizer=None, per_step=1, kind_of_meter=Metered, **fit):
    model = kind([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(optimizer or keras.optimizers.SGD(0.0), "mse", steps_per_execution=per_step,
                  jit_compile=False)
    callback = kind_of_meter()
    model.fit(*data, epochs=2, verbose=0, shuffle=False, callbacks=[callback], **fit)
    first, second = callback.epochs
    assert [s.batches for s in first] == [s.batches for s in second]
    assert [s.samples for s in first] == [s.samples for s in second]
    return second, model


@pytest.mark.parametrize("per_step, batches, samples", [
    (1, 12 * [1], [*11 * [8], 4]), (5, [5, 5, 2], [40, 40, 12]),
    pytest.param(4, [4, 4, 4], [32, 32, 28], marks=pytest.mark.long),
    pytest.param(20, [12], [92], marks=pytest.mark.long)])
def test_arrays_count_as_what_they_hold(per_step, batches, samples):
    steps, model = metered((X, Y), per_step=per_step, batch_size=8)
    assert [step.batches for step in steps] == batches
    assert [step.samples for step in steps] == samples
    total = sum(step.samples * step.loss for step in steps)
    assert total / 92 == pytest.approx(model.evaluate(X, Y, verbose=0), rel=1e-4)


@pytest.mark.parametrize("per_step, batches", [
    (5, [5, 5, 5]), *(pytest.param(*one, marks=pytest.mark.long)
                      for one in ((1, 12 * [1]), (20, [20])))])
def test_data_after_an_epochs_last_step_are_trained_too(per_step, batches):
    endless = tf.data.Dataset.from_tensors((X[:8], Y[:8])).repeat()
    steps, _ = metered((endless,), per_step=per_step, steps_per_epoch=12)
    assert [step.batches for step in steps] == batches
    assert [step.samples for step in steps] == [8 * n for n in batches]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize("per_step, batches", [
    pytest.param(1, 12 * [1], marks=pytest.mark.long), (5, [5, 5, 2])])
def test_data_of_unknown_length(per_step, batches):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).filter(lambda x, y: True)
    steps, _ = metered((data,), per_step=per_step)
    assert [step.batches for step in steps] == batches
    assert sum(step.samples for step in steps) == 92


def test_gradients_that_are_collected_over_several_batches():
    steps, _ = metered((X, Y), per_step=5, batch_size=8, optimizer=keras.optimizers.SGD(
        0.0, gradient_accumulation_steps=2))
    assert [step.batches for step in steps] == [5, 5, 2]


def test_the_optimizers_count_may_be_a_tensor_of_any_back_end():
    class Optimizer:
        iterations, gradient_accumulation_steps = np.int32(7), 2  # no Variable, as on JAX

    class Network:
        metrics, optimizer = [], Optimizer

    assert LossMeter(Network).step(0, 1, {}).batches == 1


def test_a_model_without_a_loss_tracker_counts_a_sample_per_step():
    steps, _ = metered((X, Y), kind=Silent, batch_size=8)
    assert [step[:2] for step in steps] == 12 * [(1, 1)]
    assert all(np.isnan(step.loss) for step in steps)
