"""The callback in a user's own script, with a server that does not know the script."""

import json

import forked
import numpy as np
import pytest
from back_ends import ON_TORCH
from conservation import steps_of
from jobs import free_port

from wbsp.ps.checkpoint import format as checkpoint

pytestmark = pytest.mark.slow  # TensorFlow takes its seconds to start

# A user's script: another model, another optimizer, and no word of wbsp but the callback.
SCRIPT = """
import random
import sys
import time
import keras
import numpy as np
import wbsp

class Slow(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        time.sleep(0.02 * index)

schedule = keras.optimizers.schedules.PiecewiseConstantDecay([250], [0.01, 0.005])
index = int(sys.argv[2])
draw = np.random.default_rng(index)
x = draw.normal(3.0, 2.0, (1024, 8)).astype(np.float32)
y = (x[:, 0] + x[:, 1] > 6).astype(np.int32)
random.seed(index)  # keras.utils.set_random_seed imports TensorFlow wherever it is installed
model = keras.Sequential([
    keras.Input((8,)), keras.layers.BatchNormalization(), keras.layers.Dense(32, "relu"),
    keras.layers.Dropout(0.1), keras.layers.Dense(2)])
model.compile(keras.optimizers.Adam(0.01),
              keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
callback = wbsp.SyncCallback(f"localhost:{sys.argv[1]}", worker_index=index)
model.fit(x, y, batch_size=32, epochs=5, verbose=0,
          callbacks=[callback, Slow(), wbsp.RunSchedule(schedule, callback)])
print("run_steps", callback.run_steps, "rate", float(model.optimizer.learning_rate))
weights = [*model.trainable_weights, *model.non_trainable_weights]
np.savez(f"worker{index}.npz",
         *[keras.ops.convert_to_numpy(v) for v in weights if "float" in v.dtype])
test = np.random.default_rng(9).normal(3.0, 2.0, (1000, 8)).astype(np.float32)
answers = model.predict(test, verbose=0).argmax(1)
print("accuracy", (answers == (test[:, 0] + test[:, 1] > 6)).mean())
print("imported", *sorted({"jax", "tensorflow", "torch"} & set(sys.modules)))
"""

FROM_ENVIRONMENT = """
import keras
import numpy as np
import wbsp

model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((8, 1)), np.ones((8, 1)), epochs=1, verbose=0, callbacks=[wbsp.SyncCallback()])
print("trained")
"""


def script(jobs, text):
    path = jobs.folder / "train.py"
    path.write_text(text)
    return path


def started(jobs, train, port, index, back_end):
    return jobs.start(f"worker{index}", train, port, index, KERAS_BACKEND=back_end,
                      fork=forked.KERAS if back_end == "tensorflow" else "")


