"""One process of a run as its supervisor sees it: started, started again, or given up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError, RaySystemError, RayTaskError, UnserializableException

from wbsp import timeouts
from wbsp.ray.placement import RunError
from wbsp.runlog.console import say


class Child:
    """One process of the run, an actor that `make` makes anew at each start.

    make:  () -> (actor, reference of its answer once it is there)
    work:  (actor, that answer) -> reference to what becomes of it
    most:  starts again in a row, each after less than a minute, until it is given up
    ended: what became of it; None while it has not come to an end
    gone:  why it was given up; None while it was not
    """

    def __init__(self, name: str, make: Callable[[], tuple[Any, Any]],
                 work: Callable[[Any, Any], Any], most: int):
        self.name, self._make, self._work, self._most = name, make, work, most
        self.actor: Any = None
        self.ended: Any = None
        self.gone: str | None = None
        self.why = ""  # it died, the last time
        self._ready: Any = None
        self._end: Any = None
        self._since = 0.0
        self._failures = 0
        self._due: float | None = time.monotonic()

    @property
    def over(self) -> bool:
        return self.ended is not None or self.gone is not None

    @property
    def waits(self) -> Any:
        """The reference to wait for; None where it is time that is waited for."""
        return self._ready if self._end is None else self._end

    @property
    def waiting(self) -> float:
        """Seconds since it was last started, until it is there; 0 from then on."""
        return 0.0 if self._ready is None or self.begun else time.monotonic() - self._since

    @property
    def begun(self) -> bool:
        """Its process is there, as far as is known."""
        return self._end is not None

    def start_if_due(self) -> None:
        if self._due is not None and time.monotonic() >= self._due:
            self._due, self._since = None, time.monotonic()
            self.actor, self._ready = self._make()

    def read(self) -> Any:
        """Take in the reference of `waits`, which has an answer: what the process came to, if that
        is its end. Raises RayTaskError for an exception of the actor's method, and RunError for
        one, or an answer, that cannot be made anew here."""
        try:
            if self._end is None:
                self._end = self._work(self.actor, ray.get(self._ready))
                self._since = time.monotonic()
                return None
            return ray.get(self._end)
        except RayTaskError:
            raise
        except UnserializableException as error:
            raise RunError(f"{self.name}: what it raised cannot be read here: {_last(error)}"
                           ) from error
        except RaySystemError as error:
            if "serialize" not in str(error) and "pickle" not in str(error):
                self.died(_cause(error))
                return None
            raise RunError(f"{self.name}: what it returned cannot be read here: {_last(error)}"
                           ) from error
        except RayError as error:
            self.died(_cause(error))
            return None

    def died(self, why: str) -> None:
        """Have it started again, or give it up."""
        lived = time.monotonic() - self._since if self._end is not None else 0.0
        self.kill()
        self.why = why
        self._failures = 1 if lived > timeouts.RAY_SHORT else self._failures + 1
        if self._failures > self._most:
            self.give_up(f"{why}; started again {self._most} times in short order")
            return
        say(f"wbsp.ray: {self.name}: {why}; it is started again")
        pause = 0.0 if self._failures == 1 else min(2.0 ** (self._failures - 2), timeouts.RAY_PAUSE)
        self._due = time.monotonic() + pause

    def give_up(self, why: str) -> None:
        self.kill()
        self._due = None
        self.gone = why
        say(f"wbsp.ray: {self.name} is given up: {why}")

    def kill(self) -> None:
        """End its process, if there is one."""
        if self.actor is not None:
            ray.kill(self.actor)
        self.actor = self._ready = self._end = None


def one_line(error: RayTaskError) -> str:
    """What was raised in an actor, in one line and without the traceback."""
    return " ".join(str(error.cause).split()) or type(error.cause).__name__


def _last(error: RayError) -> str:
    """The last line of Ray's report, which names the error itself."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _cause(error: RayError) -> str:
    """Why an actor is gone, of Ray's report of a paragraph.

    Of a node that dies, Ray now and then sees only that its processes do.
    """
    node = "node has died" in str(error) or "node was terminated" in str(error)
    return "its node has died" if node else "its process has died"
