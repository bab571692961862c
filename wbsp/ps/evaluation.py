"""The server's own evaluator: a process that the server starts, watches and ends.

It reads the versions of the run and reports its results as any reader does: see `wbsp.reading` and
`wbsp.ps.readers`. It also saves the final version as a model.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import NamedTuple, Protocol

from wbsp import timeouts
from wbsp.process.host import HOST, Host
from wbsp.process.throttle import Throttle
from wbsp.wire.proof import SIZE

MODEL = "model.keras"  # that it writes
METRICS = "loss", "accuracy", "top5"  # that it reports
_NOTICE = 20.0  # seconds between two lines about one that does not work
_LOOK = 1.0  # seconds between two checks, at most


class EvaluatorAt(NamedTuple):
    """What the server passes to an evaluator.

    Attributes:
        address: of its server.
        token: of the run, or None.
        key: the proof that it is the server's own: see `messages.NextVersion`.
        model: where to save the final version.
    """

    address: str
    token: bytes | None
    key: bytes
    model: pathlib.Path


class EvaluatorError(RuntimeError):
    """The evaluator failed; the message has the reason, in one line.

    Attributes:
        fatal: it fits no version of the run, which ends with that.
    """

    def __init__(self, reason: str, fatal: bool = False):
        super().__init__(reason)
        self.fatal = fatal


class Evaluator(Protocol):
    """The handle of an evaluator's process."""

    def problem(self) -> EvaluatorError | None:
        """Return why it has ended, or None."""

    def signs(self) -> int:
        """Return the number of observed signs of progress."""

    def kill(self) -> None:
        """End its process without waiting; also called in a signal handler."""

    def close(self) -> None:
        """End its process and wait until it has."""


class EvaluatorWatch:
    """An evaluator, and a watchdog that distinguishes a slow one from one that hangs.

    Attributes:
        key: as in `EvaluatorAt`.
        missing: why there are no results any more; None: there are.
    """

    def __init__(self, start: Callable[[EvaluatorAt], Evaluator], address: str,
                 token: bytes | None, folder: pathlib.Path, say: Callable[[str], None],
                 on: Host = HOST):
        self.key = on.scheduler.random(SIZE)
        self.missing: str | None = None
        self._evaluator = start(EvaluatorAt(address, token, self.key, folder / MODEL))
        self._say = say
        self._clock = on.clock
        self._signs = -1
        self._silent = 0.0
        self._notice = Throttle(_NOTICE, _NOTICE)  # in seconds of silence
        self._looked = on.clock.monotonic()

    def look(self, work: str | None) -> None:
        """Check that it lives, and works at `work`; None: it has none.

        A long time between two checks does not count, because this process, too, may have been
        suspended.

        Raises:
            EvaluatorError: it has failed, or hangs.
        """
        if self.missing is not None:
            return
        now = self._clock.monotonic()
        signs = self._evaluator.signs()
        passed = min(now - self._looked, _LOOK)
        self._looked = now
        if (problem := self._evaluator.problem()) is not None:
            raise problem
        if work is None or signs != self._signs:
            self._signs = signs
            self._silent = 0.0
            self._notice.rest(0.0)
            return
        self._silent += passed
        if self._silent > timeouts.EVALUATOR_HANGS:
            raise EvaluatorError(f"the evaluator hangs: it has not worked at {work} for "
                                 f"{timeouts.EVALUATOR_HANGS:g} s; its process was ended")
        if self._notice.due(self._silent):
            self._say(f"the evaluator has not worked at {work} for {self._silent:.0f} s; ending it "
                      f"after {timeouts.EVALUATOR_HANGS:g} s")

    def stop(self, reason: str) -> None:
        """End it in any state; `reason`: why there are no results any more."""
        self.missing = self.missing or reason
        self._evaluator.close()

    def kill(self) -> None:
        """End it at once."""
        self._evaluator.kill()

    def close(self) -> None:
        """End it, because its server ends."""
        self._evaluator.close()
