"""Batches, samples and loss of one step of Keras.

Keras passes neither the batch size nor the loss of one batch to callbacks; its loss tracker counts
both. If a step has several batches (steps_per_execution) and the data ends among them, Keras passes
the planned number of batches; its optimizer counts the trained ones.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from wbsp.replica.model import number, whole


class Step(NamedTuple):
    """The step that one call of `on_train_batch_end` reports."""

    batches: int
    samples: int  # 1 for a model without a loss tracker
    loss: float  # mean over the samples; NaN if unknown


class LossMeter:
    """Reads the counters of a keras.Model; `reset` begins an epoch.

    Attributes:
        batches: trained in this epoch so far.
    """

    def __init__(self, model: Any):
        tracker = next((metric for metric in model.metrics if metric.name == "loss"), None)
        count = getattr(tracker, "count", None)
        self._count = None if count is None else number(model, count)
        self._optimizer = getattr(model, "optimizer", None)
        self.reset()

    def reset(self) -> None:
        """Begin an epoch."""
        self.batches = 0
        self._samples = 0
        self._total = 0.0
        self._updates = self._updated()

    def step(self, batch: int, planned: int | None, logs: dict[str, Any], samples: int | None = None
             ) -> Step:
        """Return the newest step, which ended with `batch` of `planned` (None: unknown).

        Args:
            samples: of the step, if they are known: to read the counter takes 0.1 ms, right after a
                step of a network.
        """
        batches = batch + 1 - self.batches
        if batches > 1 and (planned is None or batch + 1 >= planned):
            trained = self._updated() - self._updates - self.batches
            batches = trained if 0 < trained < batches else batches
        self.batches += batches
        mean = float(logs.get("loss", math.nan))
        if self._count is None:
            return Step(batches, 1, mean)
        count = round(self._count()) if samples is None else self._samples + samples
        total = mean * count
        new, loss = count - self._samples, math.nan
        if new > 0:
            loss = (total - self._total) / new
        self._samples = count
        self._total = total
        return Step(batches, max(new, 1), loss)

    def _updated(self) -> int:
        """Return the number of batches that the optimizer has counted."""
        iterations = getattr(self._optimizer, "iterations", None)
        each = getattr(self._optimizer, "gradient_accumulation_steps", None) or 1
        return 0 if iterations is None else each * whole(iterations)
