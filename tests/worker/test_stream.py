"""Batches whose sizes the server changes: each piece once, one trace, nobody waits for good."""

import json
import subprocess
import sys
import threading
import time

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import ROOT, Jobs, ServerJob, free_port

import wbsp
from models import training
from wbsp.worker.callback import batches
from wbsp.worker.stream import LOOK, NOTHING, Assignments

PATIENCE = 20.0  # seconds; only there so that nothing hangs for ever
many = settings(max_examples=500, derandomize=True, deadline=None, database=None)


def test_before_training_begins_there_is_a_look_and_no_more():
    assignments = Assignments()
    assignments.assign(32, 0)
    assert list(assignments) == list(assignments) == [LOOK]
    assignments.begin(8)
    assert next(iter(assignments)) == (0, 32), "the look took nothing"


EVENTS = st.lists(st.one_of(
    st.tuples(st.just("assign"), st.integers(1, 50), st.integers(0, 3)),  # how far ahead
    st.tuples(st.just("again")), st.tuples(st.just("step")), st.tuples(st.just("take"))),
    max_size=30)


@many
@given(EVENTS)
def test_a_piece_of_the_shared_stream_is_given_once(events):
    assignments = Assignments()
    assignments.begin(8)
    pieces, assigned, taken = iter(assignments), [(0, 5)], []
    assignments.assign(5, 0)
    for kind, *numbers in events:
        match kind:
            case "assign":
                batch, ahead = numbers
                assigned.append((sum(assigned[-1]) + ahead, batch))
                assignments.assign(*reversed(assigned[-1]))
            case "again":  # a connection was made again, and the server repeats itself
                assignments.assign(*reversed(assigned[-1]))
            case "step":
                assignments.step_begins()
            case "take" if len(taken) < len(assigned):
                taken.append(next(pieces))
    while len(taken) < len(assigned):
        taken.append(next(pieces))
    assert taken == assigned


@many
@given(st.lists(st.one_of(st.none(), st.integers(1, 50)), min_size=1, max_size=30))
def test_the_own_stream_goes_on_without_a_gap_whatever_its_sizes(events):
    """None: a step begins; else the server says another size."""
    assignments = Assignments()
    assignments.begin(8)
    pieces, size, position = iter(assignments), 8, 0
    for event in [*events, None]:
        if event is None:
            assignments.step_begins()
            assert next(pieces) == (position, size)
            position += size
        else:
            size = event
            assignments.assign(size, None)


def test_who_waits_for_a_piece_is_answered_in_time():
    assignments = Assignments()
    assignments.begin(8)
    pieces = iter(assignments)
    start = time.monotonic()
    assert next(pieces) == NOTHING
    threading.Timer(0.05, assignments.end).start()
    assert set(pieces) <= {NOTHING}
    assert time.monotonic() - start < PATIENCE


def test_a_stream_is_read_once():
    assignments = Assignments()
    assignments.begin(8)
    assignments.step_begins()
    assert next(iter(assignments)) == (0, 8)
    with pytest.raises(RuntimeError, match="read once: give fit its steps_per_epoch"):
        next(iter(assignments))


# Real fits, the server's part played by a callback.

FEATURES = 3


def examples(start, count):
    """The position is the first feature."""
    position = tf.range(start, start + count)
    x = tf.stack([tf.cast(position, tf.float32)] * FEATURES, 1)
    return tf.ensure_shape(x, [None, FEATURES]), tf.cast(position % 2, tf.int32)


