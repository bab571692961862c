"""Workers that must be present before a run starts, or resumes after a restart of its server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wbsp.core.decisions import joined
from wbsp.core.messages import Outgoing
from wbsp.core.stats import Member
from wbsp.sync.base import Action, Direct, Grant, Push, SyncModel

# Versions of one server beyond its newest checkpoint: it makes one before there are as many.
LEAP = 1_000_000
_MOST_AHEAD = 2  # rounds, of one whose push was answered before another, which lacks its version


class Rendezvous:
    """The workers that a run waits for before its synchronization model starts.

    A run begins with `expected` workers. One that is resumed goes on when those are here that its
    checkpoint knows; they join anew, or attach themselves again in mid-training, and then wait for
    their answer until the model starts.

    awaited:  by a resumed run; None: it had not begun when the checkpoint was made
    resumed:  the run goes on from a checkpoint
    ended:    the checkpoint is that of the last version: who has not finished comes too late to
              attach again, but may join
    owed:     workers that had finished, and did not have the final version yet; None: not known
    left:     workers that attached again, and have finished
    answers:  to workers that attached again before the start
    floor:    lowest number of the first version that is news to all of these
    ahead:    workers that attached again, and that the model has not granted a version since
    busy:     those that were in mid-step, or about to push, where each waits for each version:
              their next push answers the model's next grant, which is void
    """

    def __init__(self, expected: int, awaited: Iterable[int] | None = None, ended: bool = False,
                 owed: Iterable[int] | None = None, resumed: bool = False):
        self.expected = expected
        self.resumed = resumed
        self.ended = ended
        self.owed = range(expected) if owed is None else set(owed)
        self.awaited = None if awaited is None else set(awaited)
        self.left: set[int] = set()
        self.answers: list[Outgoing] = []
        self.floor = 0
        self.ahead: set[int] = set()
        self.busy: set[int] = set()

    def came_back(self, answer: Outgoing, floor: int, left: bool) -> None:
        """A worker to which versions from `floor` on are news attached again before the start."""
        self.answers.append(answer)
        if left:
            self.left.add(answer.worker)
        self.floor = max(self.floor, floor)

    def leaps(self, active: set[int]) -> bool:
        """True if a worker is away that may hold versions of the server before which nobody here
        knows, and whose numbers are not to be given to others: it may come back."""
        return self.resumed and not self.ended and len(active | self.left) < self.expected

    def leave(self, worker: int) -> None:
        """A worker has left: should it come again, it is as any other."""
        self.busy.discard(worker)
        self.answers = [answer for answer in self.answers if answer.worker != worker]

    def due(self, actions: Iterable[Action], push: Push | None = None) -> Iterable[Action]:
        """`actions`, the answer to a `push` if it was one, without grants that are void, and the
        examples given with them."""
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
        """True if no worker is missing; `active`: those that are here and have not finished."""
        here = active | self.left
        if self.awaited:
            return self.awaited <= here
        if self.awaited is not None and self.left and not active:
            return self.left.issuperset(self.owed)
        return len(here) >= self.expected

    def join(self, model: SyncModel, workers: Iterable[int], members: Mapping[int, Member],
             now: float) -> list[Action]:
        """Have `model` begin with these workers; what it answers."""
        back = {answer.worker for answer in self.answers} - self.left
        newest = max((members[worker].rounds for worker in back), default=0)
        last = min((members[worker].rounds for worker in back
                    if members[worker].rounds >= newest - _MOST_AHEAD), default=0)
        actions: list[Action] = []
        for worker in workers:
            member = members[worker]
            if worker not in back:
                member.rounds = last
                actions += joined(model, worker, model.join(worker, now))
            else:
                member.rounds = max(member.rounds, last)  # more behind is who has joined since
                ahead = member.rounds - last if model.rule.wait == "model" else 0
                actions += joined(model, worker, model.rejoin(worker, ahead, now))
        for worker in sorted(self.left) if back and model.rule.wait == "model" else ():
            if 0 < (ahead := members[worker].rounds - last) <= _MOST_AHEAD:
                # the others have yet to push for a round that it has a part in
                actions += [*model.rejoin(worker, ahead, now), *model.leave(worker, now)]
        granted = {action.worker for action in actions if isinstance(action, Grant)}
        self.ahead = back - granted
        return actions

    @staticmethod
    def enter_round(worker: int, members: Mapping[int, Member], here: Iterable[int]) -> None:
        """A worker comes when the others have gone on: it begins with the last of them."""
        others = [members[other].rounds for other in here if other != worker]
        members[worker].rounds = min(others, default=members[worker].rounds)
