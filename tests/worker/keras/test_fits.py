"""Fits in a process that continues, each with a real server: how they end, and what follows."""

import signal
import threading
import time

import forked
import keras
import numpy as np
import pytest
import tensorflow as tf
from fake_worker import FakeWorker
from integer_replica import IntegerReplica
from jobs import interrupted, until

import wbsp
from wbsp.ps.checkpoint import format as checkpoint
from wbsp.replica.model import KerasPart, open_replica
from wbsp.replica.states import states
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.errors import TransportError
from wbsp.wire.messages import codec as m
from wbsp.worker.process import Process

pytestmark = [
    pytest.mark.slow,  # TensorFlow takes its seconds to start
    pytest.mark.filterwarnings("ignore:Your input ran out of data")]

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = X.sum(1, keepdims=True)
FAILED = "its fit was interrupted or failed"


@pytest.fixture
def said():
    return []


@pytest.fixture
def hook(said):
    """Makes callbacks, and closes them at the end."""
    hooks = []

    def make(address, worker=0, timeout=60.0):
        hooks.append(wbsp.SyncCallback(address, worker, connect_timeout=timeout, say=said.append))
        return hooks[-1]

    yield make
    for one in hooks:
        one.close()


@pytest.fixture
def unnoticed(monkeypatch):
    """The end of a fit is not noticed without a further event."""
    monkeypatch.setattr("wbsp.worker.keras.fit.PERIOD", 1000.0)
    elsewhere(monkeypatch)


def elsewhere(monkeypatch):
    """An error in a callback is as one in other code of a fit, such as a step."""
    monkeypatch.setattr("wbsp.worker.keras.fit.Fit.guard", lambda *_: None)


class At(keras.callbacks.Callback):
    """Calls `do`(model) when `batch` of `epoch` has ended."""

    def __init__(self, batch, do, epoch=0):
        super().__init__()
        self.batch, self.do, self.at = batch, do, epoch

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == (self.at, self.batch):
            self.do(self.model)


def linear(**options):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False, **options)
    return model


def fit(*callbacks, model=None, **options):
    model = model or linear()
    model.fit(X, Y, **{"batch_size": 8, "verbose": 0, **options}, callbacks=callbacks)
    return model


def other(address, worker, steps, **options):
    """A worker of the same layout that is not Keras's."""
    replica = IntegerReplica(worker)
    replica.layout = [TensorSpec("kernel", (4, 1)), TensorSpec("bias", (1,))]
    return FakeWorker(address, worker, steps, replica=replica, **options)


def lingers(address, worker, over):
    """A worker for which the server waits, when the run has ended, until `over` is set."""
    def stay(step):
        transport = member.runtime.transport
        request = transport.request
        transport.request = lambda one: (isinstance(one, m.Goodbye) and over.wait(60), request(one))

    member = other(address, worker, steps=1, after_step=stay)
    return member


def fail(model):
    raise ArithmeticError("out of memory, say")


# A fit that does not come to its end.

@pytest.mark.parametrize("where", ["in a callback", "elsewhere"])
def test_a_fit_that_failed_is_noticed_though_its_traceback_is_kept(jobs, hook, said, where,
                                                                   monkeypatch):
    failed = "its loop was left by ArithmeticError"
    if where == "elsewhere":
        failed = FAILED
        elsewhere(monkeypatch)
    server = jobs.server(sync="bsp").listens()
    first = other(server.address, 0, steps=30)
    with pytest.raises(ArithmeticError) as kept:
        fit(hook(server.address, 1), At(4, fail))
    first.ends()  # it did not wait for worker 1
    assert kept.traceback and [text for text in said if f"{failed}: leaving the run" in text]
    server.ends_well()
    assert server.find(f"worker 1 left: {failed}")


def test_a_new_callback_takes_the_place_at_once(jobs, hook, said, unnoticed):
    server, again = jobs.server(sync="asp").listens(), threading.Event()
    first = other(server.address, 0, steps=5, after_step=lambda step: step < 5 or again.wait(60))
    with pytest.raises(ArithmeticError):
        fit(hook(server.address, 1), At(2, fail))
    fit(hook(server.address, 1), At(2, lambda model: again.set()))
    first.ends()
    server.ends_well()
    assert [text for text in said if "worker 1: closing an earlier SyncCallback of this" in text]
    assert server.find("worker 1 left: its SyncCallback was closed")
    assert len(server.find("worker 1 joined")) == 2 and server.find("worker 1 left: finished")


