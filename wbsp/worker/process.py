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

    def enters(self, member: Member) -> None:
        """Note the worker that is in a run from now on."""
        self.member = member

    def leaves(self) -> None:
        """Note that none is in a run."""
        self.member = None

    def welcomed(self, key: bytes, given: int | None) -> None:
        """Note a server's answer; `given`: the index that it has chosen, or None."""
        self.was_in_run, self.key, self.anew = True, key, False
        if given is not None:
            self.given = given

    def connects(self) -> None:
        """Note that a server serves."""
        self.ended = None

    def begins_anew(self, ended: str | None = None) -> None:
        """Note the end of a series; `ended`: why its server was ended, if it was."""
        self.anew, self.ended = True, ended or self.ended

    def has_done(self, fit: tuple[str, int] | None) -> None:
        """Note that it has left a run at its end; `fit`: as `behind`, if the run is of a series."""
        self.behind, self.left_early = fit or self.behind, None

    def leaves_early(self, fit: tuple[str, int]) -> None:
        """Note that it has left this fit of a series in mid-run."""
        self.left_early = fit

    def forgets(self) -> None:
        """Be another process, which no server knows."""
        self.given, self.key = None, b""


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
            part.forgets()
