"""A step of `fit` in phases: fetching its batch, computing, and other callbacks."""

import json

import forked
import pytest
from back_ends import JAX_AT_NIGHT, TORCH

pytestmark = pytest.mark.slow  # a back end takes its seconds to start

# Of each form of data: the seconds of the phases, and whether the weights are those without them.
SCRIPT = """
import collections, json, time, warnings
import keras
import numpy as np
from wbsp.worker.keras.train_function import TimedSteps

warnings.filterwarnings("ignore")
READS, CALLBACK, STEPS, BATCH = 0.05, 0.01, 6, 8
x = np.random.default_rng(0).normal(size=(STEPS * BATCH - 3, 4)).astype("float32")
y = x[:, :1]

class Timed(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.seconds, self.phase, self.since = collections.Counter(), "", 0.0
        self.steps = TimedSteps(self.model, self.enter)
    def enter(self, phase):
        now = time.monotonic()
        self.seconds[self.phase] += now - self.since
        self.phase, self.since = phase, now
    def on_train_batch_begin(self, batch, logs=None):
        self.enter(self.steps.phase)
        time.sleep(CALLBACK)
    def on_train_batch_end(self, batch, logs=None):
        self.enter("data")
    def on_train_end(self, logs=None):
        self.steps.release()

def batches():
    for i in range(STEPS):
        time.sleep(READS)
        yield x[i * BATCH:(i + 1) * BATCH], y[i * BATCH:(i + 1) * BATCH]

class Reader(keras.utils.PyDataset):
    def __len__(self):
        return STEPS
    def __getitem__(self, i):
        time.sleep(READS)
        return x[i * BATCH:(i + 1) * BATCH], y[i * BATCH:(i + 1) * BATCH]

def generator():
    return {"x": batches(), "steps_per_epoch": STEPS}

def dataset():
    import tensorflow as tf
    kinds = tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])
    return {"x": tf.data.Dataset.from_generator(batches, output_signature=kinds)}

FORMS = {"pydataset": lambda: {"x": Reader(), "shuffle": False}, "generator": generator,
         "arrays": lambda: {"x": x, "y": y, "batch_size": BATCH, "shuffle": False}}
if keras.backend.backend() == "tensorflow":
    FORMS["dataset"] = dataset

def fitted(form, *callbacks, **compiled):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("adam", "mse", **compiled)
    model.fit(**FORMS[form](), epochs=1, verbose=0, callbacks=[*callbacks])
    assert "timed" not in str(model.train_function), "the model has its own function back"
    return model.get_weights()

for form in FORMS:
    timed = Timed()
    with_it, without = fitted(form, timed), fitted(form)
    print(form, json.dumps([timed.seconds, all(map(np.array_equal, with_it, without))]), flush=True)
if keras.backend.backend() == "tensorflow":
    timed = Timed()
    fitted("pydataset", timed, steps_per_execution=2)
    print("several", json.dumps([timed.seconds, True]))
"""


@pytest.mark.parametrize("back_end", ["tensorflow", JAX_AT_NIGHT, TORCH])
def test_data_compute_and_callbacks_are_timed_separately_without_other_effects(jobs, back_end):
    (jobs.folder / "train.py").write_text(SCRIPT)
    job = jobs.start("train", "train.py", KERAS_BACKEND=back_end,
                     fork=forked.KERAS if back_end == "tensorflow" else "")
    job.ends_well()
    told = {}
    for line in job.text.splitlines():
        form, _, rest = line.partition(" ")
        if form in ("pydataset", "generator", "arrays", "dataset", "several"):
            told[form], same = json.loads(rest)
            assert same, f"{form}: other weights than without"
    for form in ("pydataset", "generator", *(["dataset"] if back_end == "tensorflow" else [])):
        assert told[form]["data"] >= 5 * 0.02, form  # some may have been read before
        assert told[form]["callbacks"] >= 6 * 0.01, form
    assert told["arrays"]["data"] < told["pydataset"]["data"]
    assert "compute" in told["arrays"] and "data or compute" not in told["arrays"]
    if back_end == "tensorflow":
        assert "compute" not in told["several"] and told["several"]["data or compute"] > 0.1
