"""One process of a run for its supervisor: started, restarted, or given up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError, RaySystemError, RayTaskError, UnserializableException

from wbsp.process.restarts import Restarts
from wbsp.ray.placement import RunError
from wbsp.runlog.console import say


class Child:
    """One process of the run, an actor that `make` creates at each start.

    Args:
        make: () -> (actor, reference that is ready once it runs).
        work: (actor, that answer) -> reference to its result.
        most: restarts in a row, each after less than a minute, until it is given up.
        ended: its result; None until it has ended.
        gone: why it was given up; None if it was not.
    """

    def __init__(self, name: str, make: Callable[[], tuple[Any, Any]],
                 work: Callable[[Any, Any], Any], most: int):
        self.name, self._make, self._work = name, make, work
        self._restarts = Restarts(most)
        self.actor: Any = None
        self.ended: Any = None
        self.gone: str | None = None
        self.why = ""  # of its last death
        self._ready: Any = None
        self._end: Any = None
        self._since = 0.0
        self._due: float | None = time.monotonic()

    @property
    def over(self) -> bool:
        return self.ended is not None or self.gone is not None

    @property
    def waits(self) -> Any:
        """The reference to wait for; None while it waits for the time of a restart."""
        return self._ready if self._end is None else self._end

    @property
    def waiting(self) -> float:
        """Seconds since its last start, until it runs; 0 from then on."""
        return 0.0 if self._ready is None or self.begun else time.monotonic() - self._since

    @property
    def begun(self) -> bool:
        """Whether its process runs, as far as is known."""
        return self._end is not None

    def start_if_due(self) -> None:
        if self._due is not None and time.monotonic() >= self._due:
            self._due, self._since = None, time.monotonic()
            self.actor, self._ready = self._make()

    def read(self) -> Any:
        """Read the reference of `waits`, which is ready; return the process's result if it has one.

        Raises RayTaskError for an exception of the actor's method, and RunError for an exception or
        a result that cannot be deserialized here.
        """
        try:
            if self._end is None:
                self._end = self._work(self.actor, ray.get(self._ready))
                self._since = time.monotonic()
                return None
            return ray.get(self._end)
        except RayTaskError:
            raise
        except UnserializableException as error:
            raise RunError(f"{self.name}: its exception cannot be deserialized here: {_last(error)}"
                           ) from error
        except RaySystemError as error:
            if "serialize" not in str(error) and "pickle" not in str(error):
                self.died(_cause(error))
                return None
            raise RunError(f"{self.name}: its result cannot be deserialized here: {_last(error)}"
                           ) from error
        except RayError as error:
            self.died(_cause(error))
            return None

    def ends(self, how: Any) -> None:
        """Note the result with which it has ended in good order."""
        self.ended = how

    def died(self, why: str) -> None:
        """Restart it, or give it up."""
        lived = time.monotonic() - self._since if self._end is not None else 0.0
        self.kill()
        self.why = why
        pause = self._restarts.after(lived)
        if pause is None:
            self.give_up(f"{why}; restarted {self._restarts.most} times in a row")
            return
        say(f"wbsp.ray: {self.name}: {why}; restarting it")
        self._due = time.monotonic() + pause

    def give_up(self, why: str) -> None:
        self.kill()
        self._due = None
        self.gone = why
        say(f"wbsp.ray: giving up {self.name}: {why}")

    def kill(self) -> None:
        """End its process, if there is one."""
        if self.actor is not None:
            ray.kill(self.actor)
        self.actor = self._ready = self._end = None


def one_line(error: RayTaskError) -> str:
    """Return an actor's exception in one line and without the traceback."""
    return " ".join(str(error.cause).split()) or type(error.cause).__name__


def _last(error: RayError) -> str:
    """Return the last line of Ray's report, which names the error itself."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _cause(error: RayError) -> str:
    """Return why an actor has died, from Ray's report of a paragraph.

    If a node dies, Ray sometimes reports only the deaths of its processes.
    """
    node = "node has died" in str(error) or "node was terminated" in str(error)
    return "its node has died" if node else "its process has died"
