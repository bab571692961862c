"""Metrics that rank versions, and goals that end a run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

# Parts of the names of metrics where less is better.
_LESS = ("loss", "error", "mae", "mse", "rmse", "mape", "msle", "perplexity", "divergence")


class Goal(NamedTuple):
    """A metric, and the value at which the run ends; `most`: a higher value is better."""

    metric: str
    most: bool
    target: float | None = None

    @classmethod
    def parse(cls, flag: str, text: str, valued: bool) -> Goal:
        """Parse METRIC, or METRIC:VALUE if `valued`, after an optional min: or max:.

        Raises:
            ValueError: the text has another form; one line with the flag's name.
        """
        name = text
        target: float | None = None
        if valued:
            name, _, value = text.rpartition(":")
            try:
                target = float(value)
            except ValueError:
                target = math.nan
        word, _, rest = name.partition(":")
        if word in ("min", "max") and rest:
            name, most = rest, word == "max"
        else:
            most = not any(part in name.lower() for part in _LESS)
        if not name or ":" in name or (target is not None and not math.isfinite(target)):
            form = ("METRIC:VALUE, such as accuracy:0.9, or min:rate:0.1" if valued else
                    "METRIC, such as accuracy, or min:rate")
            raise ValueError(f"--{flag}={text}: write {form}")
        return cls(name, most, target)

    def better(self, value: float, than: float) -> bool:
        """Return whether `value` is better than `than`."""
        return value > than if self.most else value < than

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Return whether these metrics reach the goal."""
        value = metrics.get(self.metric)
        return (value is not None and self.target is not None
                and not self.better(self.target, value))

    def __str__(self) -> str:
        ordered = f"{'max' if self.most else 'min'}:{self.metric}"
        return ordered if self.target is None else f"{ordered}:{self.target:g}"
