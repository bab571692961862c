"""What callbacks before and behind SyncCallback do to the weights (docs/reference/callbacks.md).

On whatever Keras runs on in this process. Each fit is the only worker of its run, so that what it
leaves must be what the same steps leave without a server.
"""

import json
import os
import re
import signal
import sys

import msgspec
import numpy as np
import pytest
from jobs import ROOT

from wbsp.ps.checkpoint import format as checkpoint

pytestmark = pytest.mark.slow  # a back end takes its seconds to start

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
keras = pytest.importorskip("keras")
import wbsp  # noqa: E402
from wbsp.replica.model import KerasPart  # noqa: E402

C = keras.callbacks
X = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
Y = X.sum(1, keepdims=True)
EPOCHS, BATCHES = 3, 4
STEPS = EPOCHS * BATCHES
START = [np.full((4, 1), 0.5, np.float32), np.zeros(1, np.float32)]
BEST = "EarlyStopping.* after fit the model holds the run's final version"
BEFORE = "set the weights before the first step: restoring the run's version"
BETWEEN = "a callback, .* changed the weights between two epochs: restoring them"
END = "set the weights at the end of training: replacing them by the run's final version"
AVERAGES = "fit leaves the averages of this worker's steps"


@pytest.fixture(scope="module")
def compiled():
    """Makes models, each kind once, so that a back end's traces are reused."""
    made = {}

    def make(**optimizer):
        key = json.dumps(optimizer)
        if key not in made:
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.05, **optimizer), "mse", jit_compile=False)
            model.optimizer.build(model.trainable_variables)
            made[key] = model, [np.array(v) for v in model.optimizer.variables]
        model, states = made[key]
        for variable, state in zip(model.optimizer.variables, states, strict=True):
            variable.assign(state)
        model.optimizer.learning_rate = 0.05
        model.set_weights(START)
        model._initial_epoch = None  # BackupAndRestore leaves one to the next fit
        return model

    return make


def vector(model):
    return np.concatenate([np.array(w).ravel() for w in model.get_weights()])


def expected(steps=STEPS, start=None, added=0.0, rate=lambda step: 0.05):
    """The weights after so many steps; `added`: to each weight, by a callback, in each step."""
    kernel, bias = start or START
    for step in range(steps):
        at = slice(step % BATCHES * 8, step % BATCHES * 8 + 8)
        gap = X[at] @ kernel + bias - Y[at]
        kernel = kernel - rate(step) * (2 * X[at].T @ gap / 8) + added
        bias = bias - rate(step) * 2 * gap.mean(0) + added
    return np.concatenate([kernel.ravel(), bias])


class Fits:
    """Tools of a test: `fit` trains with a server, and checks the laws of every fit."""

    def __init__(self, jobs, compiled):
        self.jobs, self.compiled, self.said = jobs, compiled, []

    def fit(self, where, *callbacks, sync="pcc", optimizer=None, among=None, **options):
        """`where`: the callbacks stand before or behind SyncCallback."""
        server = self.jobs.server(sync=sync, workers=1).listens()
        hook = wbsp.SyncCallback(server.address, 0, say=self.said.append)
        self.model = model = self.compiled(**optimizer or {})
        them = [*callbacks, hook] if where == "before" else [hook, *callbacks]
        try:
            self.history = model.fit(**{
                "x": X, "y": Y, "batch_size": 8, "epochs": EPOCHS, "shuffle": False, "verbose": 0,
                "callbacks": among(them, model) if among else them, **options})
        finally:
            hook.close()
        server.ends_well()
        self.final = checkpoint.load(server.folder / "checkpoint.safetensors").vector
        if not (optimizer or {}).get("use_ema"):
            assert vector(model).tobytes() == self.final.tobytes(), "fit leaves the last version"
        self.steps = sum(event["steps"] for event in server.events("accept"))
        return self.final

    def says(self, *patterns):
        """Each worker once, and nothing else about callbacks."""
        lines = [line for line in self.said if re.search("callback|EarlyStop|averages", line)]
        assert len(lines) == len(patterns), lines
        for pattern in patterns:
            assert sum(bool(re.search(pattern, line)) for line in lines) == 1, (pattern, lines)


@pytest.fixture
def fits(jobs, compiled):
    return Fits(jobs, compiled)


@pytest.fixture(params=["before", "behind"])
def where(request):
    return request.param


@pytest.fixture(params=["before", pytest.param("behind", marks=pytest.mark.long)])
def anywhere(request):
    """With callbacks that change no weights."""
    return request.param


