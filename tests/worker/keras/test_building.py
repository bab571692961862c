"""Models whose variables Keras makes in the first step, and tuners, which build such models."""

import copy
import importlib.util
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import wbsp
from wbsp.replica.model import KerasPart, sums_gradients
from wbsp.worker import next_run
from wbsp.worker.keras.fit import build

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = X.sum(1, keepdims=True)


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = keras.layers.Dense(8, "relu")
        self.outer = keras.layers.Dense(1)

    def call(self, x):
        return self.outer(self.inner(x["x"] if isinstance(x, dict) else x))


def sequential():
    return keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])


class Pairs(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return X[:16], Y[:16]


@pytest.mark.parametrize("make", [Net, sequential])
@pytest.mark.parametrize("data", [
    X, {"x": X}, tf.constant(X), Pairs(), tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)],
    ids=["array", "dict", "tensor", "PyDataset", "tf.data"])
def test_a_model_is_built_from_what_fit_was_given(make, data):
    if isinstance(data, dict) and make is sequential:
        return  # Keras's Sequential takes one input
    model = make()
    build(model, data)
    assert [tuple(v.shape) for v in model.variables] == [(4, 8), (8,), (8, 1), (1,)]


def test_nothing_is_taken_of_a_generator():
    taken = []

    def batches():
        taken.append(1)
        yield X, Y

    model = Net()
    build(model, batches())
    assert not taken and not model.variables


class Gan(keras.Model):
    """Has no `call`, as keras.io's; each of its parts has an optimizer."""

    def __init__(self, *layers):
        super().__init__(name="gan")
        self.maker = keras.Sequential([*layers, keras.layers.Dense(4)], name="maker")
        self.critic = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)], name="critic")
        self.for_maker, self.for_critic = (keras.optimizers.SGD(0.01) for _ in range(2))

    def train_step(self, data):
        losses = {}
        for part, optimizer in ((self.maker, self.for_maker), (self.critic, self.for_critic)):
            with tf.GradientTape() as tape:
                losses[part.name] = tf.reduce_mean(part(data) ** 2)
            optimizer.apply_gradients(zip(tape.gradient(losses[part.name],
                                                        part.trainable_weights),
                                          part.trainable_weights, strict=True))
        return losses


def test_a_model_without_call_must_be_built_by_the_user():
    model = Gan(keras.Input((4,)))
    build(model, X)
    assert len(KerasPart(model).layout) == 4 and not model.built
    model.compile(optimizer="sgd")
    assert not sums_gradients(model), "not the one optimizer trains it"
    with pytest.raises(ValueError, match="no variables .* has no `call`, so build its layers befo"):
        KerasPart(type("Other", (keras.Model,), {})())
    with pytest.raises(ValueError, match="variable maker/dense.* has no `call`, so build maker be"):
        late = Gan()
        before = KerasPart(late)
        late.maker(X)
        before.check()


def test_an_error_in_call_is_shown_unless_a_train_step_may_do_without_it():
    class Wrong(keras.Model):
        def call(self, x):
            raise ArithmeticError("of its own")

    with pytest.raises(ArithmeticError):
        build(Wrong(), X)
    build(type("Own", (Wrong,), {"train_step": lambda self, data: {}})(), X)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True], ids=["own data", "shared data"])
def test_a_model_without_call_is_trained(jobs, shared):
    server = jobs.server(workers=1).listens()
    hook = wbsp.SyncCallback(server.address, 0, say=lambda text: None)
    model = Gan(keras.Input((4,)))
    model.compile()
    given = {"x": X, "batch_size": 8}
    if shared:
        given = {"x": hook.examples(lambda i: X[i], n=64, batch_size=8),
                 "steps_per_epoch": hook.UNTIL_TOLD}
    parts = model.maker, model.critic
    before = [float(tf.reduce_mean(part(X) ** 2)) for part in parts]
    model.fit(**given, epochs=2, verbose=0, callbacks=[hook])
    hook.close()
    server.ends_well()
    assert all(tf.reduce_mean(part(X) ** 2) < was for part, was in zip(parts, before, strict=True))
    assert sum(event["steps"] for event in server.events("accept")) == 16


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True], ids=["own data", "shared data"])
def test_models_that_fit_builds_are_trained(jobs, shared):
    server = jobs.server(workers=1, series=True).listens()
    finals = []
    for make in sequential, Net:
        hook = wbsp.SyncCallback(server.address, 0, say=lambda text: None)
        model = make()
        model.compile("sgd", "mse", jit_compile=False)
        given = {"x": X, "y": Y, "batch_size": 8, "epochs": 2}
        if shared:
            given = {"x": hook.examples(lambda i: (X[i], Y[i]), n=64, batch_size=8), "epochs": 2,
                     "steps_per_epoch": hook.UNTIL_TOLD}
        model.fit(**given, verbose=0, callbacks=[hook])
        finals.append(model)
    next_run.close_all()
    server.ends_well()
    for number, model in enumerate(finals, 1):
        kept = wbsp.read_run(server.cwd / "runs" / "pcc" / f"run-{number:03}")
        assert kept.summary["workers"]["0"]["steps"] == 16
        loaded = type(model)() if type(model) is Net else sequential()
        loaded(X)
        wbsp.load(server.cwd / "runs" / "pcc" / f"run-{number:03}", loaded)
        assert np.array_equal(loaded.predict(X, verbose=0), model.predict(X, verbose=0))


