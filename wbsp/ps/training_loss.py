"""The loss of what workers train, period by period, as they report it once a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wbsp.core.stats import Report


class TrainingLoss:
    """Mean over all samples that were trained in a period, of all workers.

    reports: of each worker, over all its incarnations
    take:    hears of it: the mean, and of how many samples it is
    newest:  the last one that it heard of; None: of none yet
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
        """Tell what is due at this time of the run, in seconds."""
        if now >= self._due:
            self._due = now + self._period
            self.tell()

    def tell(self) -> None:
        """Tell of what was trained since the last time, if anything was."""
        losses, measured = self._sums()
        samples = measured - self._told[1]
        if samples > 0:
            self.newest = (losses - self._told[0]) / samples
            self._told = losses, measured
            self._take(self.newest, samples)

    def _sums(self) -> tuple[float, int]:
        reports = self._reports.values()
        return sum(one.losses for one in reports), sum(one.measured for one in reports)
