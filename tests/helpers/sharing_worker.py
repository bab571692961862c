"""`python sharing_worker.py PLAN`: train a model of one float per example without Keras; a step
raises the floats of its examples by 1.

PLAN is JSON, see `Plan`. The worker records each push before it sends it, and each answer before
any other code handles it, so that a test knows from outside what the model contains.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wbsp.access import Access
from wbsp.core.messages import Reattached
from wbsp.core.permutation import examples
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.client import SendUpdate
from wbsp.wire.errors import TransportError
from wbsp.worker.comm.transport import Transport
from wbsp.worker.runtime import WorkerRuntime
from wbsp.worker.share import Share


@dataclass
class Plan:
    """The plan of one worker of a run on shared data."""

    address: str
    worker: int
    folder: str  # for notes-W.jsonl and final-W.npy
    n: int
    batch: int
    epochs: int
    seconds: float  # of a step
    hold: int  # positions behind it are not trained before the file `go` is there


class CountingReplica:
    """See `wbsp.replica.base.Replica`."""

    def __init__(self, n: int):
        self.layout = [TensorSpec("counts", (n,))]
        self.x = self.anchor = np.zeros(n, np.float32)

    def step(self, indices: np.ndarray) -> None:
        self.x = self.x.copy()
        self.x[indices] += 1

    def read(self) -> np.ndarray:
        return self.x

    def cut(self) -> np.ndarray:
        update, self.anchor = self.x - self.anchor, self.x
        return update

    def adopt(self, vector: np.ndarray, how: str) -> None:
        self.x = vector if how == "replace" else vector + (self.x - self.anchor)
        self.anchor = vector

    def bring(self, vector: np.ndarray) -> np.ndarray:
        return vector

    def put_back(self) -> bool:
        return False

    def stepped(self) -> None:
        pass

    hold = stepped


class NotingTransport(Transport):
    """Record its pushes and their answers in a file that outlives its process."""

    def notes(self, path: Path) -> None:
        self._notes = open(path, "a")

    def note(self, *what: object) -> None:
        print(json.dumps(what), file=self._notes, flush=True)

    def request(self, one):
        if isinstance(one, SendUpdate):
            update = np.asarray(one.update)
            places = np.flatnonzero(update)
            self.note("cut", one.push.seq, places.tolist(), update[places].tolist())
        super().request(one)

    def listen(self, listener, layout):
        note = self.note

        class Noting:
            def __getattr__(self, name):
                return getattr(listener, name)

            def received(self, message):
                if isinstance(message, Reattached) and message.void:
                    note("void", message.safe)
                return listener.received(message)

            def acked(self, ack, seconds):
                note("told", ack.seq, ack.weight)
                return listener.acked(ack, seconds)
        super().listen(Noting(), layout)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(plan: Plan) -> int:
    folder, caught = Path(plan.folder), []
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda signum, frame: caught.append(signum))
    replica, share = CountingReplica(plan.n), Share(plan.n, plan.batch)
    share.wants(plan.epochs)
    transport = NotingTransport(Access(plan.address), plan.worker, say, lambda: bool(caught))
    transport.notes(folder / f"notes-{plan.worker}.jsonl")
    try:
        welcome = transport.hello({}, 60)
        joined = transport.join(replica.layout, replica.read, 60, share=share)
        transport.note("begins", joined.seq)
        say("is a member")
        runtime = WorkerRuntime(transport, replica, welcome.rule, joined, None, say,
                                lambda: bool(caught), share=share)
        runtime.start()
        say("begins")
        while not (runtime.stopped or caught):
            batch = share.take()
            if batch.stop > plan.hold and not (folder / "go").exists():
                say("holds")
                while not (caught or (folder / "go").exists()):
                    time.sleep(0.01)
            runtime.step_begins()
            time.sleep(plan.seconds)
            replica.step(examples(batch.start, batch.stop, plan.n, share.data.seed))
            runtime.step_done(0, 0.0)
            say("step")
        runtime.finish("interrupted" if caught else None)
    except TransportError as error:
        say(f"worker {plan.worker}: {error}")
        return 1
    finally:
        with contextlib.suppress(TransportError):
            transport.close()
    if caught:
        return 128 + caught[0]
    np.save(folder / f"final-{plan.worker}.npy", replica.x)
    return 0


if __name__ == "__main__":
    sys.exit(main(Plan(**json.loads(sys.argv[1]))))
