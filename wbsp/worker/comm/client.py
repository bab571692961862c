"""A worker's connection to its server, as the compute thread uses it (`Transport`), and who it is
before there is a model (`Session`): whoever is refused learns it without the seconds that Keras and
what it runs on take to start.

A second thread owns the socket (`Communication`): no method here but `hello` and `join` waits for
the server.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from wbsp.environment import Task, shares_memory, token
from wbsp.process.host import HOST, Host, Thread
from wbsp.process.throttle import Throttle
from wbsp.replica.base import Vector
from wbsp.sync.base import Push
from wbsp.tensors.codecs import FLOAT32
from wbsp.tensors.layout import LayerState, TensorSpec, check_layout, total_size
from wbsp.wire.addresses import split_addresses
from wbsp.wire.messages import codec as m
from wbsp.worker.comm.attachment import codec_of
from wbsp.worker.comm.channel import ServerChannel
from wbsp.worker.comm.connection import PATIENCE, RunOver, TransportError
from wbsp.worker.comm.incoming import Listener
from wbsp.worker.comm.thread import CallQueue, Communication

_GRAIN = 0.5  # seconds between two looks for an interrupt while waiting
_FIRST_NOTICE, _NEXT_NOTICE = 2.0, 10.0  # seconds of waiting for the server until a line says so
Answer = TypeVar("Answer", bound=m.Message)
Shares = tuple[float | None, float | None]  # 0..1, of processors and memory in use; None: not known
_PAUSE = 0.3  # seconds until a worker asks again whether the next run has begun
_were_in_run: set[Task] = set()  # places of this process in runs, now or before


class Transport:
    """A worker's connection to its server.

    say:         prints one line for a person
    interrupted: called while waiting for the server; True ends the wait by a TransportError
    """

    def __init__(self, address: str, worker: int, token: bytes | None = None,
                 bandwidth: float | None = None, say: Callable[[str], None] = print,
                 interrupted: Callable[[], bool] = lambda: False, patience: float = PATIENCE,
                 share: bool = True, on: Host = HOST):
        """`address`: host:port; `bandwidth`: bytes per second each way, or None.

        patience: seconds for which to try to reach a server that is lost
        share:    memory is shared with a server of this machine and user, if there is no bandwidth
        """
        self.address, self.worker = address, worker
        self._say, self._interrupted, self.on = say, interrupted, on
        told = lambda text: say(f"worker {worker}: {text}")  # noqa: E731
        self._channel = ServerChannel(address, token, bandwidth, patience, told, share, on)
        self._calls = CallQueue(on)
        self._communication = Communication(self._channel, self._calls, address, told)
        self._thread: Thread | None = None
        self._wire = FLOAT32

    @property
    def error(self) -> TransportError | None:
        """Why the connection has ended; None while it has not."""
        return self._communication.error

    @property
    def cut_off(self) -> bool:
        """True while the server is lost, and until it knows this worker again."""
        return self._communication.cut_off

    def update_bytes(self, size: int) -> int:
        """Bytes that an update of `size` floats takes on the wire of this run."""
        return 4 * self._wire.words(size)

    def hello(self, expected: dict[str, str], timeout: float) -> m.Welcome:
        """Introduce this worker and wait for the run's settings.

        Raises TransportError when no server answers within `timeout` seconds, or it refuses.
        """
        hello = m.Hello(m.PROTOCOL, self.worker, expected,
                        own=self.on.scheduler.random(16))
        self._calls.append(lambda: self._communication.hello(hello))
        self._thread = self.on.scheduler.thread(self._communication.run, "wbsp-communication")
        self._thread.start()  # after the request: no heartbeat may precede Hello
        start = self.on.clock.monotonic()
        notice = Throttle(_NEXT_NOTICE, _FIRST_NOTICE)  # in seconds of waiting
        while True:
            waited = self.on.clock.monotonic() - start
            with contextlib.suppress(TimeoutError):
                welcome = self._await(m.Welcome, min(notice.next - waited, timeout))
                self._wire = codec_of(welcome)
                return welcome
            waited = self.on.clock.monotonic() - start
            if waited >= timeout:
                self.close()
                raise TransportError(f"no server answered at {self.address} within {timeout:g} s; "
                                     + (self._channel.connection.unknown
                                        or "is it running there, and is the port right?"))
            if notice.due(waited):
                self._say(f"worker {self.worker}: waiting for the server at {self.address} "
                          f"({waited:.0f} of {timeout:g} s)")

    def join(self, layout: Sequence[TensorSpec], initial: Callable[[], np.ndarray],
             timeout: float, layers: list[LayerState] | None = None) -> m.Joined:
        """Become a member; `initial` makes W_0 (float32 [size]) if the server has none.

        layers: what this worker's layers have and no version carries; None: not known

        Raises TransportError when there is no progress for `timeout` seconds, and for a layout
        that no server takes.
        """
        join = m.Join(list(layout), self._channel.memory.name, layers)
        try:
            check_layout(layout)
        except ValueError as error:
            raise TransportError(str(error)) from None
        self._calls.append(lambda: self._communication.join(join))
        try:
            joined = self._await(m.Joined, timeout)
            while joined.send_initial:  # again, where the server was restarted meanwhile
                self._send_initial(initial())
                joined = self._await(m.Joined, timeout)
        except TimeoutError as error:
            raise TransportError(str(error)) from None
        return joined

    def listen(self, listener: Listener, layout: Sequence[TensorSpec]) -> None:
        """Have all messages to this member passed on to `listener`, the earlier ones as well."""
        size = total_size(layout)
        self._calls.append(lambda: self._communication.listen(listener, size))
        self.wake()

    def push(self, push: Push, update: Vector, fetch: int,
             usage: Callable[[], Shares] = lambda: (None, None)) -> None:
        """Send an update at the next `wake`; it must not be written to any more.

        update: the communication thread waits for it, and brings it to the host
        fetch:  number of the fetch that the push carries; 0: it carries none
        usage:  called by that thread, too: of the machine, as the push is to say
        """
        def send() -> None:
            cpu, memory = usage()
            self._communication.push(push._replace(cpu=cpu, memory=memory), np.asarray(update),
                                     fetch)

        self._calls.append(send)

    def fetch(self, number: int, carried: bool) -> None:
        """Request the newest version, at the next `wake`, or at once if the listener calls.

        carried: a push carried the request, and its answer has granted it
        """
        communication = self._communication
        self._request(m.Model, lambda: self._channel.post(m.Fetch(
            number, communication.attachment.held, self._channel.returned)), number, carried)

    def query(self, number: int, steps: int, seconds: float) -> None:
        """Ask, at the next `wake`, whether to cut; the listener receives the decision."""
        query = m.CutQuery(number, steps, seconds)
        self._request(m.CutDecision, lambda: self._channel.post(query), number)

    def leave(self, reason: str, finished: bool) -> None:
        """Announce that this worker's training ends; the listener receives Final if `finished`."""
        self._calls.append(lambda: self._communication.leave(reason, finished))
        self.wake()

    def goodbye(self) -> None:
        """End the session with the server."""
        self._calls.append(lambda: self._channel.post(m.Goodbye()))
        self.wake()

    def close(self, patience: float = 1.0) -> None:
        """Send what is queued, for at most `patience` seconds, and end the thread."""
        thread, self._thread = self._thread, None
        if thread is not None:
            deadline = self.on.clock.monotonic() + patience
            self._calls.append(lambda: self._communication.close(deadline))
            self.wake()
            thread.join(patience + 2)
            if not thread.is_alive():
                self._calls.close()

    def forked(self) -> None:
        """Release everything, in a process that was forked from this worker's: the connection is
        that one's, and goes on there."""
        self._thread = None  # it is not in this process
        self._communication.error = TransportError(
            "this process was forked from a worker's, and has no part in its run")
        self._channel.forked()
        self._calls.close()

    def wake(self) -> None:
        """Have the communication thread send what was requested; see `CallQueue`."""
        self._calls.wake()

    def _request(self, answer: type[m.Message], send: Callable[[], None],
                 number: int | None = None, carried: bool = False) -> None:
        self._calls.append(lambda: self._communication.request(answer, send, number, carried))

    def _send_initial(self, vector: np.ndarray) -> None:
        def header(offset: int) -> m.Initial:
            return m.Initial(offset, vector.size)

        self._request(m.Joined, lambda: self._channel.post_chunks(vector, header))

    def _await(self, answer: type[Answer], timeout: float) -> Answer:
        """Wait for the answer to Hello or Join, `timeout` seconds from the last progress.

        Raises TimeoutError or TransportError.
        """
        self.wake()
        start, left = self.on.clock.monotonic(), timeout
        while True:
            with contextlib.suppress(queue.Empty):
                message = self._communication.handshake.get(timeout=max(0.0, min(left, _GRAIN)))
                break
            if self._interrupted():
                raise TransportError(f"interrupted while waiting for the server at {self.address}")
            left = max(start, self._communication.progress_at) + timeout - self.on.clock.monotonic()
            if left <= 0:
                raise TimeoutError(f"the server at {self.address} sent no {answer.__name__} "
                                   f"within {timeout:g} s")
        if isinstance(message, TransportError):
            raise message
        if not isinstance(message, answer):
            raise TransportError(f"the server sent {type(message).__name__} instead of "
                                 f"{answer.__name__}")
        return message


