"""The processes that the wire benchmark compares, each behind a pipe.

Told (floats in the model, seconds, number), a process makes round trips for that long, at least
that many, and answers with the seconds that each took. An update's values are 2^-10, so that sums
are exact and what comes back can be checked to the last bit. Every process is handed its update
ready-made and counts a round trip as over when the new model lies in its own memory.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np

from benchmarks.harness import CONNECT
from wbsp.layout import TensorSpec
from wbsp.worker.runtime import WorkerRuntime
from wbsp.worker.transport import Transport

VALUE = 2.0**-10

Trip = Callable[[], None]


class Team:
    """Equal processes that work at the same time."""

    def __init__(self, pipes: list[Connection]):
        self._pipes = pipes
        self._trips = 0

    def __getitem__(self, part: slice) -> Team:
        return Team(self._pipes[part])

    def block(self, size: int, seconds: float, least: int = 1) -> list[float]:
        """Let everyone make round trips for `seconds`, `least` at least; return the seconds of each
        trip."""
        for pipe in self._pipes:
            pipe.send((size, seconds, least))
        trips = [trip for answer in self.answers() for trip in answer]
        self._trips += len(trips)
        return trips

    def finish(self) -> None:
        """Let everyone check what it holds after all these trips, and end."""
        for pipe in self._pipes:
            pipe.send(None)
            pipe.send(self._trips)
        self.answers()

    def answers(self) -> list:
        """The next answer of everyone."""
        return [_answer(pipe) for pipe in self._pipes]


def _answer(pipe: Connection):
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("a process of the benchmark failed; it says above why") from None


@contextmanager
def team(target: Callable, arguments: list[tuple]) -> Iterator[Team]:
    """Start a process of target(pipe, *arguments[i]) for each i; wait until all are up."""
    context = get_context("spawn")
    pipes, processes = [], []
    for args in arguments:
        mine, theirs = context.Pipe()
        processes.append(context.Process(target=target, args=(theirs, *args), daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(mine)
    try:
        started = Team(pipes)
        started.answers()
        yield started
    finally:
        for process in processes:
            process.kill()
            process.join()


def _serve(pipe: Connection, prepare: Callable[[int], Trip]) -> None:
    """Make round trips as told until there are no more; `prepare(size)` is not timed."""
    pipe.send(None)
    trip, prepared = None, None
    while (order := pipe.recv()) is not None:
        size, seconds, least = order
        if size != prepared:
            trip, prepared = prepare(size), size
        trips, end = [], time.perf_counter() + seconds
        while len(trips) < least or time.perf_counter() < end:
            start = time.perf_counter()
            trip()
            trips.append(time.perf_counter() - start)
        pipe.send(trips)


def _silent(text: str) -> None:
    """Replaces `print`: a worker that waits in a benchmark need not say so."""


# wbsp: what a Keras worker uses, without Keras.


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

    def bring(self, vector: np.ndarray) -> np.ndarray:
        return vector


def member(address: str, worker: int, replica: Still,
           token: bytes | None = None) -> tuple[Transport, WorkerRuntime]:
    """A worker that has joined its run, which may not have begun."""
    transport = Transport(address, worker, token, say=_silent)
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

    _serve(pipe, lambda size: trip)
    trips = pipe.recv()
    runtime.finish()
    transport.close()
    expected = np.float32(trips * VALUE / workers)
    if not (replica.x == expected).all():
        raise RuntimeError(f"the final model holds {replica.x.min()} to {replica.x.max()}, "
                           f"not {expected}")
    pipe.send(None)


# TensorFlow's distributed runtime.


def tensorflow_server(pipe: Connection, address: str) -> None:
    """The parameter server's task."""
    tf = _tensorflow()
    server = tf.distribute.Server(
        tf.train.ClusterSpec({"ps": [address]}), job_name="ps", protocol="grpc")
    pipe.send(None)
    server.join()


def tensorflow_worker(pipe: Connection, address: str) -> None:
    """A client whose variable lies on the server; its graph adds to it and reads it back.

    Of the runtime's ways this is the fastest: one tf.function placed on both devices, so that a
    round trip is one request. The variable is this client's own, which spares the server the
    waiting for other clients.
    """
    tf = _tensorflow()
    tf.config.experimental_connect_to_host(address, job_name="ps")
    there, here = "/job:ps/replica:0/task:0/device:CPU:0", "/job:localhost/replica:0/task:0/CPU:0"

    def prepare(size: int) -> Trip:
        with tf.device(there):
            variable = tf.Variable(tf.zeros([size]))
        with tf.device(here):
            update = tf.fill([size], tf.constant(VALUE))
        expected = np.float32(0)

        @tf.function
        def push_and_pull(update):
            with tf.device(there):
                variable.assign_add(update, read_value=False)
                value = variable.read_value()
            with tf.device(here):
                return tf.identity(value)

        def trip() -> None:
            nonlocal expected
            with tf.device(here):
                x = push_and_pull(update).numpy()
            expected += VALUE
            if x[0] != expected or x[-1] != expected:
                raise RuntimeError(f"TensorFlow's variable holds {x[0]}, not {expected}")

        return trip

    _serve(pipe, prepare)


def _tensorflow():
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    return tf


# The floor.


def copier(pipe: Connection) -> None:
    """Copies the bytes of a push and of a pull from memory to memory."""

    def prepare(size: int) -> Trip:
        update, server, model = (np.full(size, VALUE, np.float32) for _ in range(3))

        def trip() -> None:
            np.copyto(server, update)
            np.copyto(model, server)

        return trip

    _serve(pipe, prepare)
