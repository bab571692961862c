"""A worker's connection to its server, for the compute thread.

A second thread owns the socket (`Communication`); of these methods only `hello` and `join` wait for
the server.
"""

from __future__ import annotations

import contextlib
import math
import queue
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from wbsp.access import Access
from wbsp.process.host import HOST, Host, Thread
from wbsp.replica.frozen import Frozen
from wbsp.sync.base import Push
from wbsp.tensors.layout import Entry, LayerState, TensorSpec, total_size
from wbsp.wire.client import Client, Request, SendUpdate, answer_to
from wbsp.wire.errors import TransportError
from wbsp.wire.joining import Joining
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.codec import check
from wbsp.worker.comm.communication import CallQueue, Communication, Listener
from wbsp.worker.comm.connection import Connection
from wbsp.worker.share import Claims

_GRAIN = 0.5  # seconds between two checks for an interrupt while waiting
Answer = TypeVar("Answer", bound=m.Message)


class Transport:
    """A worker's connection to its server.

    Attributes:
        worker: index of the worker; None: the server has not chosen it yet.
        client: the protocol; the communication thread uses it.
        frozen: the run's frozen values, float32 [size], if `join` has found others than its own.
        say: prints a console line.
        interrupted: called while waiting for the server; True ends the wait with a TransportError.
    """

    def __init__(self, access: Access, worker: int | None, say: Callable[[str], None] = print,
                 interrupted: Callable[[], bool] = lambda: False, on: Host = HOST):
        """Prepare; `hello` connects. `worker`: its index; None: the server chooses it."""
        self.address = access.address
        self.worker = worker
        self.on = on
        self._print = say
        self._interrupted = interrupted
        self._connection = Connection(access, self._say, on)
        self._calls = CallQueue(on)
        self.client = Client(self._connection, access.address, on.scheduler.random, self._say,
                             access.patience)
        self._communication = Communication(self.client, self._connection, self._calls)
        self._thread: Thread | None = None
        self.frozen: np.ndarray | None = None

    def _say(self, text: str) -> None:
        self._print(text if self.worker is None else f"worker {self.worker}: {text}")

    def serve(self, say: Callable[[str], None], interrupted: Callable[[], bool]) -> None:
        """Serve another worker of this process from now on; the arguments are those of a new one.
        """
        self._print, self._interrupted = say, interrupted

    @property
    def error(self) -> TransportError | None:
        """Why the connection has ended, or None."""
        return self._communication.error

    @property
    def cut_off(self) -> bool:
        """True while the server is lost, and until it knows this worker again."""
        return self.client.cut_off

    @property
    def place(self) -> str:
        """Where the server was reached, as returned by `endpoint`."""
        return self._connection.monitor.route.address

    def update_bytes(self, size: int) -> int:
        """Return the bytes of the newest update that was sent.

        Before the first one, those of an update of `size` floats in the run's wire format.
        """
        return self.client.update_bytes or 4 * self.client.session.wire.words(size)

    def hello(self, expected: dict[str, str], timeout: float, series: str = "", fit: int = 0,
              leaves: bool = False, replaces: bool = False, own: bytes = b"",
              given: bool = False, left: bool = False, anew: bool = False,
              key: bytes = b"") -> m.Welcome:
        """Introduce this worker and wait for the run's settings, and for its index if it has none.

        `series`, `fit`, `leaves`, `replaces`, `given`, `left`, `anew`: as in `Hello`; `own`,
        too, or else it is drawn; `key`: as in `Welcome`, of this process's last run.

        Raises:
            TransportError: no server answers within `timeout` seconds, or it refuses.
        """
        if key:
            self.client.session.has_been(key)
        self.request(m.Hello(m.PROTOCOL, self.worker, expected,
                             own=own or self.on.scheduler.random(16), series=series, fit=fit,
                             leaves=leaves, replaces=replaces, given=given,
                             left=left, anew=anew))
        self._connection.monitor.seek(self.on.clock.monotonic(), timeout)
        self._thread = self.on.scheduler.thread(self._communication.run, "wbsp-communication")
        self._thread.start()  # after the request: no heartbeat may precede Hello
        welcome = self._await(m.Welcome, math.inf)  # the monitor ends the wait
        if welcome.worker is not None:
            self.worker = welcome.worker
        return welcome

    def join(self, layout: Sequence[TensorSpec], initial: Callable[[], np.ndarray],
             timeout: float, layers: list[LayerState] | None = None,
             share: Claims | None = None, frozen: Frozen | None = None,
             sgd: bool = False, local: Sequence[str] = (),
             entries: Sequence[Entry] = ()) -> m.Joined:
        """Become a member; `initial` makes W_0 (float32 [size]) if the server has none.

        `frozen` of this object then has the run's frozen values, if they are others.

        Args:
            layers: what this worker's layers have and no version carries; None: not known.
            share: of data that all workers of the run share; None: its data are its own.
            frozen: what no step changes, and no version carries; None: nothing.
            sgd: see `messages.Join`.
            local: names of variables that this worker keeps for itself.
            entries: further entries of a file of its model, without the variables.

        Raises:
            TransportError: no progress for `timeout` seconds, or no server accepts the layout.
        """
        data, first_epoch = (None, 0) if share is None else (share.data, share.first_epoch)
        join = m.Join(list(layout), self._connection.door, layers, data, first_epoch,
                      [] if frozen is None else frozen.layout,
                      "" if frozen is None else frozen.digest, sgd, list(local), list(entries),
                      None if share is None else share.claim)
        self.client.session.shares(None if share is None else share.held)
        joining = Joining(join, lambda: (initial(), np.empty(0, np.float32) if frozen is None
                                         else frozen.read()))
        request: Request | None = joining.request
        while request is not None:
            self.request(request)
            request = joining.answered(self._await(answer_to(request), timeout))
        assert joining.joined is not None, "no step follows"
        self.frozen = joining.frozen
        return joining.joined

    def past(self, timeout: float) -> m.VersionAt:
        """Return where to read the final version of an ended run that was this worker's fit.

        Raises:
            TransportError: the answer does not arrive.
        """
        self.request(m.AskPast())
        return self._await(m.VersionAt, timeout)

    def listen(self, listener: Listener, layout: Sequence[TensorSpec]) -> None:
        """Pass all messages to this member, also earlier ones, to `listener`."""
        size = total_size(layout)
        self._calls.append(self._communication.listen, listener, size)
        self.wake()

    def request(self, request: Request) -> None:
        """Send a request at the next `wake`, and repeat it until the listener has the answer.

        Raises:
            ValueError: no server could read it; one line, which names the value.
        """
        if isinstance(request, SendUpdate):
            check(Push, request.push)
        elif isinstance(request, m.Message):
            check(m.FromWorker, request)
        self._calls.append(self._communication.request, request)

    def leave(self, reason: str, finished: bool) -> None:
        """Announce that this worker's training ends; the listener receives Final if `finished`."""
        self.request(m.Leaving(reason, finished, None))
        self.wake()

    def close(self, patience: float = 1.0) -> None:
        """Send the queued messages, for at most `patience` seconds, and end the thread."""
        thread = self._thread
        self._thread = None
        if thread is not None:
            self._calls.append(self._communication.close, self.on.clock.monotonic() + patience)
            self.wake()
            thread.join(patience + 2)
            if not thread.is_alive():
                self._calls.close()

    def forked(self) -> None:
        """Release all resources in a process forked from this worker's, which keeps the connection.
        """
        self._thread = None  # it does not run in this process
        self._communication.forked()
        self._connection.forked()
        self._calls.close()

    def wake(self) -> None:
        """Let the communication thread send the requests; see `CallQueue`."""
        self._calls.wake()

    def _await(self, answer: type[Answer], timeout: float) -> Answer:
        """Wait for an answer before this worker trains, `timeout` seconds from the last progress.

        Raises:
            TransportError: no answer arrived, or the connection has ended.
        """
        self.wake()
        start, left = self.on.clock.monotonic(), timeout
        while True:
            with contextlib.suppress(queue.Empty):
                message = self._communication.handshake.get(timeout=max(0.0, min(left, _GRAIN)))
                break
            if self._interrupted():
                raise TransportError(f"interrupted while waiting for the server at {self.address}")
            left = max(start, self.client.progress_at) + timeout - self.on.clock.monotonic()
            if left <= 0:
                raise TransportError(f"the server at {self.address} sent no {answer.__name__} "
                                     f"within {timeout:g} s")
        if isinstance(message, TransportError):
            raise message
        if not isinstance(message, answer):
            raise TransportError(f"the server sent {type(message).__name__} instead of "
                                 f"{answer.__name__}")
        return message
