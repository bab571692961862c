"""Pushes just in time: each worker pushes so that its push arrives just before the slowest's."""

from __future__ import annotations

import math
from heapq import heapify, heappop

from wbsp.sync.meter import averaged

_DECAY = 0.1  # of a peak or a trough towards each new measurement
_SPARE = 2.0  # responses in a round; in a shorter round, two reports may be chance
_FAST = 2.0  # times the usual samples of the slowest


class JustInTime:
    """Times of the pushes of a round [ours].

    Only the sum of a fast worker's pushes in a round counts, so one push is enough, and the last
    one holds most. The time between two reports of a worker in one round is its *response* r: the
    rest of a step and the transfer. If 2 r fit into a round of length R (equal workers may report
    twice by chance), the worker has time to spare: it *rests* after this report and, while r fits
    into R, after each further one. It is released once a round:

        at begin + R - 2 r      its report arrives r before the round's end; then the server's link
                                is free for the slowest's push, which may take r as well
        at the begin            if that is earlier
        at once                 when the round waits for resting workers only

    Where the server's link is the bottleneck, pushes at the begin of a round, while the link is
    full of fetches, would make more versions and a worse model: a worker's progress of a round
    would be in the version after the next, and the worker would train a whole round without it.
    There r includes a fetch and is nearly a round, so it does not distinguish fast workers from
    slow ones. Therefore a worker that trains twice the samples of the slowest rests for any r, and
    while r fits into a usual round. Released at the begin, it fetches first, because it was granted
    the version before; its push is as late as the slowest's.

    A worker without time to spare never rests, so the slowest waits for no Direct, and a wrong
    guess costs one push. R is a trough that decays. r of a resting worker (from its release to its
    report) is a peak that decays: a push that is too early leaves more of its worker's progress to
    the next round; one that is too late delays the version. r of a worker that does not rest is a
    trough, because the pushes that delay it would rest as well. The usual length is a moving mean:
    two reports by chance are not the work of two rounds.

    Times in seconds. A report costs O(1), a release O(log N), the end of a round O(N).
    """

    def __init__(self) -> None:
        self._workers: set[int] = set()
        self._begin: float | None = None  # of this round; None: no worker has joined
        self._length: float | None = None  # R; None: the first round is not over
        self._usual = 0.0  # length of a round, once the first is over
        self._samples: dict[int, int] = {}  # worker -> of this round
        self._work: dict[int, float] = {}  # worker -> usual samples of a round
        self._fast = math.inf  # usual samples from which a worker rests, whatever its response
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
        """Note a push of `samples` examples; return whether the worker is to rest."""
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
        """Measure the round, whose version is made, and begin the next one."""
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
        """Return the workers to release now; each is named once."""
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
        """Seconds at which `due` next names a worker; None: not in this round."""
        return self._due[0][0] if self._due else None


def _peak(old: float, new: float) -> float:
    return new if new > old else old + _DECAY * (new - old)


def _trough(old: float, new: float) -> float:
    return new if new < old else old + _DECAY * (new - old)