def test_a_callback_whose_fit_still_runs_keeps_its_place(jobs, hook):
    server = jobs.server(sync="asp", workers=1).listens()
    refused = []

    def another(model):
        with pytest.raises(TransportError, match="worker 0 is already connected") as caught:
            hook(server.address).connect()
        refused.append(caught.value)

    fit(hook(server.address), At(3, another))
    server.ends_well()
    assert refused and server.find("worker 0 left: finished")


def test_closing_leaves_at_once_and_may_be_repeated(jobs, hook, unnoticed):
    server = jobs.server(sync="asp", workers=1).listens()
    callback = hook(server.address)
    callback.close()
    with pytest.raises(ArithmeticError):
        fit(callback, At(2, fail))
    callback.close()
    callback.close()
    server.until("worker 0 left: its SyncCallback was closed")
    with pytest.raises(TransportError, match="this worker has left the run"):
        fit(callback, At(2, lambda model: callback.close()))
    until(lambda: len(server.find("worker 0 left: its SyncCallback was closed")) == 2, "it")


def test_closing_from_another_thread_ends_the_wait_for_others(jobs, hook):
    server = jobs.server(sync="bsp").listens()
    callback = hook(server.address)

    def close():
        server.until("worker 0 joined")
        callback.close()

    thread = threading.Thread(target=close)
    thread.start()
    with pytest.raises(TransportError, match="this worker has left the run"):
        fit(callback)
    thread.join()


# Another fit with the same callback.

def test_the_same_callback_joins_again(jobs, hook, said):
    server = jobs.server(sync="pcc", workers=1).listens()
    port = int(server.address.rpartition(":")[2])
    callback = hook(server.address)
    model = fit(callback)
    server.ends_well()
    again = jobs.server("--base_dir=again", sync="bsp", workers=1, port=port).listens()
    fit(callback, model=model, epochs=2)
    again.ends_well()
    assert f"worker 0: connecting again to {server.address}" in said
    assert callback.settings["sync"] == "bsp" and callback.stop_reason is None
    assert [event["steps"] for event in again.events("accept")] == 16 * [1]
    saved = checkpoint.load(again.folder / "checkpoint.safetensors")
    assert saved.vector.tobytes() == vector(model).tobytes()


def test_the_next_run_is_waited_for_where_the_last_one_has_ended_but_its_server_has_not(jobs, hook):
    server, over = jobs.server(sync="pcc").listens(), threading.Event()
    port = int(server.address.rpartition(":")[2])

    def next_run():
        server.until("refused: worker 0 is too late: the run has ended")
        over.set()
        server.ends_well()
        jobs.server("--base_dir=again", sync="bsp", workers=1, port=port)

    first = lingers(server.address, 1, over)
    callback = hook(server.address)
    model = fit(callback)
    thread = threading.Thread(target=next_run)
    thread.start()
    fit(callback, model=model)
    assert callback.settings["sync"] == "bsp"
    thread.join()
    first.ends()


def test_a_worker_too_late_for_its_first_run_is_refused_at_once(jobs, hook, monkeypatch):
    monkeypatch.setattr("wbsp.worker.loop.PROCESS", Process())
    server, over = jobs.server(sync="pcc").listens(), threading.Event()
    first = lingers(server.address, 1, over)
    other(server.address, 0, steps=1).ends()
    with pytest.raises(TransportError, match="is too late: the run has ended"):
        fit(hook(server.address))
    over.set()
    first.ends()
    server.ends_well()


def test_the_same_stream_begins_again(jobs, hook):
    trained = []

    class Recording(keras.Sequential):
        def train_step(self, batch):
            tf.py_function(lambda x: trained.append(x.numpy().tolist()), [batch[0][:, 0]], [])
            return super().train_step(batch)

    def examples(start, count):
        position = tf.cast(tf.range(start, start + count), tf.float32)
        return tf.reshape(position, [-1, 1]), position

    server = jobs.server(sync="pcc", workers=1).listens()
    port = int(server.address.rpartition(":")[2])
    callback = hook(server.address)
    data = callback.stream(examples, 4)
    model = Recording([keras.Input((1,)), keras.layers.Dense(1)])
    for again in (False, True):
        if again:
            server.ends_well()
            server = jobs.server(sync="pcc", workers=1, port=port).listens()
        model.compile(keras.optimizers.SGD(1e-6), "mse", jit_compile=False)
        model.fit(data, steps_per_epoch=3, verbose=0, shuffle=False, callbacks=[callback])
    pieces = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert trained == 2 * pieces