class Session:
    """Who a worker is, and its connection to the server.

    transport: the newest connection, or None; welcome: what the server answered when it was made
    interrupted: why this worker is to leave, or None
    """

    def __init__(self, address: str | None, worker_index: int | None, token_file: str | None,
                 connect_timeout: float, band_width_limit: float | None,
                 expected: dict[str, str] | None, say: Callable[[str], None], patience: float,
                 transport: str | None, on: Host = HOST):
        """The arguments are those of `SyncCallback`. Raises ValueError or OSError for bad ones."""
        self.task = Task.complete(address, worker_index, check=split_addresses)
        self.timeout, self.say, self._on = connect_timeout, say, on
        self.transport: Transport | None = None
        self.welcome: m.Welcome | None = None
        self.interrupted: str | None = None
        self._expected, self._patience = expected or {}, patience
        self._token_file, self._secret = token_file, token(token_file)
        self._share = shares_memory(transport)
        self._rate = None if band_width_limit is None else 1e6 * band_width_limit

    def __getstate__(self) -> dict[str, Any]:
        """Of a copy, which is not connected. The secret stays in its file."""
        return {**self.__dict__, "transport": None, "welcome": None, "interrupted": None,
                "_secret": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._secret = token(self._token_file)

    def _new_transport(self) -> Transport:
        return Transport(self.task.address, self.task.worker, self._secret, self._rate, self.say,
                         lambda: self.interrupted is not None, self._patience, self._share,
                         self._on)

    def connect(self) -> m.Welcome:
        """Introduce this worker over a new connection.

        A worker that was in a run, and so waits for the next one, is patient with a server of which
        nothing is left but to save the last version.
        Raises TransportError when there is no server or it refuses.
        """
        end, left = self._on.clock.monotonic() + self.timeout, self.timeout
        patient = self.task in _were_in_run
        while True:
            self.transport = transport = self._new_transport()
            try:
                self.welcome = transport.hello(self._expected, left)
            except BaseException as error:
                transport.close()
                left = end - self._on.clock.monotonic()
                if not (patient and isinstance(error, RunOver) and left > 0) or self.interrupted:
                    raise
                self._on.clock.sleep(_PAUSE)
            else:
                _were_in_run.add(self.task)
                return self.welcome

    def interrupt(self, reason: str) -> None:
        """Leave as soon as may be; a wait for the server ends by a TransportError."""
        self.interrupted = reason
