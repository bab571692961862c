"""Rounds of pushes: BSP's barrier, WBSP's trigger."""

from __future__ import annotations


class Round:
    """A round of pushes, from one commit to the next.

    A round is complete when every active worker has pushed at least once in it. Each call costs
    O(1) amortized over the pushes of a round.

    Attributes:
        missing: the active workers that have not pushed since the last commit.
    """

    def __init__(self, active: set[int]):
        """Begin a round.

        Args:
            active: the model's set of active workers; the round reads it as it changes.
        """
        self._active = active
        self.missing: set[int] = set()
        self._pushed = False

    def join(self, worker: int) -> None:
        self.missing.add(worker)

    def leave(self, worker: int) -> None:
        self.missing.discard(worker)

    def push(self, worker: int) -> None:
        self.missing.discard(worker)
        self._pushed = True

    @property
    def complete(self) -> bool:
        return self._pushed and not self.missing

    def restart(self) -> None:
        self.missing = set(self._active)
        self._pushed = False


class Barrier(Round):
    """A round in which each worker pushes once.

    After a restart of the server some workers may have pushed for this round, or for the one after
    it, and others not. The round does not wait for the former until the latter have caught up.

    Attributes:
        absent: workers that have pushed for this round and have left -> rounds, as in `lead`.
    """

    def __init__(self, active: set[int]):
        super().__init__(active)
        self._ahead: dict[int, int] = {}  # worker -> as in `lead`
        self.absent: dict[int, int] = {}  # the same

    @property
    def led(self) -> bool:
        """True if a part of this round was pushed before the restart."""
        return bool(self._ahead or self.absent)

    def lead(self, worker: int, rounds: int) -> None:
        """Note that a worker has pushed for `rounds` rounds already, from this one on."""
        self._ahead[worker] = rounds
        self.push(worker)

    def join(self, worker: int) -> None:
        super().join(worker)
        self.absent.pop(worker, None)

    def leave(self, worker: int) -> None:
        super().leave(worker)
        if rounds := self._ahead.pop(worker, 0):
            self.absent[worker] = rounds

    def push(self, worker: int) -> None:
        if worker in self._ahead and worker not in self.missing:
            self._ahead[worker] += 1
        super().push(worker)

    def restart(self) -> None:
        super().restart()
        least = min((self._ahead.get(worker, 1) for worker in self._active), default=1)
        self._ahead, self.absent = (
            {worker: rounds - least for worker, rounds in leads.items() if rounds > least}
            for leads in (self._ahead, self.absent))
        self.missing -= self._ahead.keys()
        self._pushed = bool(self._ahead)
