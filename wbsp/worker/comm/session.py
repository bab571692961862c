"""A worker's session with the server, before there is a model: a refused worker learns it without
the seconds that Keras and what it runs on take to start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wbsp.environment import Task, shares_memory, token
from wbsp.process.host import HOST, Host
from wbsp.wire.addresses import split_addresses
from wbsp.wire.messages import codec as m
from wbsp.worker.comm.client import Transport
from wbsp.worker.comm.connection import RunOver

_PAUSE = 0.3  # seconds until a worker asks again whether the next run has begun
_were_in_run: set[Task] = set()  # places of this process in runs, now or before


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
