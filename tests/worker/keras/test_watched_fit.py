"""A training of the user's own can be watched as the launcher's experiment can: its loss over time,
who does what when, what another back end finds of its versions, and those that it leaves."""

import importlib.util
import json

import forked
import pytest

from wbsp import read_run

pytestmark = pytest.mark.slow  # TensorFlow takes its seconds to start

MODEL = """
import keras, numpy as np, sys, wbsp
x = np.random.default_rng(1).normal(size=(640, 32)).astype("float32")
y = x[:, :10].argmax(1)
model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, "relu"),
                          keras.layers.BatchNormalization(), keras.layers.Dense(10)])
def predict():
    return keras.ops.convert_to_numpy(model(x[:50], training=False))
"""
TRAIN = MODEL + """
import time
class Pause(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.02)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(x, y, batch_size=64, epochs=6, verbose=0,
          callbacks=[Pause(), wbsp.SyncCallback(sys.argv[1], int(sys.argv[2]))])
if sys.argv[2] == "0":
    np.save("predicted.npy", predict())
"""
EVALUATE = MODEL + """
import pathlib, time
model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
              metrics=["accuracy"])
for version in wbsp.versions(sys.argv[1]):
    version.assign(model)
    version.report(**model.evaluate(x, y, verbose=0, return_dict=True))
while not pathlib.Path("go").exists():
    time.sleep(0.1)
folder = pathlib.Path("go").read_text()
print("version", wbsp.load(folder, model))
assert np.allclose(predict(), np.load("predicted.npy"), rtol=1e-4, atol=1e-4)
best = wbsp.load(folder, model, best=True)
print(f'best {best} {model.evaluate(x, y, verbose=0, return_dict=True)["accuracy"]:.4f}')
"""
ELSEWHERE = "torch" if importlib.util.find_spec("torch") else "jax"


@pytest.mark.parametrize("back_end", [
    "tensorflow", pytest.param(ELSEWHERE, marks=pytest.mark.long)])
def test_a_fit_with_a_user_defined_model_ends_with_its_version(jobs, back_end):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    server = jobs.server("--check_period=0.3", "--best=accuracy").listens()
    (jobs.folder / "train.py").write_text(TRAIN)
    (jobs.folder / "evaluate.py").write_text(EVALUATE)
    evaluator = jobs.start("evaluator", "evaluate.py", server.address, KERAS_BACKEND=back_end,
                           fork=forked.KERAS if back_end == "tensorflow" else "")
    server.until("a process at .* evaluates versions")
    workers = [jobs.start(f"worker{i}", "train.py", server.address, i, fork=forked.KERAS)
               for i in range(2)]
    for job in (*workers, server):
        job.ends_well()
    run = read_run(server.folder)
    told = [event for event in run.events if event["kind"] == "training"]
    assert sum(event["samples"] for event in told) == 2 * 6 * 640, "each sample once"
    assert len(told) > 1 and told[-1]["loss"] < told[0]["loss"], "it learns"
    curves = EventAccumulator(str(server.folder)).Reload()
    assert {"training/loss", "version", "staleness/mean", "speed/worker_1",
            "compute_share/worker_0"} <= set(curves.Tags()["scalars"])
    assert sorted(run.spans) == [0, 1]
    for worker, spans in run.spans.items():
        computed = sum(one["seconds"] for one in spans if one["kind"] == "compute")
        known = run.summary["workers"][str(worker)]["seconds"]["compute"]
        assert computed == pytest.approx(known, rel=0.05)
    assert not list(server.folder.glob("wk_*")), "the published files are the experiment's"
    version = json.loads((server.folder / "summary.json").read_text())["version"]
    assert run.evaluations.version[-1] == version
    assert "evaluation/accuracy" in curves.Tags()["scalars"]
    best = run.evaluations.accuracy.argmax()
    (jobs.folder / "go").write_text(str(server.folder))
    evaluator.ends_well()
    assert evaluator.find(f"^version {version}$")
    assert evaluator.find(f"^best {run.evaluations.version[best]} "
                          f"{run.evaluations.accuracy[best]:.4f}$")
