"""The line of a worker's process between two of its fits.

The process introduces itself for the next run as soon as it has left one, and its line says that it
lives until the next fit takes the line over. So the server knows whom it may wait for.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable

from wbsp import timeouts
from wbsp.environment import Task
from wbsp.process.forks import forget, in_child
from wbsp.process.host import Host
from wbsp.wire.messages import codec as m
from wbsp.worker.comm.transport import Transport
from wbsp.worker.errors import ServerEnds, TransportError

Line = tuple[Transport, m.Welcome]
# Makes a line: given what prints a line for a person, whether the wait is to end, and whether the
# process is about to.
Introduce = Callable[[Callable[[str], None], Callable[[], bool], Callable[[], bool]], Line]
_lines: dict[Task, NextRun] = {}
_GRAIN = 0.2  # seconds between two looks of a fit that waits


class NextRun:
    """A process that waits to be a worker of the next run; it is quiet until a fit asks for it."""

    def __init__(self, task: Task, introduce: Introduce, on: Host):
        self._introduce = introduce
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
        """The line, for a fit that begins, once it is there; None: it was given up before. Raises
        TransportError."""
        forget(self.forked)  # the worker itself sees to it from here on
        if (not self._thread.is_alive() and self._line is None
                and not isinstance(self._error, ServerEnds)):
            return None
        self._say, self._interrupted = say, interrupted
        with self._changed:
            self._wanted = True
            self._changed.notify_all()
        while self._thread.is_alive():
            self._thread.join(_GRAIN)
        if self._line is None and self._error is not None:
            raise self._error
        return self._line

    def close(self) -> None:
        """The process ends, or takes part in no more runs: have the server know.

        It expects this process from the moment when that left the last run. So it is told, be it at
        the end of that yet or waiting for the next one; between the two, as soon as it does.
        """
        with self._changed:
            self._leaving = True
            self._changed.notify_all()
        self._thread.join(timeouts.FAREWELL)
        self._gives_up = True
        forget(self.forked)

    def forked(self) -> None:
        """This process was forked from the worker's, and has no part in its runs."""
        _lines.clear()
        if self._line is not None:
            self._line[0].forked()

    def _run(self) -> None:
        try:
            while True:
                line = self._introduce(lambda text: self._say(text),
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
        """Until a fit takes the line, or the process leaves. False: it has ended before, since its
        server has, or a run went by without this process."""
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
    with contextlib.suppress(Exception):  # the process ends all the same
        transport.leave("its process has no other fit", finished=False)
        transport.close()


def line_of(task: Task) -> NextRun | None:
    """The line of this process as that worker, which is the caller's from here on."""
    return _lines.pop(task, None)


def close_all() -> None:
    """This process takes part in no more runs."""
    while _lines:
        _lines.popitem()[1].close()


atexit.register(close_all)