class Counting(keras.Model):
    """A linear model that remembers how often its step was traced, and what it was trained on."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.traces, self.seen = 0, []

    def build(self, input_shape):
        self.dense.build(input_shape)

    def call(self, x):
        return self.dense(x)

    def train_step(self, batch):
        self.traces += 1
        tf.py_function(lambda x: self.seen.append(x.numpy()), [batch[0][:, 0]], [])
        return super().train_step(batch)


def counting(**options):
    model = Counting()
    model.build((None, FEATURES))
    model.compile(keras.optimizers.SGD(1e-6), jit_compile=False,
                  loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), **options)
    return model


class Director(keras.callbacks.Callback):
    """Assigns pieces as a server does: the next one when a step has ended."""

    def __init__(self, assignments, sizes, shared=True):
        super().__init__()
        self.assignments, self.sizes, self.shared = assignments, iter(sizes), shared
        self.position = 0

    def on_train_begin(self, logs=None):
        self.assignments.begin(4)
        self._assign()

    def on_train_batch_begin(self, batch, logs=None):
        self.assignments.step_begins()

    def on_train_batch_end(self, batch, logs=None):
        self._assign()

    def on_train_end(self, logs=None):
        self.assignments.end()

    def _assign(self):
        if (size := next(self.sizes, None)) is not None:
            self.assignments.assign(size, self.position if self.shared else None)
            self.position += size


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("strategy", [tf.distribute.get_strategy,
                                      lambda: tf.distribute.OneDeviceStrategy("/cpu:0")])
def test_a_fit_with_changing_sizes_trains_what_it_was_told_and_traces_once(strategy, shared):
    sizes = np.random.default_rng(0).integers(1, 60, 40).tolist()
    with strategy().scope():
        model = counting()
    assignments = Assignments()
    model.fit(batches(assignments, examples), epochs=4, steps_per_epoch=10, verbose=0,
              callbacks=[Director(assignments, sizes, shared)])
    assert list(map(len, model.seen)) == sizes
    assert np.concatenate(model.seen).tolist() == list(range(sum(sizes)))
    usual = counting()
    usual.fit(np.zeros((80, FEATURES)), np.zeros(80, int), batch_size=8, epochs=1, verbose=0)
    assert model.traces <= usual.traces


def test_a_user_may_look_at_the_dataset_before_fit():
    assignments = Assignments()
    dataset = batches(assignments, examples)
    (x, y), = dataset
    assert x.shape == (LOOK[1], FEATURES) and y.shape == LOOK[1:]
    model = counting()
    model.fit(dataset, epochs=1, steps_per_epoch=3, verbose=0,
              callbacks=[Director(assignments, [5, 6, 7])])
    assert list(map(len, model.seen)) == [5, 6, 7]


def test_the_end_comes_through_to_who_waits_for_a_batch():
    assignments = Assignments()
    dataset = batches(assignments, examples)
    assignments.begin(None)
    threading.Timer(0.3, assignments.end).start()
    start = time.monotonic()
    assert list(dataset) == []
    assert time.monotonic() - start < PATIENCE


def test_who_takes_some_batches_waits_for_no_more():
    assignments = Assignments()
    assignments.begin(None)
    for start in (0, 5):
        assignments.assign(5, start)
    begin = time.monotonic()
    assert [len(x) for x, _ in batches(assignments, examples).take(2)] == [5, 5]
    assert time.monotonic() - begin < PATIENCE


def test_an_error_in_the_middle_of_fit_leaves_nobody_waiting():
    """Nobody calls `end` here, and the pipeline's thread waits for a piece that never comes."""
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 2:
                raise ArithmeticError("out of memory, say")

    assignments = Assignments()
    start = time.monotonic()
    with pytest.raises(ArithmeticError):
        counting().fit(batches(assignments, examples), epochs=1, steps_per_epoch=10, verbose=0,
                       callbacks=[Director(assignments, [4, 5, 6, 7]), Fails()])
    assert time.monotonic() - start < PATIENCE


def test_a_stream_cannot_serve_several_steps_at_once():
    hook = wbsp.SyncCallback("localhost:1", 0)
    hook.stream(examples, 8)
    hook.set_model(counting(steps_per_execution=4))
    with pytest.raises(ValueError, match="steps_per_execution=4: .*compile the model with"):
        hook._check_stream(wbsp.sync.create("bsp"))