def test_without_a_server_another_fit_prints_at_once_what_it_does(jobs, hook, said):
    server = jobs.server(sync="pcc", workers=1).listens()
    callback = hook(server.address, timeout=5.0)  # joining a busy machine's server takes a while
    fit(callback)
    server.ends_well()
    with pytest.raises(TransportError, match="no server answered at"):
        fit(callback)
    assert f"worker 0: connecting again to {server.address}" in said


# What others do to the weights once training is over.

class Restores(keras.callbacks.Callback):
    """As EarlyStopping does with the weights of the best epoch."""

    def on_train_end(self, logs=None):
        self.before = vector(self.model)
        self.model.set_weights([np.full_like(w, 100.0) for w in self.model.get_weights()])


class Swaps(keras.callbacks.Callback):
    """As SwapEMAWeights does: other weights for validation and at an epoch's end."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch:
            self.model.set_weights(self.weights)

    def on_test_begin(self, logs=None):
        self.weights = self.model.get_weights()
        self.model.set_weights([np.full_like(w, 100.0) for w in self.weights])


class SwapsAtTheEnd(Swaps):
    """The same, only at an epoch's end."""

    def on_epoch_end(self, epoch, logs=None):
        super().on_test_begin()

    def on_test_begin(self, logs=None):
        pass


def vector(model):
    return np.concatenate([w.numpy().ravel() for w in model.weights])


@pytest.mark.parametrize("how, options", [
    ("its epochs are done", {}),
    ("several batches a step", {"per_step": 3}),
    ("a validation", {"validation_data": (X, Y)}),
    ("stopped in mid-epoch", {}),
    ("data of unknown length", {"generator": True}),
    ("an epoch, of data of unknown length", {"generator": True, "swaps": True}),
])
def test_weights_restored_at_the_end_are_not_pushed(jobs, hook, how, options):
    server = jobs.server("--sync_option=tau=1000", sync="localsgd", workers=1).listens()
    restores, last = Restores(), []

    class Last(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            last.append(vector(self.model))
            if how == "stopped in mid-epoch" and len(last) == 11:
                self.model.stop_training = True

    before = [Last(), restores] + ([Swaps()] if "validation_data" in options else [])
    before += [SwapsAtTheEnd()] if options.pop("swaps", False) else []
    model = linear(steps_per_execution=options.pop("per_step", 1))
    if options.pop("generator", False):
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).filter(lambda x, y: True)
        model.fit(data, epochs=2, verbose=0, callbacks=[*before, hook(server.address)])
    else:
        fit(*before, hook(server.address), model=model, epochs=2, **options)
    server.ends_well()
    saved = checkpoint.load(server.folder / "checkpoint.safetensors")
    assert np.allclose(saved.vector, last[-1], atol=1e-6)
    assert vector(model).tobytes() == saved.vector.tobytes(), "the hook was last: the final version"
    (accepted,) = server.events("accept")
    assert accepted["steps"] == (11 if how == "stopped in mid-epoch" else 16)


@pytest.mark.parametrize("sync", ["pcc", "asp"])
def test_workers_that_each_restore_their_best_hold_the_final_version(jobs, hook, said, sync):
    server = jobs.server(sync=sync).listens()
    first = other(server.address, 1, steps=20, seconds=0.01)
    stops = keras.callbacks.EarlyStopping("loss", mode="max", patience=1, restore_best_weights=True)
    model = fit(stops, hook(server.address), Restores(), epochs=4)
    first.ends()
    server.ends_well()
    saved = checkpoint.load(server.folder / "checkpoint.safetensors").vector.tobytes()
    assert vector(model).tobytes() == first.replica.x.tobytes() == saved
    assert len([text for text in said if "EarlyStopping(restore_best_weights=True)" in text]) == 1


