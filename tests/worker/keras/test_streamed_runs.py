"""Whole runs under a model that gives every worker a piece of another size at each round."""

import json

import forked
import numpy as np
import pytest
from jobs import ROOT, ServerJob, free_port

from models import training

REGISTER = """
import dataclasses
import wbsp.sync
from wbsp.sync.base import Direct, Grant, Option

class Varying(wbsp.sync.BSP):
    name = "varying"
    OPTIONS = {"batch": Option(8, "examples of a worker's first step", low=1)}
    position, pieces = 0, 0

    def __init__(self, **options):
        super().__init__(**options)
        self.rule = dataclasses.replace(wbsp.sync.BSP.rule, shared=True, batch=self.batch)

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


def start(jobs, name, text, *arguments, fork=forked.KERAS):
    """A process that knows the models above."""
    path = jobs.folder / f"{name}.py"
    path.write_text(REGISTER + text)
    job = jobs.start(name, path, *arguments, kind=ServerJob, fork=fork)
    job.cwd = jobs.folder
    return job


def start_server(jobs, sync, workers):
    port = free_port()
    server = start(jobs, "server", RUN, ROOT / "wbsp/ps/__main__.py", f"--sync={sync}",
                   f"--worker_num={workers}", f"--port_base={port}", fork=forked.WBSP)
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
    ("forgets", "wbsp: under varying the server assigns the examples: give fit a dataset")])
def test_a_worker_that_fails_ends_and_is_missed_at_once(jobs, how, says):
    server, address = start_server(jobs, "varying", 1)
    worker = start(jobs, "worker", TRAIN, address, 0, how)
    assert worker.ends(60) == 1
    assert worker.find(says)
    if how == "fails":
        server.until("worker 0 left: its loop was left by ArithmeticError")


# The launcher.

SMALL = ["--model=small", "--dataset=shapes10", "--check_period=1", "--heterogeneity=none"]


def launch(jobs, name, port, *flags):
    fork = forked.WBSP if "--job_name=ps" in flags else forked.KERAS
    return start(jobs, name, RUN, ROOT / "runcifar10gpu.py", f"--port_base={port}", *flags,
                 fork=fork)


@pytest.mark.slow
@pytest.mark.long
def test_the_launcher_lets_the_server_choose_the_batches(jobs):
    port = free_port()
    server = launch(jobs, "ps", port, "--job_name=ps", "--sync=varying", "--batch_size=64",
                    "--worker_num=1", "--epochs=0.5", *SMALL).listens()
    stranger = launch(jobs, "stranger", port, "--job_name=worker", "--batch_size=32")
    assert stranger.ends() == 1
    stranger.was_clean()
    assert stranger.find("runcifar10gpu: --batch_size=32, but all workers begin with 64 under "
                         "varying: give the ps and the workers one value")
    for job in (launch(jobs, "wk0", port, "--job_name=worker"), server):
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
@pytest.mark.long
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
