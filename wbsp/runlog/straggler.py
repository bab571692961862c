"""The straggler score: how much slower a worker is than it could be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from wbsp.core.stats import Member


class Score(NamedTuple):
    """One worker's speed, and two comparisons of this speed."""

    speed: float  # samples per second of compute, since the last measurement
    vs_best: float  # 0..1, part of the fastest worker's speed now
    vs_own_best: float  # 0..1, part of the worker's own best speed so far


class StragglerScore:
    """Meter of the workers' speeds between one `update` and the next.

    Waiting and communication do not count: a worker that computes fast is no straggler, however
    long it waits for others. A worker without a new push keeps its last speed.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, float]] = {}  # worker -> samples, seconds at last update
        self._speed: dict[int, float] = {}
        self._best: dict[int, float] = {}

    def update(self, members: Mapping[int, Member]) -> dict[int, Score]:
        """Return the scores of the `members` with a known speed, compared among these members."""
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
        """Return the best speed of `worker` so far; 0 before its first."""
        return self._best.get(worker, 0.0)


def _part(speed: float, best: float) -> float:
    return speed / best if best else 0.0
