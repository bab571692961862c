"""Workers that must be present before a run starts, or resumes after a restart of its server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wbsp.core.decisions import joined
from wbsp.core.messages import Outgoing
from wbsp.core.stats import Member
from wbsp.sync.base import Action, Direct, Grant, Push, SyncModel

# More versions than one server makes beyond its newest checkpoint.
LEAP = 1_000_000
_MOST_AHEAD = 2  # rounds of a worker with an answered push before another that lacks its version


class Rendezvous:
    """The workers that a run waits for before its synchronization model starts.

    A run starts with `expected` workers. A resumed run continues when the workers of its checkpoint
    are present: they join again, or reattach in mid-training, and then wait for their answer until
    the model starts.

    Attributes:
        awaited: workers that a resumed run waits for; None: it had not begun at the checkpoint.
        resumed: the run resumes from a checkpoint.
        rival: another server may have continued from the same checkpoint, and may still run.
        ended: the checkpoint holds the last version: a worker that has not finished is too late.
        owed: workers that had finished without the final version; None: not known.
        left: workers that reattached and have finished.
        have: workers that have the last version, or whose processes have ended.
        answers: to workers that reattached before the start.
        floor: lowest number of the first version that is new to all of these.
        ahead: workers that reattached and have received no grant since.
        busy: workers that were in mid-step or about to push, under rules where each waits for each
            version: their next push answers the model's next grant, which is void.
    """

    def __init__(self, expected: int, awaited: Iterable[int] | None = None, ended: bool = False,
                 owed: Iterable[int] | None = None, resumed: bool = False,
                 rival: bool = False):
        self.expected = expected
        self.resumed = resumed
        self.rival = rival
        self.ended = ended
        self.owed = set(range(expected) if owed is None else owed)
        self.awaited = None if awaited is None else set(awaited)
        self.left: set[int] = set()
        self.have: set[int] = set()
        self.answers: list[Outgoing] = []
        self.floor = 0
        self.ahead: set[int] = set()
        self.busy: set[int] = set()

    def came_back(self, answer: Outgoing, floor: int, left: bool) -> None:
        """Note a worker that reattached before the start; versions from `floor` on are new to it.
        """
        self.answers.append(answer)
        if left:
            self.left.add(answer.worker)
        self.floor = max(self.floor, floor)

    def finishes(self, worker: int) -> None:
        """Note that a worker that reattached has finished."""
        self.left.add(worker)

    def has_last(self, worker: int) -> None:
        """Note that a worker has the last version, or that its process has ended."""
        self.have.add(worker)

    def is_busy(self, worker: int) -> None:
        """Note a worker whose next push answers the model's next grant."""
        self.busy.add(worker)

    def granted(self, worker: int) -> None:
        """Note that a worker has received a grant."""
        self.ahead.discard(worker)

    def leaps(self, active: set[int]) -> bool:
        """Return whether a worker may hold, or be given, versions that no present worker knows.

        No other version may have the number of one of these, because their worker may reconnect.
        Such a worker is absent, or it, or its next process, may return to another server.
        """
        return self.resumed and not self.ended and (
            self.rival or len(active | self.left) < self.expected)

    def leave(self, worker: int) -> None:
        """Forget a worker that has left."""
        self.busy.discard(worker)
        self.answers = [answer for answer in self.answers if answer.worker != worker]

    def begin_anew(self) -> None:
        """Forget the workers that reattached and have finished."""
        self.left, self.answers = set(), []

    def due(self, actions: Iterable[Action], push: Push | None = None) -> Iterable[Action]:
        """Return `actions`, perhaps the answer to a `push`, without void grants and their examples.
        """
        if not self.busy:
            return actions
        if push is not None:
            self.busy.discard(push.worker)
        due: list[Action] = []
        for action in actions:
            if isinstance(action, Grant | Direct) and action.worker in self.busy:
                if isinstance(action, Grant):
                    self.busy.remove(action.worker)
                    continue
                if action.start is not None:
                    action = action._replace(batch=None, start=None)
            due.append(action)
        return due

    def complete(self, active: set[int]) -> bool:
        """Return whether no worker is missing; `active`: those present that have not finished."""
        here = active | self.left | self.have
        if self.awaited:
            return self.awaited <= here
        if self.awaited is not None and (self.left or self.have) and not active:
            return self.owed <= self.left | self.have
        return len(here) >= self.expected

    def join(self, model: SyncModel, workers: Iterable[int], members: Mapping[int, Member],
             now: float) -> list[Action]:
        """Start `model` with these workers; return its answer."""
        back = {answer.worker for answer in self.answers} - self.left
        newest = max((members[worker].rounds for worker in back), default=0)
        last = min((members[worker].rounds for worker in back
                    if members[worker].rounds >= newest - _MOST_AHEAD), default=0)
        actions: list[Action] = []
        for worker in workers:
            member = members[worker]
            if worker not in back:
                member.enter(last)
                actions += joined(model, worker, model.join(worker, now))
            else:
                member.enter(max(member.rounds, last))  # a worker further behind has joined since
                ahead = member.rounds - last if model.rule.wait == "model" else 0
                actions += joined(model, worker, model.rejoin(worker, ahead, now))
        for worker in sorted(self.left) if back and model.rule.wait == "model" else ():
            if 0 < (ahead := members[worker].rounds - last) <= _MOST_AHEAD:
                # the others have not pushed yet for a round that this worker is part of
                actions += [*model.rejoin(worker, ahead, now), *model.leave(worker, now)]
        granted = {action.worker for action in actions if isinstance(action, Grant)}
        self.ahead = back - granted
        return actions

    @staticmethod
    def enter_round(worker: int, members: Mapping[int, Member], here: Iterable[int]) -> None:
        """Let a worker that joins a running training begin in the round of the last worker."""
        others = [members[other].rounds for other in here if other != worker]
        members[worker].enter(min(others, default=members[worker].rounds))