def near(found, wanted):
    return np.allclose(found, wanted, atol=1e-5)


def put(model, value=100.0):
    model.set_weights([np.full_like(w, value) for w in START])


class Puts(C.Callback):
    """Puts weights into the model when the method of that name is called."""

    def __init__(self, name, value=100.0, only_epoch=None):
        super().__init__()
        self.epoch = 0

        def method(*_, logs=None):
            if only_epoch in (None, self.epoch):
                put(self.model, value)
        setattr(self, name, method)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch


# Weights that change outside of a step.

@pytest.mark.parametrize(
    "name", ["on_epoch_end", "on_test_begin", *(pytest.param(name, marks=pytest.mark.long)
                                                for name in ("on_test_batch_end", "on_test_end"))])
def test_weights_put_into_the_model_between_steps_are_undone(fits, where, name):
    final = fits.fit(where, Puts(name), validation_data=(X, Y))
    assert near(final, expected()) and fits.steps == STEPS
    fits.says(BETWEEN, END)


@pytest.mark.parametrize("name", ["on_epoch_begin", "on_train_begin", "on_train_end"])
def test_weights_put_into_the_model_at_the_ends_of_epochs_and_fits_are_undone(fits, where, name):
    final = fits.fit(where, Puts(name, value=0.25), sync="localsgd")
    if (name, where) == ("on_train_begin", "before"):  # as in front of fit: the run begins with it
        assert near(final, expected(start=[np.full_like(w, 0.25) for w in START]))
        fits.says()
    else:
        assert near(final, expected())
        fits.says(*{"on_epoch_begin": [BEFORE, BETWEEN], "on_train_begin": [BEFORE],
                    "on_train_end": [END]}[name])


def test_the_variables_are_looked_at_once_an_epoch_and_not_in_a_step(fits, where, monkeypatch):
    """Also where any step may be the last: the length of the data is not known."""
    counts = []

    open_part = KerasPart.open

    def opened(part):
        replica = open_part(part)
        gather = replica._variables.gather
        replica._variables.gather = lambda: (counts.append(len(seen)), gather())[1]
        return replica

    def batches():
        for _ in range(20):
            yield X[:8], Y[:8]

    monkeypatch.setattr(KerasPart, "open", opened)
    seen = []
    steps = C.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    fits.fit(where, steps, Puts("on_test_begin"), sync="localsgd", x=batches(), y=None,
             batch_size=None, epochs=1, validation_data=(X, Y))
    assert len(seen) == 20 and not [count for count in counts if 1 < count < 20]
    fits.says(END)


@pytest.mark.parametrize("name", ["on_train_batch_begin", "on_train_batch_end"])
@pytest.mark.parametrize("sync", [pytest.param("pcc", marks=pytest.mark.long), "localsgd"])
def test_a_write_in_a_batch_is_part_of_the_step(fits, where, name, sync):
    class Adds(C.Callback):
        pass

    def add(self, batch, logs=None):
        self.model.set_weights([w + np.float32(0.01) for w in self.model.get_weights()])

    setattr(Adds, name, add)
    final = fits.fit(where, Adds(), sync=sync)
    wanted = expected(added=np.float32(0.01))
    if name == "on_train_batch_begin":
        start = [w + np.float32(0.01) for w in START]
        wanted = expected(start=start, added=np.float32(0.01)) - np.float32(0.01)
    assert near(final, wanted)
    fits.says()


@pytest.mark.skipif(keras.backend.backend() != "tensorflow",
                    reason="only there a batch begins before it is known that the data has ended")
