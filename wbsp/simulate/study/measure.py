"""Step times of a task on this machine: measured at three batches, as a + b * examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wbsp.simulate.study.spec import StepLaw


def law_of(measured: Sequence[tuple[int, float]]) -> StepLaw:
    """Return the law that is nearest to (examples, seconds) of some batches; neither part of it is
    below 0."""
    count = len(measured)
    mean_x = sum(x for x, _ in measured) / count
    mean_y = sum(y for _, y in measured) / count
    spread = sum((x - mean_x) ** 2 for x, _ in measured)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in measured) / spread
    if slope <= 0:  # no part of the time grows with the batch
        return StepLaw(mean_y, 0.0)
    if mean_y < slope * mean_x:  # through the origin
        return StepLaw(0.0, sum(x * y for x, y in measured) / sum(x * x for x, _ in measured))
    return StepLaw(mean_y - slope * mean_x, slope)


def batches(batch: int, n: int) -> list[int]:
    """Return the batches at which to measure: this one, and smaller ones where it is large enough.

    Args:
        batch: examples of the run's step.
        n: examples that there are.
    """
    found = {max(1, batch // 4), max(1, batch // 2), batch}
    while len(found) < 3 and max(found) < n:
        found.add(min(n, 2 * max(found)))
    return sorted(found)


def measure(seconds: Callable[[Sequence[int]], list[float]], batch: int, n: int
            ) -> tuple[StepLaw, list[tuple[int, float]]]:
    """Return the law of a task's step, and what was measured: (examples, seconds).

    Args:
        seconds: batches -> of a step with each.
        batch: examples of the run's step.
        n: examples that there are.
    """
    sizes = batches(batch, n)
    found = list(zip(sizes, seconds(sizes), strict=True))
    if len(found) == 1:
        return StepLaw(0.0, found[0][1] / found[0][0]), found
    return law_of(found), found
