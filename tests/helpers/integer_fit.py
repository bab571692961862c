"""`python integer_fit.py PLAN`: run the worker of `integer_worker.py` as a `fit` of Keras.

PLAN is JSON, see `Plan`. The network is one Dense layer without a bias. Its loss is its output, so
a step of SGD moves the weights by the step's example, which is k * UNIT * pattern with a random
integer k. The worker records the same as `integer_worker.py`, in the same files.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from integer_replica import UNIT, forget_cuts, pattern


@dataclass
class Plan:
    """The plan of the worker's run, which ends when the file `go` exists."""

    address: str
    worker: int
    record: str  # folder for cuts-W.jsonl, acks-W.jsonl and result-W.json
    size: int  # floats
    seconds: float  # of a step, at least
    seed: int = 0


class Steps:
    """The examples of this process, and the k of each."""

    def __init__(self, plan: Plan):
        self._draw = np.random.default_rng([plan.seed, plan.worker])
        self._step = -(UNIT * pattern(plan.size))[None]
        self.ks: list[int] = []

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        while True:
            self.ks.append(int(self._draw.integers(-4, 5)))
            yield self.ks[-1] * self._step, np.zeros((1, 1), np.float32)


def note(plan: Plan, cuts: list[int]) -> None:
    """Record the k of each cut of this process before it is sent, and each answer as it arrives."""
    from wbsp.wire.client import SendUpdate
    from wbsp.worker.comm.transport import Transport
    from wbsp.worker.shared_participant import SharedParticipant

    folder, shape = Path(plan.record), UNIT * pattern(plan.size)
    request, acked = Transport.request, SharedParticipant.acked
    path = folder / f"cuts-{plan.worker}.jsonl"
    path.touch()
    answers = open(folder / f"acks-{plan.worker}.jsonl", "a")

    def noting(self, one):
        if isinstance(one, SendUpdate):
            if not cuts:
                forget_cuts(folder, plan.worker, one.push.seq)
            update = np.asarray(one.update)
            k = update[0] / shape[0]
            assert k == round(k) and np.array_equal(update, k * shape), "a cut is not whole"
            cuts.append(round(k))
            with open(path, "a") as file:
                print(cuts[-1], file=file)
        request(self, one)

    def hearing(self, ack, seconds):
        print(json.dumps([ack.seq, ack.weight]), file=answers, flush=True)
        return acked(self, ack, seconds)

    Transport.request = noting  # type: ignore[method-assign]
    SharedParticipant.acked = hearing  # type: ignore[method-assign]


def main(plan: Plan) -> None:
    import keras

    import wbsp

    cuts: list[int] = []
    note(plan, cuts)
    go, hook = Path(plan.record) / "go", wbsp.SyncCallback(plan.address, plan.worker)
    layer = keras.layers.Dense(1, use_bias=False,
                               kernel_initializer=keras.initializers.Constant(plan.worker + 1))
    model = keras.Sequential([keras.Input((plan.size,)), layer])
    model.compile(keras.optimizers.SGD(1.0), loss=lambda y, p: keras.ops.sum(p, axis=-1),
                  jit_compile=False)
    began = []

    class Paces(keras.callbacks.Callback):
        done = 0

        def on_train_batch_begin(self, batch, logs=None):
            if not began:
                began.append(layer.get_weights()[0][:, 0])
            time.sleep(plan.seconds)

        def on_train_batch_end(self, batch, logs=None):
            self.done += 1
            print(f"step {self.done} done: {hook.progress()}", flush=True)
            if go.exists():
                self.model.stop_training = True

    steps, paces = Steps(plan), Paces()
    model.fit(iter(steps), epochs=1, steps_per_epoch=10**9, verbose=0, callbacks=[paces, hook])
    assert sum(cuts) == sum(steps.ks[:paces.done]), "the cuts are not what was trained"
    final = layer.get_weights()[0][:, 0]
    (Path(plan.record) / f"result-{plan.worker}.json").write_text(json.dumps(
        {"first": began[0].tolist(), "final": final.tolist(), "interrupted": False}))


if __name__ == "__main__":
    main(Plan(**json.loads(sys.argv[1])))