# Whole runs, under a model that gives every worker a piece of another size at each round.

REGISTER = """
import dataclasses
import wbsp.sync
from wbsp.sync.base import Direct, Grant, Option

class Varying(wbsp.sync.BSP):
    name, rule = "varying", dataclasses.replace(wbsp.sync.BSP.rule, shared=True)
    OPTIONS = {"batch": Option(8, "examples of a worker's first step", low=1)}
    position, pieces = 0, 0

    def join(self, worker, now):
        return self._assign(super().join(worker, now))

    def leave(self, worker, now):
        return self._assign(super().leave(worker, now))

    def push(self, push, now):
        return self._assign(super().push(push, now))

    def _assign(self, actions):
        for action in actions:
            if type(action) is Grant:
                batch = self.batch + 7 * self.pieces % 20
                yield Direct(action.worker, batch=batch, start=self.position)
                self.position, self.pieces = self.position + batch, self.pieces + 1
            yield action

class Split(wbsp.sync.BSP):
    name = "split"
    rule = dataclasses.replace(wbsp.sync.BSP.rule, every=4, micro_batches=4)

wbsp.sync.MODELS.update(varying=Varying, split=Split)
"""
RUN = """
import runpy
import sys
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
TRAIN = """
import os
import sys
import keras
import numpy as np
import tensorflow as tf
import wbsp

address, index, how = sys.argv[1:]
trained = []

def examples(start, count):
    position = tf.range(start, start + count)
    return tf.cast(tf.stack([position, position], 1), tf.float32), position % 2

class Recording(keras.Sequential):
    def train_step(self, batch):
        tf.py_function(lambda x: trained.append(x.numpy()), [batch[0][:, 0]], [])
        return super().train_step(batch)

