"""Pushes just in time: when each worker pushes, so that it reports shortly before the slowest."""

from __future__ import annotations

import math
from heapq import heapify, heappop

from wbsp.sync.meter import averaged

_DECAY = 0.1  # of a peak or a trough towards each new measurement
_SPARE = 2.0  # responses: in a shorter round nobody comes to rest who reports twice by luck
_FAST = 2.0  # times the usual samples of the slowest


class JustInTime:
    """Times of the pushes of a round [ours].

    Of a fast worker's pushes of a round only their sum counts, so one is enough, and it holds most
    if it comes last. The time between two reports of a worker in one round is its *response* r, the
    rest of a step and the transfer. If 2 r fit into a round, of length R (equal workers report
    twice by luck), the worker has time to spare: it *rests* after this report and, while r fits
    into R, after each further one, and is released once a round:

        at begin + R - 2 r      its report comes r before the round's end; then the server's line
                                is free for the slowest's push, which may take r as well
        at the begin            if that is earlier
        at once                 when the round waits for resting workers alone

    Where the server's line is the limit, pushes at the begin of a round, while the line is full of
    fetches, would make more versions, and a worse model: what a worker makes in a round would be
    in the version after the next, and it would work for a whole round without it. There r, which
    then holds a fetch, is nearly a round and says nothing: so who makes twice the samples of the
    slowest rests whatever r is, and while r fits into a usual round. Released at the begin, it
    fetches first, as it was granted the version before; its push is as late as the slowest's.

    A worker without time to spare never rests, so the slowest waits for no direction and what is
    lost by a wrong guess is a push. R is a trough that decays, r of a resting worker (from its
    release to its report) a peak that decays: a push that comes too early leaves more of its
    worker's progress to the next round; one that comes too late holds up the version. r of a
    worker that does not rest is a trough, since the pushes in its way would come to rest as well.
    What is usual is a mean that follows the newest: two reports by luck are not two rounds' work.

    Times in seconds. A report costs O(1), a release O(log N), the end of a round O(N).
    """

    def __init__(self) -> None:
        self._workers: set[int] = set()
        self._begin: float | None = None  # of this round; None: no worker has joined
        self._length: float | None = None  # R; None: the first round is not over
        self._usual = 0.0  # length of a round, once the first is over
        self._samples: dict[int, int] = {}  # worker -> of this round
        self._work: dict[int, float] = {}  # worker -> usual samples of a round
        self._fast = math.inf  # usual samples of who has time to spare, whatever its response
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
        for known in (self._response, self._reported, self._released, self._samples, self._work):
            known.pop(worker, None)

    def arrived(self, worker: int, samples: int, now: float) -> bool:
        """A push of so many samples arrived. True: the worker is to rest."""
        self._awaited.discard(worker)
        self._samples[worker] = self._samples.get(worker, 0) + samples
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
        assert self._begin is not None, "a worker that pushes has joined"
        length = now - self._begin if self._length is None else self._length
        fast = self._work.get(worker, 0) >= self._fast
        rests = (r <= length or (fast and r <= self._usual)) if rested \
            else (_SPARE * r <= length or fast)
        if rests:
            self._resting.add(worker)
        return rests

    def end_round(self, now: float) -> None:
        """The round's version is made, which tells its length, and the next round begins."""
        assert self._begin is not None, "a version holds pushes of workers"
        new = now - self._begin
        if self._length is None:
            length = self._usual = new
        else:
            length, self._usual = _trough(self._length, new), averaged(self._usual, new)
        self._length, self._begin = length, now
        for worker, samples in self._samples.items():
            self._work[worker] = averaged(self._work.get(worker), samples)
        self._fast = _FAST * min(self._work.values(), default=math.inf)
        self._samples.clear()
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
