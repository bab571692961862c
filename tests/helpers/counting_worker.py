"""`python counting_worker.py PLAN`: train a model of one float per example; a step raises the
floats of its examples by 1.

PLAN is JSON, see `Plan`. The worker records each push before it sends it, so that a test knows from
outside which examples the run's accepted pushes have trained.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np


@dataclass
class Plan:
    """The plan of one worker of a run on shared data."""

    address: str
    worker: int
    folder: str  # for cuts-W.jsonl
    n: int
    batch: int
    epochs: int
    seconds: float = 0.0  # of a step
    die_at: int | None = None  # kill -9 itself in that step
    hold_at: int | None = None  # in that step, wait until the file `go` is there
    hold_end: bool = False  # wait for it behind the first epoch
    form: str = "pair"  # of what the function returns: "pair", "dict" or "weighted"
    validate: bool = False
    waits: bool = False  # each worker, for the results of each epoch
    die_validating: int | None = None  # kill -9 itself in the validation of that epoch
    save: bool = False  # what a callback of hook.once sees at an epoch's end, as epoch-E.npy
    stop_at: int | None = None  # in that step, request the end of the run
    ends_at: int | None = None  # a callback ends the training behind that epoch
    seed: int = 0
    fits: int = 1
    reads: float = 0.0  # seconds that the function takes for a batch
    processes: int = 0  # that call it
    devices: int = 1  # of its processors', under a MirroredStrategy
    plateau: bool = False  # a callback halves the rate at each validation but the first

    @property
    def text(self) -> str:
        return json.dumps(asdict(self))


def main(plan: Plan) -> None:
    import keras

    import wbsp
    from wbsp.wire.client import SendUpdate
    from wbsp.worker.comm.transport import Transport

    cuts = open(Path(plan.folder) / f"cuts-{plan.worker}.jsonl", "a")
    request = Transport.request

    def noting(self, one):
        if isinstance(one, SendUpdate):
            update = np.asarray(one.update)
            places = np.flatnonzero(update)
            print(json.dumps([one.push.seq, places.tolist(), update[places].tolist()]), file=cuts,
                  flush=True)
        request(self, one)

    Transport.request = noting

    def examples(indices):
        assert isinstance(indices, np.ndarray) and indices.dtype == np.int64
        time.sleep(plan.reads)
        x = indices[:, None].astype("int32")
        y = np.zeros((len(indices), 1), "float32")
        return {"pair": (x, y), "dict": ({"example": x}, y),
                "weighted": (x, y, np.ones(len(indices), "float32"))}[plan.form]

    def wait():
        while not (Path(plan.folder) / "go").exists():
            time.sleep(0.01)

    class Steps(keras.callbacks.Callback):
        """A callback that does in a step what the test asks for."""

        step = 0

        def on_train_batch_begin(self, batch, logs=None):
            self.step += 1
            time.sleep(plan.seconds)
            if self.step == plan.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.step == plan.hold_at:
                wait()
            if self.step == plan.stop_at:
                hook.stop_run("enough")
                print("stopping", time.time(), flush=True)

        def on_test_batch_end(self, batch, logs=None):
            if batch == 1 and hook.epoch == plan.die_validating:  # who does not validate has one
                os.kill(os.getpid(), signal.SIGKILL)

        def on_epoch_end(self, epoch, logs=None):
            print("epoch", epoch, "of the run", hook.epoch, json.dumps(logs), flush=True)
            if epoch == plan.ends_at:
                print("stopping", time.time(), flush=True)
                self.model.stop_training = True
            if plan.hold_end:
                wait()

    class Saves(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if "val_epoch" in (logs or {}):
                np.save(Path(plan.folder) / f"epoch-{logs['val_epoch'] - 1}.npy",
                        self.model.get_weights()[0])

    with _strategy(plan.devices):
        example = keras.Input((1,), dtype="int32", name="example")
        floats = keras.layers.Embedding(plan.n, 1, embeddings_initializer="zeros")(example)
        model = keras.Model({"example": example} if plan.form == "dict" else example,
                            keras.layers.Flatten()(floats))
        model.compile(
            # each of the devices makes its part of a mean over all
            keras.optimizers.SGD(float(plan.devices)), jit_compile=False,
            loss=lambda y, p: -keras.ops.sum(p - y, axis=-1) * keras.ops.cast(
                keras.ops.shape(p)[0], "float32"))  # the mean of these is their sum
    hook = wbsp.SyncCallback(plan.address, worker_index=plan.worker)
    data = hook.examples(examples, n=plan.n, batch_size=plan.batch, seed=plan.seed,
                         processes=plan.processes,
                         validate="wait" if plan.waits else "newest")
    more = {"validation_data": (np.arange(plan.n)[:, None].astype("int32"),
                                np.zeros((plan.n, 1), "float32"))} if plan.validate else {}
    saves = [hook.once(Saves())] if plan.save else []
    more_callbacks = [keras.callbacks.ReduceLROnPlateau("val_loss", 0.5, patience=1, mode="max",
                                                        min_delta=1e9)] if plan.plateau else []
    for _ in range(plan.fits):
        steps = Steps()
        history = model.fit(data, epochs=plan.epochs, steps_per_epoch=hook.UNTIL_TOLD, verbose=2,
                            callbacks=[hook, steps, *more_callbacks, *saves], **more)
        print("history", json.dumps(history.history), flush=True)
        print("ended", json.dumps({"steps": steps.step, "epoch": hook.epoch, "time": time.time(),
                                   "reason": hook.stop_reason, "done": hook.done,
                                   "of_all": hook.run_steps,
                                   "rate": float(keras.ops.convert_to_numpy(
                                       model.optimizer.learning_rate))}), flush=True)
        np.save(Path(plan.folder) / f"final-{plan.worker}.npy", model.get_weights()[0])


def _strategy(devices: int) -> contextlib.AbstractContextManager:
    if devices == 1:
        return contextlib.nullcontext()
    import tensorflow as tf
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        devices * [tf.config.LogicalDeviceConfiguration()])
    return tf.distribute.MirroredStrategy([f"CPU:{index}" for index in range(devices)]).scope()


if __name__ == "__main__":
    main(Plan(**json.loads(sys.argv[1])))