model = Recording([keras.Input((2,)), keras.layers.Dense(2)])
model.compile(keras.optimizers.SGD(1e-6), jit_compile=False,
              loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
hook = wbsp.SyncCallback(address, worker_index=int(index))
if how == "forgets":
    data = tf.data.Dataset.from_tensors((np.zeros((8, 2)), np.zeros(8))).repeat()
else:
    data = hook.stream(examples, batch_size=8)

class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if how == "fails" and batch == 3:
            raise ArithmeticError("out of memory, say")

model.fit(data, epochs=2, steps_per_epoch=10, verbose=0, callbacks=[hook, Fails()])
np.save(f"trained{index}.npy", np.concatenate(trained))
print("sizes", *map(len, trained))
"""


@pytest.fixture
def jobs(tmp_path):
    with Jobs(tmp_path) as jobs:
        yield jobs


def start(jobs, name, text, *arguments):
    """A process that knows the models above."""
    path = jobs.folder / f"{name}.py"
    path.write_text(REGISTER + text)
    job = jobs.start(name, path, *arguments, kind=ServerJob)
    job.cwd = jobs.folder
    return job


def start_server(jobs, sync, workers):
    port = free_port()
    server = start(jobs, "server", RUN, ROOT / "wbsp/ps/__main__.py", f"--sync={sync}",
                   f"--worker_num={workers}", f"--port_base={port}")
    return server.listens(), f"localhost:{port}"


@pytest.mark.slow
def test_workers_train_the_pieces_that_the_server_gives_them(jobs):
    server, address = start_server(jobs, "varying", 2)
    workers = [start(jobs, f"worker{index}", TRAIN, address, index, "well") for index in range(2)]
    for job in (*workers, server):
        job.ends_well()
    pieces = [np.load(jobs.folder / f"trained{index}.npy") for index in range(2)]
    everything = np.sort(np.concatenate(pieces))
    assert len(np.unique(everything)) == len(everything), "no example was trained twice"
    left = set(range(int(everything[-1]))) - set(everything)
    assert len(left) <= 27, "nothing is left out but the last piece of who ended first"
    summary = json.loads((server.folder / "summary.json").read_text())
    for index in range(2):
        sizes = list(map(int, workers[index].find("^sizes")[0].split()[1:]))
        assert len(sizes) == 20 and len(set(sizes)) > 5
        one = summary["workers"][str(index)]
        assert (one["steps"], one["samples"]) == (20, sum(sizes))


@pytest.mark.slow
@pytest.mark.parametrize("how, says", [
    ("fails", "ArithmeticError: out of memory"),
    ("forgets", "ValueError: under varying the server says who trains which examples: give fit a")])
def test_a_worker_that_fails_ends_and_is_missed_at_once(jobs, how, says):
    server, address = start_server(jobs, "varying", 1)
    worker = start(jobs, "worker", TRAIN, address, 0, how)
    assert worker.ends(60) == 1
    assert worker.find(says)
    if how == "fails":
        server.until("worker 0 left: its process ended in mid-training")


# The launcher.

SMALL = ["--model=small", "--dataset=shapes10", "--check_period=1"]


def launch(jobs, name, port, *flags):
    return start(jobs, name, RUN, ROOT / "runcifar10gpu.py", f"--port_base={port}", *flags)


@pytest.mark.slow
def test_the_launcher_lets_the_server_choose_the_batches(jobs):
    port = free_port()
    server = launch(jobs, "ps", port, "--job_name=ps", "--sync=varying", "--batch_size=64",
                    "--epochs=0.5", *SMALL).listens()
    stranger = launch(jobs, "stranger", port, "--job_name=worker", "--batch_size=32")
    assert stranger.ends() == 1
    stranger.was_clean()
    assert stranger.find("runcifar10gpu: --batch_size=32, but all workers begin with 64 under "
                         "varying: give the ps and the workers the same")
    workers = [launch(jobs, f"wk{index}", port, "--job_name=worker", f"--worker_index={index}")
               for index in range(2)]
    for job in (*workers, server):
        job.ends_well()
    summary = json.loads((server.folder / "summary.json").read_text())
    total = summary["total"]
    assert total["samples"] >= 5_000 and 64 < total["samples"] / total["steps"] < 84


def test_the_learning_rate_falls_after_as_many_mini_batches_however_they_are_split():
    whole, split = training.optimizer("cnn"), training.optimizer("cnn", micro_batches=4)
    for step in (0, 7_811, 7_813, 13_670, 13_672):
        whole.iterations.assign(step)
        split.iterations.assign(4 * step)
        assert float(split.learning_rate) == float(whole.learning_rate)


@pytest.mark.slow
def test_the_launcher_splits_mini_batches(jobs):
    port = free_port()
    server = launch(jobs, "ps", port, "--job_name=ps", "--sync=split", "--worker_num=1", *SMALL
                    ).listens()
    uneven = launch(jobs, "uneven", port, "--job_name=worker", "--batch_size=30")
    assert uneven.ends() == 1
    uneven.was_clean()
    assert uneven.find("runcifar10gpu: --batch_size=30 does not divide into the 4 micro-batches "
                       "of split: choose a multiple")
    worker = launch(jobs, "wk0", port, "--job_name=worker", "--batch_size=32", "--max_steps=6")
    for job in (worker, server):
        job.ends_well()
    one = json.loads((server.folder / "summary.json").read_text())["workers"]["0"]
    assert (one["steps"], one["samples"], one["pushes"]) == (24, 6 * 32, 6)


@pytest.mark.slow
def test_the_benchmark_of_batch_sizes(tmp_path):
    file = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.batch_sizes", "--model=small", "--batch_size=8",
         "--sizes=3", "--pairs=1", f"--json={file}"],
        cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["batch_sizes"]["rows"]
    assert [row["what"] for row in rows] == ["input pipeline", "step", "step with XLA"]
    for row in rows:
        assert row["traces"] <= 2, "a trace for each size"
        for which in ("first", "later"):
            assert 0 < row[which]["min"] <= row[which]["median"] <= row[which]["max"]