def test_weights_restored_before_the_first_step_are_replaced(jobs, hook):
    class Backup(keras.callbacks.Callback):
        """As BackupAndRestore, which resumes where a dead process was."""

        def on_train_begin(self, logs=None):
            self.model.set_weights([np.full_like(w, 100.0) for w in self.model.get_weights()])

    server = jobs.server(sync="pcc", workers=1).listens()
    model = fit(hook(server.address), Backup())
    server.ends_well()
    assert np.abs(vector(model)).max() < 10


# A worker whose model goes wrong, and layers that compute with more than variables.

def test_a_worker_resumes_from_the_next_version_when_its_model_is_not_finite(jobs, hook):
    class Breaks(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_begin(self, batch, logs=None):
            self.steps += 1
            if self.steps == 5:
                self.model.set_weights([np.nan * w for w in self.model.get_weights()])

    server = jobs.server(sync="pcc").listens()
    first = other(server.address, 1, steps=60, seconds=0.01)
    model = fit(Breaks(), hook(server.address), At(0, lambda model: time.sleep(0.05)), epochs=12)
    first.ends()
    server.ends_well()
    assert np.isfinite(vector(model)).all()
    assert server.find(r"worker 0: push \d+ was rejected: not finite \(1 so far\)")
    rejected = [event["seq"] for event in server.events("reject")]
    accepted = [event["seq"] for event in server.events("accept") if event["worker"] == 0]
    assert rejected and max(accepted) > max(rejected)


def test_normalization_computes_with_the_runs_mean_and_variance(jobs, hook):
    server = jobs.server(sync="pcc").listens()
    normal = keras.layers.Normalization()
    normal.adapt(X)
    model = keras.Sequential([keras.Input((4,)), keras.Sequential([normal]),
                              keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    replica, seen = IntegerReplica(1, 13), []
    replica.layout = open_replica(model).layout
    first = FakeWorker(server.address, 1, 1, replica=replica)
    server.until("worker 1 joined")  # it brings W_0: 2 everywhere
    fit(hook(server.address), At(0, lambda model: seen.append(np.array(normal.mean))), model=model)
    first.ends()
    server.ends_well()
    assert set(seen[0].ravel()) == {2.0}


def test_a_fit_whose_layers_have_other_values_than_the_runs_is_refused_in_one_line(jobs, hook):
    def hashed(salt):
        x = keras.Input((1,))
        layer = keras.layers.Hashing(4, salt=salt, output_mode="one_hot", name="hashed")
        model = keras.Model(x, keras.layers.Dense(1)(keras.Sequential([layer])(x)))
        model.compile("sgd", "mse", jit_compile=False)
        return model

    server = jobs.server(sync="asp").listens()
    replica = IntegerReplica(1)
    replica.layout = open_replica(hashed(3)).layout
    first = FakeWorker(server.address, 1, 1, replica=replica, layers=states(hashed(3)))
    server.until("worker 1 joined")
    with pytest.raises(TransportError) as refused:
        hashed(4).fit(X[:, :1], Y, verbose=0, callbacks=[hook(server.address)])
    text = str(refused.value)
    assert "worker 0 has another model than the others: layer hashed has other values than" in text
    assert "\n" not in text
    hashed(3).fit(X[:, :1], Y, verbose=0, callbacks=[hook(server.address)])
    first.ends()
    server.ends_well()


def test_under_saps_a_line_defines_a_step_as_a_part_of_a_mini_batch(jobs, hook, said):
    server = jobs.server(sync="saps", workers=1).listens()
    fit(hook(server.address))
    server.ends_well()
    (line,) = [text for text in said if "micro" in text]
    assert line.startswith("worker 0: under saps a step of fit is one of 4 micro-batches, and coun")


# Signals; the process that gets them is this one.

@pytest.fixture
def ctrl_c():
    """Python's own handler, also where the tests were started with another."""
    saved = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda model=None: signal.raise_signal(signal.SIGINT)
    assert signal.signal(signal.SIGINT, saved) is signal.default_int_handler


def test_ctrl_c_pushes_and_raises_keyboard_interrupt(jobs, hook, said, ctrl_c):
    server = jobs.server("--sync_option=tau=1000", sync="localsgd", workers=2).listens()
    first = other(server.address, 0, steps=5)
    with pytest.raises(KeyboardInterrupt):
        fit(At(3, ctrl_c), hook(server.address, 1))
    first.ends()
    server.ends_well()
    assert server.find("worker 1 left: interrupted by SIGINT")
    assert "worker 1: interrupted by SIGINT; its unsent progress is pushed" in said
    assert [e["steps"] for e in server.events("accept") if e["worker"] == 1] == [4]


def test_ctrl_c_in_a_validation(jobs, hook, ctrl_c):
    class Test(keras.callbacks.Callback):
        batches = 0

        def on_test_batch_begin(self, batch, logs=None):
            self.batches += 1
            if batch == 2:
                ctrl_c()

    server = jobs.server("--sync_option=tau=1000", sync="localsgd", workers=1).listens()
    test = Test()
    with pytest.raises(KeyboardInterrupt):
        fit(test, hook(server.address), validation_data=(X, Y))
    assert test.batches == 3
    server.until("worker 0 left: interrupted by SIGINT")
    server.signal(signal.SIGTERM)
    interrupted(server, signal.SIGTERM)
    assert [e["steps"] for e in server.events("accept")] == [8]


def test_ctrl_c_twice_acts_at_once_and_the_worker_leaves(jobs, hook, ctrl_c):
    server = jobs.server(sync="asp", workers=1).listens()
    with pytest.raises(KeyboardInterrupt):
        fit(hook(server.address), At(3, lambda model: [ctrl_c(), ctrl_c()]))
    server.until(f"worker 0 left: ({FAILED}|interrupted by SIGINT)")


def test_ctrl_c_and_then_an_error_is_not_forgotten(jobs, hook, ctrl_c, unnoticed):
    server = jobs.server(sync="asp", workers=1).listens()
    callback = hook(server.address)
    with pytest.raises(ArithmeticError):
        fit(At(3, lambda model: [ctrl_c(), fail(model)]), callback)
    with pytest.raises(KeyboardInterrupt):
        callback.close()
        pytest.fail("nothing came of it")


@pytest.mark.parametrize("waiting_for", ["the server", "the other workers"])
def test_ctrl_c_ends_the_wait(jobs, hook, ctrl_c, waiting_for):
    server = jobs.server(sync="bsp", workers=2).listens()
    address = server.address
    if waiting_for == "the server":
        server.kill()
    callback = hook(address)
    thread = threading.Thread(target=lambda: (
        until(lambda: callback._member.loop, "fit to begin"),
        waiting_for == "the server" or server.until("worker 0 joined"), ctrl_c()))
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        fit(callback)
    thread.join()
    if waiting_for != "the server":
        server.until("worker 0 left: interrupted by SIGINT")


def test_a_reason_of_the_users_own_ends_the_wait_for_the_server(jobs, hook):
    server = jobs.server()
    server.kill()
    callback = hook(server.address)
    callback.interrupt("the night is over")
    with pytest.raises(TransportError,
                       match="interrupted while waiting for the server at localhost:"):
        fit(callback)


SCRIPT = """
import sys
import keras
import numpy as np
import wbsp

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0,
          callbacks=[wbsp.SyncCallback(sys.argv[1], worker_index=0)])
"""


@pytest.mark.slow
def test_sigterm_ends_the_process_after_it_has_left_the_run(jobs):
    server = jobs.server(sync="bsp", workers=2).listens()
    script = jobs.folder / "train.py"
    script.write_text(SCRIPT)
    worker = jobs.start("worker", script, server.address, fork=forked.KERAS)
    server.until("worker 0 joined")
    worker.signal(signal.SIGTERM)
    assert worker.ends() == -signal.SIGTERM
    worker.was_clean()
    server.until("worker 0 left: interrupted by SIGTERM")


# Layers that no step changes.


def test_frozen_layers_are_read_after_the_first_step_and_at_the_end_and_not_in_each_epoch(
        jobs, hook, monkeypatch):
    reads, read = [], KerasPart.read

    def noting(part, variable):
        reads.append(variable.path)
        return read(part, variable)

    server = jobs.server(workers=1, sync="bsp").listens()
    model = linear()
    wide = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="still"), *model.layers])
    wide.layers[0].trainable = False
    wide.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    monkeypatch.setattr(KerasPart, "read", noting)
    fit(hook(server.address), model=wide, epochs=6)
    server.ends_well()
    kernels = [path for path in reads if path.endswith("still/kernel")]
    assert 3 <= len(kernels) <= 5, "as it joins, after its first step, as it ends"
