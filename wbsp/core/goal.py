"""Metrics that rank versions, and goals that end a run.

Keras names a validation's results with `val_` in front, and an evaluation's without. A version has
only results of such data, so both forms mean the same metric, unless one process reports both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

# Parts of the names of metrics where less is better.
_LESS = ("loss", "error", "mae", "mse", "rmse", "mape", "msle", "perplexity", "divergence", "bits")


ACCURACY = "accuracy"  # the metric of a target without a name
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

    @classmethod
    def of(cls, target: Goal | str | float | None) -> Goal | None:
        """Return a goal that is given in any form: METRIC:VALUE, an accuracy of 0..1, or None, as
        an infinite one is.

        Raises:
            ValueError: the text has another form; one line.
        """
        if isinstance(target, str):
            return cls.parse("target", target, valued=True)
        if isinstance(target, Goal) or target is None:
            return target
        return cls(ACCURACY, True, target) if math.isfinite(target) else None

    @classmethod
    def usual(cls, settings: Mapping[str, Any]) -> Goal:
        """Return the metric of a run without a target, by its settings: of text and of
        a task of one's own the loss."""
        return cls("loss", False) if settings.keys() & {"text", "task"} else cls(ACCURACY, True)

    @property
    def text(self) -> str:
        """The goal as people read it: "85 %", which is of accuracy, or "loss 2"."""
        return "" if self.target is None else self.say(self.target)

    @property
    def whole(self) -> str:
        """The goal as people read it, with its metric: "85 % accuracy", "loss 2"."""
        return f"{self.text} accuracy" if self.text.endswith("%") else self.text

    def say(self, value: float, digits: str = "g") -> str:
        """Return a value of the metric as people read it."""
        if self.metric.removeprefix(_VALIDATION) == ACCURACY:
            return f"{100 * value:{digits}} %"
        return f"{self.metric} {value:{digits}}"

    def best(self, values: Iterable[float]) -> float | None:
        """Return the best of the values that are numbers, or None."""
        known = [value for value in values if math.isfinite(value)]
        return (max if self.most else min)(known, default=None)

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
        """Return whether these metrics reach the goal; a value that is no number reaches none."""
        value = self.value(metrics)
        if value is None or self.target is None:
            return False
        return value >= self.target if self.most else value <= self.target

    def __str__(self) -> str:
        ordered = f"{'max' if self.most else 'min'}:{self.metric}"
        return ordered if self.target is None else f"{ordered}:{self.target:g}"
