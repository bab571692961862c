"""How much slower a worker is than it could be: the straggler score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from wbsp.member import Member


class Score(NamedTuple):
    """One worker's pace."""

    speed: float  # samples per second of compute, of late
    vs_best: float  # 0..1, of the fastest worker's speed now
    vs_own_best: float  # 0..1, of the best speed it ever showed


class StragglerScore:
    """Speeds between one `update` and the next.

    Waiting and communication don't count: a worker that computes fast is no straggler, however
    long the others hold it. A worker from which nothing new was heard keeps its last speed.
    """

    def __init__(self):
        self._seen: dict[int, tuple[int, float]] = {}  # worker -> samples, seconds at last update
        self._speed: dict[int, float] = {}
        self._best: dict[int, float] = {}

    def update(self, members: Mapping[int, Member]) -> dict[int, Score]:
        """Scores of the members that have shown a speed; compared are those handed in."""
        for worker, member in members.items():
            samples, seconds = self._seen.get(worker, (0, 0.0))
            if member.seconds > seconds:
                speed = (member.samples - samples) / (member.seconds - seconds)
                self._speed[worker] = speed
                self._best[worker] = max(speed, self._best.get(worker, 0.0))
                self._seen[worker] = member.samples, member.seconds
        speeds = {worker: self._speed[worker] for worker in members if worker in self._speed}
        fastest = max(speeds.values(), default=0.0)
        return {worker: Score(speed, _part(speed, fastest), _part(speed, self._best[worker]))
                for worker, speed in speeds.items()}

    def best(self, worker: int) -> float:
        """The best speed `worker` ever showed; 0 before it showed any."""
        return self._best.get(worker, 0.0)


def _part(speed: float, best: float) -> float:
    return speed / best if best else 0.0
