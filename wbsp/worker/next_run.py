"""The connection of a worker's process between two of its fits.

The process introduces itself for the next run as soon as it has left one, and sends heartbeats
until the next fit takes over the connection. So the server knows which workers to wait for.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable

from wbsp import timeouts
from wbsp.environment import Task
from wbsp.process.forks import forget, in_child
from wbsp.process.host import Host
from wbsp.wire.errors import ServerEnds, TransportError
from wbsp.wire.messages import codec as m
from wbsp.worker.comm.transport import Transport

Line = tuple[Transport, m.Welcome]
# Makes a connection: its arguments print a console line, and return whether to end the wait, and
# whether the process ends.
Introduce = Callable[[Callable[[str], None], Callable[[], bool], Callable[[], bool]], Line]
_lines: dict[Task, NextRun] = {}
_GRAIN = 0.2  # seconds between two checks of a fit that waits


class NextRun:
    """A process that waits for the next run; it prints nothing before a fit takes over."""

    def __init__(self, task: Task, introduce: Introduce, on: Host):
        self._introduce: Introduce | None = introduce
        self._changed = on.scheduler.condition()
        self._say: Callable[[str], None] = lambda text: None
        self._interrupted: Callable[[], bool] = lambda: False
        self._line: Line | None = None
        self._error: TransportError | None = None
        self._wanted = self._leaving = self._gives_up = False
        _lines[task] = self
        in_child(self.forked)
        self._thread = on.scheduler.thread(self._run, "wbsp-next-run")
        self._thread.start()

    def take(self, say: Callable[[str], None], interrupted: Callable[[], bool]) -> Line | None:
        """Return the connection for a fit that begins; wait for it.

        Returns:
            None if the connection was given up before.

        Raises:
            TransportError: the server refuses.
        """
        forget(self.forked)  # the worker handles forks from here on
        if (not self._thread.is_alive() and self._line is None
                and not isinstance(self._error, ServerEnds)):
            return None
        self._say, self._interrupted = say, interrupted
        with self._changed:
            self._wanted = True
            self._changed.notify_all()
        while self._thread.is_alive():
            self._thread.join(_GRAIN)
        self._introduce = None  # of the worker before, which must not live as long as the line
        if self._line is None and self._error is not None:
            raise self._error
        return self._line

    def close(self) -> None:
        """Report to the server that the process ends, or joins no more runs.

        The server waits for a process that has left a run. It receives the message at the end of
        that run or while it waits for the next one; between the two, as soon as it waits.
        """
        with self._changed:
            self._leaving = True
            self._changed.notify_all()
        self._thread.join(timeouts.FAREWELL)
        self._gives_up = True
        forget(self.forked)

    def forked(self) -> None:
        """Release the connection in a process that was forked from the worker's."""
        _lines.clear()
        if self._line is not None:
            self._line[0].forked()

    def _run(self) -> None:
        introduce = self._introduce
        assert introduce is not None
        try:
            while True:
                line = introduce(lambda text: self._say(text),
                                 lambda: self._gives_up or self._interrupted(),
                                 lambda: self._leaving)
                if self._keep(line):
                    return
                error = line[0].error
                line[0].close()
                if isinstance(error, ServerEnds):
                    raise error
        except TransportError as error:
            self._error = error

    def _keep(self, line: Line) -> bool:
        """Keep the connection until a fit takes it over, or the process leaves.

        Returns:
            False if it has ended before, because its server has, or a run went by without this
            process.
        """
        transport = line[0]
        with self._changed:
            self._line = line
            while not (self._wanted or self._leaving or transport.error):
                self._changed.wait(timeouts.NEXT_RUN)
            ended = bool(transport.error)
            if ended or self._leaving:
                self._line = None
        if self._leaving and not ended:
            _say_goodbye(transport)
            return True
        return not ended


def _say_goodbye(transport: Transport) -> None:
    with contextlib.suppress(Exception):  # the process ends anyway
        transport.leave("its process has no other fit", finished=False)
        transport.close()


def line_of(task: Task) -> NextRun | None:
    """Return this process's connection as that worker; the caller owns it from here on."""
    return _lines.pop(task, None)


def close_all() -> None:
    """Close all connections, because this process joins no more runs."""
    while _lines:
        _lines.popitem()[1].close()


atexit.register(close_all)