def test_a_write_before_a_missing_batch_is_undone(fits, where):
    import tensorflow as tf
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).filter(lambda x, y: True)

    class Adds(C.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == BATCHES:
                self.model.set_weights([w + 1 for w in self.model.get_weights()])

    final = fits.fit(where, Adds(), sync="localsgd", x=data, y=None, batch_size=None, epochs=2)
    then = expected(BATCHES) + 1
    assert near(final, expected(BATCHES, start=[then[:4].reshape(4, 1), then[4:]]))
    fits.says()


def test_a_user_defined_loop_may_call_the_callback(fits, jobs):
    server = jobs.server(sync="pcc", workers=1).listens()
    hook = wbsp.SyncCallback(server.address, 0, say=fits.said.append)
    model = fits.compiled()
    hook.set_model(model)
    hook.on_train_begin()
    for epoch in range(EPOCHS):
        hook.on_epoch_begin(epoch)
        for batch in range(BATCHES):
            hook.on_train_batch_begin(batch)
            at = slice(8 * batch, 8 * batch + 8)
            logs = model.train_on_batch(X[at], Y[at], return_dict=True)
            hook.on_train_batch_end(batch, logs)
        hook.on_epoch_end(epoch)
        put(model)
    hook.on_train_end()
    server.ends_well()
    assert near(vector(model), expected())
    fits.says(BETWEEN, END)


# A signal while a callback runs a loop of Keras.

class Loops(C.Callback):
    """Runs a loop of Keras in a method of that name, and gets Ctrl-C in its second batch, or before
    it; `batches` counts those that end."""

    def __init__(self, name, loop, early=False):
        super().__init__()
        self.batches, self.after = 0, 0

        def method(epoch, logs=None):
            if early:
                signal.raise_signal(signal.SIGINT)
            ends = {f"on_{kind}_batch_end": self.batch_ends
                    for kind in ("test", "predict", "train")}
            loop(self.model, Ends(**ends))
            self.after += 1

        setattr(self, name, method)

    def batch_ends(self, batch, logs=None):
        self.batches += 1
        if self.batches == 2:
            signal.raise_signal(signal.SIGINT)


class Ends(C.Callback):
    def __init__(self, **methods):
        super().__init__()
        vars(self).update(methods)


def evaluates(model, callback):
    model.evaluate(X, Y, batch_size=1, verbose=0, callbacks=[callback])


def predicts(model, callback):
    model.predict(X, batch_size=1, verbose=0, callbacks=[callback])


def fits_another(model, callback):
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    other.compile("sgd", "mse", jit_compile=False)
    other.fit(X, Y, batch_size=1, verbose=0, callbacks=[callback])


@pytest.fixture
def interrupts():
    """Ctrl-C, which a process in the background is started without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name, loop, early", [
    ("on_epoch_end", evaluates, False), ("on_epoch_end", predicts, False),
    ("on_epoch_end", fits_another, False), ("on_epoch_end", evaluates, True),
    ("on_epoch_begin", evaluates, False), ("on_train_batch_end", evaluates, False)])
def test_a_signal_ends_a_loop_of_keras_in_a_callback(jobs, fits, name, loop, early, interrupts):
    server = jobs.server(sync="localsgd", workers=1).listens()
    hook = wbsp.SyncCallback(server.address, 0, say=fits.said.append)
    loops = Loops(name, loop, early)
    with pytest.raises(KeyboardInterrupt):
        fits.compiled().fit(X, Y, batch_size=8, epochs=EPOCHS, shuffle=False, verbose=0,
                            callbacks=[loops, hook])
    assert sys.gettrace() is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert loops.batches == (0 if early else 2) and not loops.after
    server.until("worker 0 left: interrupted by SIGINT")
    hook.close()
    server.signal(signal.SIGINT)  # it would wait for the worker
    server.ends()
    steps = sum(event["steps"] for event in server.events("accept"))
    within = name == "on_train_batch_end"
    assert steps == (0 if within or name == "on_epoch_begin" else BATCHES), "an epoch is not lost"
    assert bool([line for line in fits.said if "within a step" in line]) == within


# Keras's own, in the order of the alphabet: the rows of the table.

def test_backup_and_restore(fits, where, tmp_path):
    fits.fit(where, C.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False))
    assert near(fits.final, expected())
    fits.says()
    model = fits.compiled()
    put(model, 0.25)
    model.save_weights(tmp_path / "backup" / "latest.weights.h5", overwrite=True)
    (tmp_path / "backup" / "training_metadata.json").write_text('{"epoch": 2, "batch": 0}')
    fits.fit(where, C.BackupAndRestore(tmp_path / "backup"))
    assert fits.steps == BATCHES, "it continues with the epoch after those that it has trained"
    if where == "before":
        assert near(fits.final, expected(BATCHES, start=[np.full_like(w, 0.25) for w in START]))
        fits.says()
    else:
        assert near(fits.final, expected(BATCHES))
        fits.says(BEFORE)


@pytest.mark.parametrize("epoch", [2, EPOCHS + 5])
def test_backup_and_restore_on_shared_data_loses_no_epoch(jobs, compiled, where, tmp_path, epoch):
    """Its epochs are the run's, whatever this worker's earlier process has done."""
    server, said = jobs.server(workers=1).listens(), []
    hook = wbsp.SyncCallback(server.address, 0, say=said.append)
    data = hook.examples(lambda i: (X[i], Y[i]), n=len(X), batch_size=8)
    model = compiled()
    (tmp_path / "backup").mkdir()
    model.save_weights(tmp_path / "backup" / "latest.weights.h5")
    (tmp_path / "backup" / "training_metadata.json").write_text(f'{{"epoch": {epoch}}}')
    backup = C.BackupAndRestore(tmp_path / "backup")
    history = model.fit(data, epochs=EPOCHS, steps_per_epoch=hook.UNTIL_TOLD, verbose=0,
                        callbacks=[backup, hook] if where == "before" else [hook, backup])
    hook.close()
    server.ends_well()
    assert history.epoch == [*range(EPOCHS)] and model._initial_epoch is None
    assert sum(event["steps"] for event in server.events("accept")) == STEPS
    assert [line for line in said if f"set the first epoch to {epoch + 1}: beginning with 1 of" in
            line]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_optimizers_own_schedule_is_reported_on_shared_data(jobs, workers):
    server, said = jobs.server(workers=1).listens(), []
    hook = wbsp.SyncCallback(server.address, 0, say=said.append)
    hook.connect()
    welcome = hook._member.welcome
    hook._member.welcome = msgspec.structs.replace(
        welcome, run=welcome.run._replace(workers=workers))
    data = hook.examples(lambda i: (X[i], Y[i]), n=len(X), batch_size=8)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    rate = keras.optimizers.schedules.CosineDecay(0.05, STEPS)
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(rate)), "mse",
                  jit_compile=False)
    model.fit(data, steps_per_epoch=hook.UNTIL_TOLD, verbose=0, callbacks=[hook])
    hook.close()
    server.ends_well()
    told = [line for line in said if "CosineDecay counts only this worker's steps" in line]
    assert len(told) == workers - 1 and all("wbsp.RunSchedule(schedule, hook)" in line
                                            for line in told)


def test_callback_list(fits, where):
    """Given as such, with another in it."""
    puts = C.CallbackList([Puts("on_epoch_end")])
    final = fits.fit(where, puts, among=lambda them, model: C.CallbackList(
        them, add_history=True, model=model, epochs=EPOCHS, steps=BATCHES))
    assert near(final, expected())
    fits.says(BETWEEN, END)


def test_csv_logger(fits, anywhere, tmp_path):
    final = fits.fit(anywhere, C.CSVLogger(tmp_path / "log.csv"))
    assert near(final, expected())
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 1 + EPOCHS
    fits.says()


def test_a_schedule_of_keras_counts_the_steps_of_all_workers(fits, where):
    cosine = keras.optimizers.schedules.CosineDecay(0.05, STEPS)

    def among(callbacks, model):
        hook, = callbacks
        schedule = wbsp.RunSchedule(cosine, hook)
        return [schedule, hook] if where == "before" else [hook, schedule]

    final = fits.fit(where, among=among)
    assert near(final, expected(rate=lambda step: 0.025 * (1 + np.cos(np.pi * step / STEPS))))
    fits.says()


@pytest.mark.parametrize("best", [False, True])
def test_early_stopping(fits, where, best):
    rises = C.LambdaCallback(on_epoch_end=lambda epoch, logs: logs.update(rising=epoch))
    stops = C.EarlyStopping("rising", mode="min", patience=1, restore_best_weights=best)
    final = fits.fit(where, rises, stops)
    assert fits.steps == 2 * BATCHES, "it stops"
    assert near(final, expected(2 * BATCHES)), "and what it puts back is not in the final version"
    fits.says(*([BEST, END] if best else []))


def test_history(fits, anywhere):
    history = C.History()
    final = fits.fit(anywhere, history)
    assert near(final, expected()) and len(history.history["loss"]) == EPOCHS
    fits.says()


def test_lambda_callback(fits, where):
    final = fits.fit(where, C.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: put(fits.model) if epoch else None,
        on_train_end=lambda logs: put(fits.model)))
    assert near(final, expected())
    fits.says(BETWEEN, END)


def test_learning_rate_scheduler(fits, anywhere):
    final = fits.fit(anywhere, C.LearningRateScheduler(lambda epoch: 0.05 / (1 + epoch)))
    assert near(final, expected(rate=lambda step: 0.05 / (1 + step // BATCHES)))
    fits.says()


def test_model_checkpoint(fits, where, tmp_path):
    saves = C.ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True)
    best = C.ModelCheckpoint(tmp_path / "best.keras", "loss", save_best_only=True)
    loads = C.LambdaCallback(  # as one that goes back to its checkpoint does
        on_epoch_end=lambda epoch, logs: fits.model.load_weights(tmp_path / "1.weights.h5"))
    final = fits.fit(where, saves, best, loads)
    assert near(final, expected())
    assert near(vector(keras.saving.load_model(tmp_path / "best.keras")), expected())
    fits.model.load_weights(tmp_path / "1.weights.h5")
    assert near(vector(fits.model), expected(BATCHES))
    fits.says(BETWEEN, END)


def test_orbax_checkpoint(fits, anywhere, tmp_path):
    pytest.importorskip("orbax.checkpoint")
    final = fits.fit(anywhere, C.OrbaxCheckpoint(tmp_path / "orbax", max_to_keep=None))
    assert near(final, expected())
    assert {path.name for path in (tmp_path / "orbax").iterdir()} >= {"0", "1", "2"}
    fits.says()


def test_progbar_logger(fits, anywhere, capsys):
    final = fits.fit(anywhere, C.ProgbarLogger(), verbose=2)
    assert near(final, expected()) and f"Epoch {EPOCHS}/{EPOCHS}" in capsys.readouterr().out
    fits.says()


def test_reduce_lr_on_plateau(fits, anywhere):
    reduces = C.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1e9)
    final = fits.fit(anywhere, reduces)
    assert near(final, expected(rate=lambda step: 0.05 * 0.5 ** max(0, step // BATCHES - 1)))
    fits.says()


def test_remote_monitor(fits, anywhere):
    with pytest.warns(UserWarning, match="Could not reach RemoteMonitor"):
        final = fits.fit(anywhere, C.RemoteMonitor("http://127.0.0.1:9"))
    assert near(final, expected())
    fits.says()


@pytest.mark.parametrize("on_epoch", [False, True])
def test_swap_ema_weights(fits, where, on_epoch):
    seen = []

    class Looks(C.Callback):
        def on_test_batch_end(self, batch, logs=None):
            seen.append(vector(self.model))

    averaging = {"use_ema": True, "ema_momentum": 0.9}
    alone = fits.compiled(**averaging)
    alone.fit(X, Y, batch_size=8, epochs=EPOCHS, shuffle=False, verbose=0,
              callbacks=[C.SwapEMAWeights(on_epoch)], validation_data=(X, Y))
    averages = vector(alone)
    final = fits.fit(where, C.SwapEMAWeights(on_epoch), Looks(), validation_data=(X, Y),
                     optimizer=averaging)
    assert near(final, expected()), "the average is no progress"
    assert near(seen[-1], averages) and not near(averages, final), "it is evaluated"
    assert near(vector(fits.model), averages), "and left, as without a server"
    fits.says(AVERAGES)


def test_swap_ema_weights_where_keras_loses_the_averages(fits, where):
    stops = C.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(fits.model, "stop_training", epoch == 1))
    final = fits.fit(where, C.SwapEMAWeights(swap_on_epoch=True), stops,
                     optimizer={"use_ema": True, "ema_momentum": 0.9})
    assert near(final, expected(2 * BATCHES))
    assert vector(fits.model).tobytes() == final.tobytes()
    fits.says("keeps no averages if training ends before its last epoch")


def test_tensor_board(fits, anywhere, tmp_path):
    pytest.importorskip("tensorflow")
    board = C.TensorBoard(tmp_path / "logs", histogram_freq=1, write_graph=False)
    final = fits.fit(anywhere, board)
    assert near(final, expected())
    assert any(path.is_file() for path in (tmp_path / "logs").rglob("events*"))
    fits.says()


@pytest.mark.parametrize("raises", [False, True])
def test_terminate_on_nan(fits, where, raises):
    class Breaks(C.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 2:
                put(self.model, np.nan)

    stops = C.TerminateOnNaN(raise_error=raises)
    if raises:
        with pytest.raises(RuntimeError, match="NaN or Inf loss"):
            fits.fit(where, Breaks(), stops)
    else:
        final = fits.fit(where, Breaks(), stops, sync="bsp")
        assert near(final, expected(2)) and fits.steps == 2, "the last that was finite"


def test_each_callback_of_keras_has_its_test_and_its_row():
    page = (ROOT / "docs/reference/callbacks.md").read_text()
    names = {name for name in dir(C) if isinstance(getattr(C, name), type)}
    tested = {name.removeprefix("test_").replace("_", "") for name in globals()}
    for name in names - {"Callback"}:
        assert name.lower() in tested, name
        assert f"| `{name}" in page, name
