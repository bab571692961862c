"""How a fit ends by an error, and which run the next one joins: docs/how-to/any-loop.md."""

import time

import keras
import numpy as np
import pytest
from jobs import both

import wbsp
from wbsp.worker import next_run

pytestmark = [pytest.mark.slow,  # TensorFlow takes its seconds to start
              pytest.mark.usefixtures("process_ends")]

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = X.sum(1, keepdims=True)
Failed = type("FailedTrialError", (Exception,), {"__module__": "keras_tuner.errors"})


class Raises(keras.callbacks.Callback):
    """Raise `error` at the end of the second epoch; wait a little in each."""

    def __init__(self, error=None, seconds=0.0):
        super().__init__()
        self.error, self.seconds = error, seconds

    def on_epoch_end(self, epoch, logs=None):
        time.sleep(self.seconds)
        if epoch == 1 and self.error is not None:
            raise self.error


def fit(hook, own, *callbacks, epochs=3):
    """Train a model that begins with weights of its own; those with which it really began, and the
    error."""
    began = []

    class First(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if not began:
                began.append(round(float(self.model.get_weights()[0][0, 0])))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-6), "mse", jit_compile=False)
    model.set_weights([np.full((4, 1), own, np.float32), np.zeros(1, np.float32)])
    try:
        model.fit(X, Y, batch_size=8, verbose=0, epochs=epochs, callbacks=[
            hook, First(), *callbacks])
    except BaseException as error:
        return began[0], type(error).__name__
    return began[0], hook.stop_reason


def ends(server):
    next_run.close_all()
    server.ends_well()


def test_a_trial_that_has_failed_ends_its_run_for_all(jobs):
    server = jobs.server(sync="pcc", series=True).listens()

    def tune(index):
        hook = wbsp.SyncCallback(server.address, index, say=lambda text: None)
        error = None if index else Failed("a bad trial")
        return [fit(hook, 10, Raises(error, 0.05), epochs=500), fit(hook, 20)]
    mine, other = both((tune, 0), (tune, 1))
    assert mine == [(10, "FailedTrialError"), (20, None)]
    assert other == [(10, "worker 0: its trial has ended (FailedTrialError)"), (20, None)]
    ends(server)


@pytest.mark.parametrize("error", [ArithmeticError("out of memory"), KeyboardInterrupt()],
                         ids=["another error", "Ctrl-C"])
def test_another_error_leaves_the_run_and_the_next_fit_joins_it_again(jobs, error):
    server = jobs.server(sync="pcc", series=True).listens()

    def fails(index):
        hook = wbsp.SyncCallback(server.address, index, say=lambda text: None)
        return [fit(hook, 10, Raises(error)), fit(hook, 20)]

    def trains(index):
        hook = wbsp.SyncCallback(server.address, index, say=lambda text: None)
        return [fit(hook, 10, Raises(None, 0.2), epochs=15)]
    mine, other = both((fails, 0), (trains, 1))
    assert mine == [(10, type(error).__name__), (10, None)] and other == [(10, None)]
    ends(server)


def test_the_only_workers_cell_that_is_run_again_is_a_new_run(jobs):
    server = jobs.server(sync="pcc", workers=1, series=True).listens()
    hook = wbsp.SyncCallback(server.address, 0, say=lambda text: None)
    assert fit(hook, 10, Raises(ArithmeticError())) == (10, "ArithmeticError")
    assert fit(hook, 20, Raises(KeyboardInterrupt())) == (20, "KeyboardInterrupt")
    assert fit(hook, 30) == (30, None)
    assert server.find("worker 0 left: its loop was left by ArithmeticError")
    ends(server)


@pytest.mark.parametrize("times", [1, 2])
def test_an_optimizer_that_is_not_finite_is_renewed_once(jobs, times):
    server = jobs.server(sync="pcc").listens()
    said = []

    class Breaks(keras.callbacks.Callback):
        steps = broken = 0

        def on_train_batch_begin(self, batch, logs=None):
            self.steps += 1
            if self.broken < times and self.steps in (5, 40):
                self.broken += 1
                for variable in self.model.optimizer.variables:
                    if len(variable.shape) == 2:
                        variable.assign(variable * np.nan)
            time.sleep(self.seconds)

    def train(index):
        hook = wbsp.SyncCallback(server.address, index, say=said.append)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
        data = hook.examples(lambda i: (X[i], Y[i]), n=64, batch_size=4)
        breaks = Breaks()
        breaks.seconds = 0.04 if index else 0.01
        breaks.broken = times if index else 0
        try:
            model.fit(data, epochs=12, steps_per_epoch=hook.UNTIL_TOLD, verbose=0,
                      callbacks=[breaks, hook])
        except RuntimeError as error:
            return str(error)
        return np.isfinite(model.get_weights()[0]).all()
    mine, other = both((train, 0), (train, 1))
    assert other and len([line for line in said if "optimizer's state was not finite" in line]) == 1
    if times == 1:
        assert mine is np.True_ and not server.find("letting worker")
    else:
        assert "the last 3 pushes of worker 0 were not finite" in mine
        assert server.find("letting worker 0 go: its last 3 pushes were not finite")
    server.ends_well()
    assert server.find("stopped: all 12 epochs are trained")
    assert not server.find("skipping examples")
