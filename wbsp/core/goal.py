"""Metrics that rank versions, and goals that end a run.

Keras names a validation's results with `val_` in front, and an evaluation's without. A version has
only results of such data, so both forms mean the same metric, unless one process reports both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

# Parts of the names of metrics where less is better.
_LESS = ("loss", "error", "mae", "mse", "rmse", "mape", "msle", "perplexity", "divergence")


_VALIDATION = "val_"


def plain(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics without `val_` before their names, unless both forms are there."""
    short = {name: name.removeprefix(_VALIDATION) for name in metrics}
    return {name if short[name] in metrics else short[name]: value
            for name, value in metrics.items()}


def validation(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics with `val_` before their names, as Keras's callbacks look for them."""
    named = {name: value for name, value in metrics.items() if name.startswith(_VALIDATION)}
    return {f"{_VALIDATION}{name}": value for name, value in metrics.items()
            if name not in named} | named


class Goal(NamedTuple):
    """A metric, and the value at which the run ends.

    Attributes:
        metric: as the user has written it.
        most: a higher value is better.
        target: the value; None: none ends the run.
    """

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

    def value(self, metrics: Mapping[str, float]) -> float | None:
        """Return the value of the metric, with or without `val_` before its name, or None."""
        return next((metrics[name] for name in (self.metric, *self._others) if name in metrics),
                    None)

    def ranks_by(self, metric: str) -> bool:
        """Return whether `metric` names the goal's metric."""
        return metric in (self.metric, *self._others)

    @property
    def _others(self) -> tuple[str, str]:
        """The other names of the metric."""
        short = self.metric.removeprefix(_VALIDATION)
        return short, f"{_VALIDATION}{short}"

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Return whether these metrics reach the goal."""
        value = self.value(metrics)
        return (value is not None and self.target is not None
                and not self.better(self.target, value))

    def __str__(self) -> str:
        ordered = f"{'max' if self.most else 'min'}:{self.metric}"
        return ordered if self.target is None else f"{ordered}:{self.target:g}"
