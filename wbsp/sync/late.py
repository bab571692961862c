"""Pushes just in time: when each worker pushes, so that it reports shortly before the slowest."""

from __future__ import annotations

from heapq import heapify, heappop

_DECAY = 0.1  # of a peak or a trough towards each new measurement
_SPARE = 2.0  # responses: in a shorter round nobody comes to rest who reports twice by luck


class JustInTime:
    """Times of the pushes of a round [ours].

    Of a fast worker's pushes of a round only their sum counts, so one is enough, and it holds most
    if it comes last. A worker that reports twice in one round has time to spare: the time between
    the two is its *response* r, the rest of a step and the transfer. If 2 r fit into a round, of
    length R (equal workers report twice by luck), the worker *rests* after this report and, while
    r fits into R, after each further one, and is released once a round:

        at begin + R - 2 r      its report comes r before the round's end; then the server's line
                                is free for the slowest's push, which may take r as well
        at the begin            if that is earlier
        at once                 when the round waits for resting workers alone

    Where the server's line is the limit, pushes at the begin of a round, while the line is full of
    fetches, would make more versions, and a worse model: what a worker makes in a round would be
    in the version after the next, and it would work for a whole round without it.

    A worker without time to spare never rests, so the slowest waits for no direction and what is
    lost by a wrong guess is a push. R is a trough that decays, r of a resting worker (from its
    release to its report) a peak that decays: a push that comes too early leaves more of its
    worker's progress to the next round; one that comes too late holds up the version. r of a
    worker that does not rest is a trough, since the pushes in its way would come to rest as well.

    Times in seconds. A report costs O(1), a release O(log N), the end of a round O(N).
    """

    def __init__(self) -> None:
        self._workers: set[int] = set()
        self._begin: float | None = None  # of this round; None: nobody has joined
        self._length: float | None = None  # R; None: the first round is not over
        self._response: dict[int, float] = {}  # worker -> r, once known
        self._reported: dict[int, float] = {}  # worker -> its newest report in this round
        self._awaited: set[int] = set()  # did not rest in this round, and have not reported
        self._resting: set[int] = set()
        self._due: list[tuple[float, int]] = []  # heap of those to be released in this round
        self._released: dict[int, float] = {}  # worker -> when, until it reports

    def join(self, worker: int, now: float) -> None:
        if self._begin is None:
            self._begin = now
        self._workers.add(worker)
        self._awaited.add(worker)

    def leave(self, worker: int) -> None:
        for workers in (self._workers, self._awaited, self._resting):
            workers.discard(worker)
        for times in (self._response, self._reported, self._released):
            times.pop(worker, None)

    def arrived(self, worker: int, now: float) -> bool:
        """A push of this worker arrived. True: the worker is to rest."""
        self._awaited.discard(worker)
        r = self._response.get(worker)
        rested = worker in self._released
        if rested:
            new = now - self._released.pop(worker)
            r = new if r is None else _peak(r, new)
        elif worker in self._reported:
            new = now - self._reported[worker]
            r = new if r is None else _trough(r, new)
        self._reported[worker] = now
        if r is None:
            return False
        self._response[worker] = r
        assert self._begin is not None, "who pushes has joined"
        length = now - self._begin if self._length is None else self._length
        if (r if rested else _SPARE * r) > length:
            return False
        self._resting.add(worker)
        return True

    def end_round(self, now: float) -> None:
        """The round's version is made, which tells its length, and the next round begins."""
        assert self._begin is not None, "a version holds pushes of workers"
        new = now - self._begin
        length = self._length = new if self._length is None else _trough(self._length, new)
        self._begin = now
        self._reported.clear()
        self._awaited = self._workers - self._resting
        self._due = [(now + max(0.0, length - 2 * self._response[w]), w) for w in self._resting]
        heapify(self._due)

    def due(self, now: float) -> list[int]:
        """The workers that are to be released now; each is named once."""
        released = []
        while self._due and (self._due[0][0] <= now or not self._awaited):
            _, worker = heappop(self._due)
            if worker in self._resting:  # else: it has left
                self._resting.discard(worker)
                self._released[worker] = now
                released.append(worker)
        return released

    @property
    def next_due(self) -> float | None:
        """When `due` next has somebody to name; None: not in this round."""
        return self._due[0][0] if self._due else None


def _peak(old: float, new: float) -> float:
    return new if new > old else old + _DECAY * (new - old)


def _trough(old: float, new: float) -> float:
    return new if new < old else old + _DECAY * (new - old)
