"""A worker of wbsp: what a Keras worker uses, without Keras.

It is handed its update ready-made, and a round trip is over when the new model lies in its memory.
"""

from __future__ import annotations

import ctypes
from multiprocessing.connection import Connection

import numpy as np

from lab.benchmarks.contenders.team import VALUE, serve
from scripts.harness import CONNECT
from wbsp.access import Access
from wbsp.tensors.layout import TensorSpec
from wbsp.worker.comm.transport import Transport
from wbsp.worker.runtime import WorkerRuntime


def _silent(text: str) -> None:
    """Replaces `print`: a worker that waits in a benchmark need not say so."""


class Still:
    """A model whose step costs nothing."""

    def __init__(self, size: int):
        self.layout = [TensorSpec("x", (size,))]
        self.x = np.zeros(size, np.float32)
        self._update = np.full(size, VALUE, np.float32)
        self._update.flags.writeable = False  # the worker would add to it what it keeps

    def read(self) -> np.ndarray:
        return self.x

    def cut(self) -> np.ndarray:
        return self._update

    def adopt(self, vector: np.ndarray, how: str) -> None:
        self.x = vector

    def stepped(self) -> None:
        pass

    def hold(self) -> None:
        pass

    def put_back(self) -> bool:
        return False

    def bring(self, vector: np.ndarray) -> np.ndarray:
        return vector


def member(address: str, worker: int, replica: Still,
           token: bytes | None = None) -> tuple[Transport, WorkerRuntime]:
    """Return a worker that has joined its run, which may not have begun."""
    transport = Transport(Access(address, token=token), worker, say=_silent)
    welcome = transport.hello({}, CONNECT)
    joined = transport.join(replica.layout, replica.read, CONNECT)
    return transport, WorkerRuntime(transport, replica, welcome.rule, joined, say=_silent)


def wbsp_worker(pipe: Connection, address: str, worker: int, workers: int, size: int,
                token: bytes | None = None, space: str | None = None) -> None:
    """A worker under asp: every step pushes, and waits for the version that holds its push.

    space: the network namespace that it works in
    """
    if space is not None:
        with open(f"/run/netns/{space}") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0):  # os.setns: Python 3.12
                raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {space}")
    replica = Still(size)
    transport, runtime = member(address, worker, replica, token)
    runtime.start()

    def trip() -> None:
        runtime.step_begins()
        runtime.step_done(samples=1, loss=0.0)

    serve(pipe, trip)
    trips = pipe.recv()
    runtime.finish()
    transport.close()
    expected = np.float32(trips * VALUE / workers)
    if not (replica.x == expected).all():
        raise RuntimeError(f"the final model holds {replica.x.min()} to {replica.x.max()}, "
                           f"not {expected}")
    pipe.send(None)
