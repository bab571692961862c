"""Pushes just in time: when to direct each worker to cut, so that it reports with the slowest."""

from __future__ import annotations

_DECAY = 0.1  # of a peak or a trough towards each new measurement


class JustInTime:
    """Times of the pushes of a round [ours].

    Of a fast worker's pushes of a round only their sum counts, so one is enough, and it holds most
    if it comes last. A worker *responds* when its push arrives, r seconds after it was directed to
    cut: the rest of its step, its fetch if one is under way, the transfer. The worker with the
    longest response is directed at the begin of the round, which ends some R seconds later; worker
    j is directed at begin + R - r_j.

    Both are careful: r_j is a peak that decays, R a trough. A push that comes too early leaves more
    of its worker's progress to the next round; one that comes too late holds up the version. A
    worker without a measurement is directed at once. One that has no time to spare is directed
    again as soon as its push has arrived, and so pushes whenever its network is idle: where the
    network is the limit, nothing is lost to waiting for a round's end.
    """

    def __init__(self) -> None:
        self._response: dict[int, float | None] = {}  # worker -> r; None: not known yet
        self._length: float | None = None  # R
        self._begin = 0.0
        self._directed: dict[int, float] = {}  # worker -> when, until its push arrives
        self._open: set[int] = set()  # workers to be directed in this round

    def join(self, worker: int) -> None:
        self._response[worker] = None
        self._open.add(worker)

    def leave(self, worker: int) -> None:
        del self._response[worker]
        self._directed.pop(worker, None)
        self._open.discard(worker)

    def arrived(self, worker: int, now: float) -> None:
        """A push of this worker arrived."""
        self._open.discard(worker)
        self._measure(worker, now)
        if self._length is not None and self._time(worker) <= self._begin:  # no time to spare
            self._open.add(worker)

    def _measure(self, worker: int, now: float) -> None:
        directed = self._directed.pop(worker, None)
        if directed is not None:
            new, old = now - directed, self._response[worker]
            self._response[worker] = new if old is None or new > old else _towards(old, new)

    def end_round(self, now: float) -> None:
        """The round's version is made, which tells its length, and the next round begins."""
        new, old = now - self._begin, self._length
        self._length = new if old is None or new < old else _towards(old, new)
        self._begin, self._open = now, set(self._response)

    def due(self, now: float) -> list[int]:
        """The workers that are to be directed now, in ascending order; each is named once."""
        workers = sorted(w for w in self._open if self._time(w) <= now)
        self._open.difference_update(workers)
        self._directed |= dict.fromkeys(workers, now)
        return workers

    @property
    def next_due(self) -> float | None:
        """When `due` next has somebody to name; None: not in this round."""
        return min(map(self._time, self._open), default=None)

    def _time(self, worker: int) -> float:
        response = self._response[worker]
        if response is None or self._length is None:
            return self._begin
        return self._begin + max(0.0, self._length - response)


def _towards(old: float, new: float) -> float:
    return old + _DECAY * (new - old)
