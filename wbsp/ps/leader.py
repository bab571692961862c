"""A standby's connection to the server that it follows, and the newest copy that came whole."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any, NamedTuple

import numpy as np
import zmq

from wbsp.layout import TensorSpec, total_size
from wbsp.ps.checkpoint import Checkpoint
from wbsp.ps.probe import Probe
from wbsp.wire import messages as m
from wbsp.wire.sockets import ServerSocket, endpoint

_TELL = 1.0  # seconds between two signs of life


class Copy(NamedTuple):
    """What a standby needs to go on in the place of the server: its settings of the run, and what
    a checkpoint holds."""

    run: dict[str, Any]
    saved: Checkpoint


class _Arriving:
    """A copy of which chunks are still to come."""

    def __init__(self, head: m.Copy):
        """Raises WireError for a head that no server sends."""
        try:
            content = json.loads(head.state)
            self.state, self.outer = content["state"], content["outer"]
            self.layout = [TensorSpec(name, tuple(shape)) for name, shape in content["layout"]]
            self.model_size = total_size(self.layout)
            if head.size != self.model_size * (1 + len(self.outer)):
                raise ValueError(f"{head.size} floats for {self.model_size}")
        except (KeyError, TypeError, ValueError) as error:
            raise m.WireError(f"a copy that is none: {error!r}") from None
        self.number = head.number
        self._floats = np.empty(head.size, np.float32)
        self._filled = 0

    def add(self, chunk: m.CopyChunk, body: memoryview) -> bool:
        """Take the next chunk; True if it was the last. Raises WireError."""
        count = body.nbytes // 4
        if (chunk.number != self.number or chunk.offset != self._filled
                or body.nbytes % 4 or self._filled + count > self._floats.size):
            raise m.WireError(f"chunk at float {chunk.offset} of copy {chunk.number} came when "
                              f"{self._filled} of {self.number} was due")
        self._floats[self._filled:self._filled + count] = np.frombuffer(body, "<f4")
        self._filled += count
        return self._filled == self._floats.size

    def checkpoint(self) -> Checkpoint:
        """What has come."""
        vector, *outer = np.split(self._floats, 1 + len(self.outer))
        return Checkpoint(vector, self.layout, self.state,
                          dict(zip(self.outer, outer, strict=True)))


class Leader:
    """The server that is followed; times are seconds of the monotonic clock.

    heard:   time of its newest message; before the first, of the begin
    touch:   time after which it has certainly been in touch
    copy:    the newest that came whole
    refused: its address has just refused a connection
    vacant:  the process there holds nothing of the run
    refusal: why it does not take this standby
    over:    why the run has ended
    """

    def __init__(self, server: ServerSocket, host: str, port: int, follow: m.Follow):
        self.address = f"{host}:{port}"
        self._endpoint = endpoint(host, port)
        self.socket = server.dealer(host)
        self.refused = False
        self._probe = Probe(self.socket, host, port)
        self.socket.connect(self._endpoint)
        self._follow = m.encode(follow)
        self._told = -_TELL
        self._run: dict[str, Any] | None = None  # its settings of the run
        self._arriving: _Arriving | None = None
        self._number = 0  # of the newest copy that is held
        self.copy: Copy | None = None
        self.heard = self.touch = time.monotonic()
        self._beats: dict[int, float] = {}  # that were not answered: number -> time
        self._beat = 0
        self._connections = 0
        self.vacant = False
        self.refusal: str | None = None
        self.over: str | None = None

    @property
    def follows(self) -> bool:
        """True once the server has taken this process as its standby."""
        return self._run is not None

    def poll(self, now: float) -> None:
        """Say what is held, now and then, and read what has come."""
        self.refused = self._probe.refused(now)
        if self._probe.connections != self._connections:
            self._connections = self._probe.connections
            self._ask_again()
        if now - self._told >= _TELL:
            self._tell(now)
        with contextlib.suppress(zmq.Again):
            while self.refusal is None and self.over is None:
                self._take(self.socket.recv_multipart(zmq.NOBLOCK, copy=False), now)

    def close(self) -> None:
        """Nothing that was said and has not left is sent any more."""
        self._probe.close()
        self.socket.close(0)

    def _tell(self, now: float) -> None:
        self._told = now
        if self._run is None:
            message = self._follow
        else:
            self._beat += 1
            self._beats[self._beat] = now
            message = m.encode(m.Held(self._number, self._beat))
        with contextlib.suppress(zmq.Again):
            self.socket.send(message, zmq.NOBLOCK)

    def _ask_again(self) -> None:
        """Introduce this process anew: what was on its way may be lost."""
        self._run = self._arriving = None
        self._beats.clear()
        self._told = -_TELL

    def _take(self, frames: list[zmq.Frame], now: float) -> None:
        try:
            message = m.decode(m.FromServer, frames[0].buffer)
            self._handle(message, frames[1].buffer if len(frames) == 2 else None, now)
        except m.WireError:
            self._ask_again()

    def _handle(self, message: m.Message, body: memoryview | None, now: float) -> None:
        self.heard = now
        match message:
            case m.Following():
                self._run, self._arriving = json.loads(message.run), None
                self.touch = now
                self._tell(now)
            case m.Copy() if self._run is not None:
                self._arriving = _Arriving(message)
            case m.CopyChunk() if self._arriving is not None and body is not None:
                if self._arriving.add(message, body):
                    self._keep(self._arriving, now)
            case m.Unknown():  # the connection is a new one, or the server is
                self._ask_again()
            case m.Alive():
                self.touch = self._beats.pop(message.chunks, self.touch)
            case m.Vacant():
                self.vacant = True
            case m.Refused():
                self.refusal = message.reason
            case m.Over():
                self.over = message.reason

    def _keep(self, arrived: _Arriving, now: float) -> None:
        """A copy is whole: it replaces the one before."""
        assert self._run is not None
        self._arriving = None
        self.copy, self._number = Copy(self._run, arrived.checkpoint()), arrived.number
        self._tell(now)