@pytest.mark.slow
def test_copies_of_the_hook_train_its_data_one_trial_after_the_other(jobs):
    """As a tuner that is given both: it copies its callbacks for each trial."""
    server = jobs.server(workers=1, series=True).listens()
    hook = wbsp.SyncCallback(server.address, 0, say=lambda text: None)
    data = hook.examples(lambda i: (X[i], Y[i]), n=64, batch_size=8)
    assert hook.rule, "it is connected"
    for _ in range(2):
        model = sequential()
        model.compile("sgd", "mse", jit_compile=False)
        copied = copy.deepcopy([hook])
        model.fit(data, epochs=2, steps_per_epoch=hook.UNTIL_TOLD, verbose=0, callbacks=copied)
        assert copied[0].stop_reason == "all 2 epochs are trained"
    next_run.close_all()
    server.ends_well()
    for number in (1, 2):
        kept = wbsp.read_run(server.cwd / "runs" / "pcc" / f"run-{number:03}")
        assert kept.summary["workers"]["0"]["steps"] == 16


TUNED = textwrap.dedent("""
    import os, keras, numpy as np, wbsp
    index = wbsp.SyncCallback().worker  # which the server chooses
    x = np.random.default_rng(0).normal(size=(640, 8)).astype("float32")
    y = np.abs(x[:, :3]).argmax(1)

    def made(units, rate):
        model = keras.Sequential([keras.layers.Dense(units, "relu"), keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(rate), keras.losses.SparseCategoricalCrossentropy(
            from_logits=True), metrics=["accuracy"], jit_compile=False)
        return model

    def trained(model, *callbacks):
        hook = wbsp.SyncCallback()
        data = hook.examples(lambda i: (x[i], y[i]), n=len(x), batch_size=32, validate="wait")
        return model.fit(data, epochs=3, steps_per_epoch=hook.UNTIL_TOLD, validation_data=(x, y),
                         verbose=0, callbacks=[hook, *callbacks])
    """)
TUNERS = {"keras_tuner": """
    import keras_tuner

    class Model(keras_tuner.HyperModel):
        def build(self, hp):
            return made(hp.Choice("units", [4, 32]), hp.Choice("rate", [0.01, 0.2]))

        def fit(self, hp, model, *data, callbacks=(), **others):
            return trained(model, *callbacks)

    tuner = keras_tuner.RandomSearch(Model(), objective="val_accuracy", max_trials=3, seed=1,
                                     directory=f"tuner-{index}", overwrite=True)
    tuner.search()
    print("best:", tuner.get_best_hyperparameters()[0].values,
          [trial.score for trial in tuner.oracle.trials.values()])
    """, "optuna": """
    import optuna

    def objective(trial):
        model = made(trial.suggest_categorical("units", [4, 32]),
                     trial.suggest_float("rate", 0.01, 0.3))
        return trained(model).history["val_accuracy"][-1]

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=3)
    print("best:", study.best_params, [trial.value for trial in study.trials])
    """}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("tuner", [pytest.param(name, marks=pytest.mark.skipif(
    importlib.util.find_spec(name) is None, reason="pip install keras-tuner optuna"))
    for name in TUNERS])
def test_a_tuners_trials_are_runs_and_all_workers_choose_the_same(jobs, tuner):
    (jobs.folder / "tune.py").write_text(TUNED + textwrap.dedent(TUNERS[tuner]))
    server = jobs.server(series=True).listens()
    workers = [jobs.start(f"worker{index}", "tune.py", WBSP_SERVER=server.address,
                          CUDA_VISIBLE_DEVICES="") for index in range(2)]
    for job in (*workers, server):
        job.ends_well()
    (first,), (second,) = (job.find("^best: ") for job in workers)
    assert first == second
    assert len(list((server.cwd / "runs" / "pcc").glob("run-*/summary.json"))) == 3