@pytest.mark.parametrize("back_ends", [
    ("jax", "tensorflow"),
    pytest.param(("torch", "torch"), marks=ON_TORCH),
    pytest.param(("torch", "jax"), marks=ON_TORCH),
], ids="-".join)
def test_a_users_own_model_trains_with_one_callback_in_fit(jobs, back_ends):
    server = jobs.server(sync="pcc").listens()
    train = script(jobs, SCRIPT)
    port = server.address.rpartition(":")[2]
    workers = [started(jobs, train, port, index, back_end)
               for index, back_end in enumerate(back_ends)]
    server.until("worker 0 joined")
    maps = open(f"/proc/{server.process.pid}/maps").read()
    assert "numpy" in maps and "tensorflow" not in maps, "the server has imported TensorFlow"
    for job in (*workers, server):
        job.ends_well()
    saved = checkpoint.load(server.folder / "checkpoint.safetensors")
    names = [spec.name.rpartition("/")[2] for spec in saved.layout]
    assert names[-2:] == ["moving_mean", "moving_variance"]
    for index in range(2):
        arrays = np.load(jobs.folder / f"worker{index}.npz")
        vector = np.concatenate([arrays[name].ravel() for name in arrays.files])
        assert vector.tobytes() == saved.vector.tobytes()
    statistics = saved.vector[-16:-8]
    assert np.all(statistics > 1), f"the inputs' mean of 3 is not in {statistics}"
    for worker, back_end in zip(workers, back_ends, strict=True):
        assert float(worker.find("^accuracy")[0].split()[1]) > 0.75
        if back_end != "tensorflow":
            (imported,) = worker.find("^imported")
            assert "tensorflow" not in imported
    known = sorted((int(steps), float(rate)) for _, steps, _, rate in (
        worker.find("^run_steps")[0].split() for worker in workers))
    assert 160 <= known[0][0] <= known[1][0] == 320, "the last answer counts the steps of all"
    assert known[1][1] == np.float32(0.005), "and the schedule does, of which each made 160"
    (stood,) = workers[0].find("worker 0: all its steps were done after .* it then waited")
    assert "hook.examples(" in stood and "hook.UNTIL_TOLD" in stood
    assert not workers[1].find("it then waited")
    steps = json.loads((server.folder / "summary.json").read_text())["workers"]
    assert steps["1"]["seconds"]["callbacks"] >= 160 * 0.02
    assert [steps[w]["steps"] for w in ("0", "1")] == 2 * [5 * 32]
    assert [steps[w]["samples"] for w in ("0", "1")] == 2 * [5 * 1024]


SURVIVOR = """
import sys, time, keras, numpy as np, wbsp

class Pause(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)
        print("step", self.params["epochs"], batch, flush=True)

index = int(sys.argv[2])
draw = np.random.default_rng(index)
x = draw.normal(size=(640, 8)).astype("float32")
y = x.sum(1, keepdims=True)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.01), "mse")
hook = wbsp.SyncCallback(f"localhost:{sys.argv[1]}", worker_index=index, patience=100)
model.fit(x, y, batch_size=8, epochs=2, verbose=0, callbacks=[hook, Pause()])
np.save(f"worker{index}.npy", np.concatenate([w.ravel() for w in model.get_weights()]))
print("fit returned; loss", model.evaluate(x, y, verbose=0))
"""


@pytest.mark.parametrize("back_ends", [
    ("tensorflow", "tensorflow"), pytest.param(("tensorflow", "jax"), marks=pytest.mark.long),
], ids="-".join)
def test_fit_outlives_its_server(jobs, back_ends):
    flags, port = ["--check_period=0.3", "--base_dir=run"], free_port()
    server = jobs.server(*flags, port=port, sync="pcc").listens()
    train = script(jobs, SURVIVOR)
    workers = [started(jobs, train, port, index, back_end)
               for index, back_end in enumerate(back_ends)]
    workers[0].until("step 2 40")
    server.kill()
    again = jobs.server(*flags, "--resume", port=port, sync="pcc")
    for job in (*workers, again):
        job.ends_well()
    saved = checkpoint.load(again.folder / "checkpoint.safetensors")
    assert steps_of(saved.state) == {0: 160, 1: 160}
    for index, worker in enumerate(workers):
        assert np.load(jobs.folder / f"worker{index}.npy").tobytes() == saved.vector.tobytes()
        assert worker.find("no connection to the server at .*; trying for 100 s")
        assert float(worker.find("fit returned")[0].split()[-1]) < 8, "it has learned nothing"
    assert {e["worker"] for e in again.events("reattach")} == {0, 1}


def test_tf_config_alone_is_enough(jobs):
    port = free_port()
    cluster = {"ps": [f"localhost:{port}"], "worker": ["localhost:1"]}

    def place(kind):
        return json.dumps({"cluster": cluster, "task": {"type": kind, "index": 0}})

    server = jobs.start("server", "-m", "wbsp.ps", TF_CONFIG=place("ps"))
    worker = jobs.start("worker", script(jobs, FROM_ENVIRONMENT), TF_CONFIG=place("worker"),
                        KERAS_BACKEND="jax")  # which starts sooner
    worker.ends_well()
    server.ends_well()
    assert worker.find("trained")
    assert server.find("worker 0 joined")
