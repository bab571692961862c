"""The workers' training loss, period by period, from their reports once a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wbsp.core.stats import Report


class TrainingLoss:
    """Mean loss of all samples that all workers trained in a period.

    Attributes:
        reports: of each worker, over all its incarnations.
        take: called with the mean and its number of samples.
        newest: the last mean, or None.
    """

    def __init__(self, period: float, reports: Mapping[int, Report],
                 take: Callable[[float, int], None]):
        self._period = period
        self._reports = reports
        self._take = take
        self._due = 0.0
        self._told = self._sums()
        self.newest: float | None = None

    def poll(self, now: float) -> None:
        """Report the mean if it is due at `now` seconds of the run."""
        if now >= self._due:
            self._due = now + self._period
            self.tell()

    def tell(self) -> None:
        """Report the mean since the last report, if any samples were trained."""
        losses, measured = self._sums()
        samples = measured - self._told[1]
        if samples > 0:
            self.newest = (losses - self._told[0]) / samples
            self._told = losses, measured
            self._take(self.newest, samples)

    def _sums(self) -> tuple[float, int]:
        reports = self._reports.values()
        return sum(one.losses for one in reports), sum(one.measured for one in reports)
