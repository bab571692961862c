"""What a process remembers of its part in runs, from one fit to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from wbsp.environment import Task
from wbsp.process.forks import in_child
from wbsp.process.host import Scheduler

Member = TypeVar("Member")


@dataclass
class Part(Generic[Member]):
    """A process's memory of one task.

    Attributes:
        member: the worker that is in a run now.
        was_in_run: now or before.
        behind: series of runs, and number of completed fits.
        left_early: the same, of the run that it has left in mid-run.
        ended: why its server was ended.
        anew: its series of runs has ended for it.
        given: the newest index that a server has chosen.
        key: as in `Welcome`, of the newest server.
    """

    member: Member | None = None
    was_in_run: bool = False
    behind: tuple[str, int] = "", 0
    left_early: tuple[str, int] | None = None
    ended: str | None = None
    anew: bool = False
    given: int | None = None
    key: bytes = b""


class Process(Generic[Member]):
    """This process, as servers know it."""

    def __init__(self) -> None:
        self._parts: dict[Task, Part[Member]] = {}
        self._own = b""

    def part(self, task: Task) -> Part[Member]:
        """Return what is remembered of `task`, as the process was started with it: without an
        index, if the server chooses that."""
        return self._parts.setdefault(task, Part())

    @property
    def members(self) -> list[Member]:
        """The workers that are in a run now."""
        return [part.member for part in self._parts.values() if part.member is not None]

    @property
    def was_in_run(self) -> bool:
        """True if one of its workers is, or was, in a run."""
        return any(part.was_in_run for part in self._parts.values())

    def own(self, scheduler: Scheduler) -> bytes:
        """Return the random number by which a server knows this process again."""
        if not self._own:
            self._own = scheduler.random(16)
            in_child(self.is_another)
        return self._own

    def is_another(self) -> None:
        """Begin without indices, as a process that was forked does: it is another worker."""
        self._own = b""
        for part in self._parts.values():
            part.given, part.key = None, b""
