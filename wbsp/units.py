"""Parsers of quantities with units: 1ms, 0.5s, 20MB, 1Gbit, 100Mbit/s, 1562:0.1.

A bit is not a byte and a mega is not a mebi, so units are case-sensitive. Each function takes the
text of a flag or the value of a TOML key, and raises ValueError, in one line, for a bad value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
BYTES = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
BITS = {"bit": 0.125, "kbit": 125.0, "Mbit": 125e3, "Gbit": 125e6}


def seconds(value: Any) -> float:
    """Return the seconds of "1ms" or "2min"; a bare number is seconds."""
    return _quantity(value, {"": 1.0, **SECONDS}, "time")


def step(value: Any) -> tuple[float, float | None]:
    """Return the seconds of a step, of "20ms": (0.02, None), a step on a mini-batch; of
    "8ms+0.1ms": (0.008, 0.0001), the fixed seconds and those of an example."""
    first, plus, second = str(value).partition("+")
    if not plus:
        return seconds(value), None
    return seconds(first), seconds(second)


def size(value: Any) -> float:
    """Return the bytes of "600kB" or "20MB"; a bare number is bytes."""
    return _quantity(value, {"": 1.0, **BYTES}, "size")


def bandwidth(value: Any) -> float:
    """Return the bytes/s of "1Gbit" or "20MB/s", above 0; infinity for "none", no limit."""
    if value == "none":
        return math.inf
    text = value.removesuffix("/s") if isinstance(value, str) else value
    rate = _quantity(text, {**BITS, **BYTES}, "bandwidth")
    if not rate:
        raise ValueError(f"a bandwidth must be above 0, not {value!r}; none is no limit")
    return rate


def decays(value: str) -> dict[int, float]:
    """Return {step: factor of the learning rate from there on} of "1562:0.1,2734:0.01"."""
    pairs = [re.fullmatch(r"(\d+):(\d*\.?\d+(?:e-?\d+)?)", part) for part in value.split(",")]
    found = [(int(pair[1]), float(pair[2])) for pair in pairs if pair]
    steps = [step for step, _ in found]
    if len(found) < len(pairs) or not steps[0] or steps != sorted(set(steps)):
        raise ValueError(f"{value!r} is not a list of step:factor with ascending steps; give some, "
                         "such as 1562:0.1,2734:0.01")
    return dict(found)


def of_flag(name: str, value: Any, parse: Callable[[Any], T]) -> T | None:
    """Return the parsed value of the flag `name`; None if it has none.

    Raises:
        ValueError: the value is bad; one line that begins with the flag.
    """
    try:
        return None if value is None else parse(value)
    except ValueError as error:
        raise ValueError(f"--{name}: {error}") from None


def _quantity(value: Any, units: dict[str, float], what: str) -> float:
    match = re.fullmatch(r"(\d+\.?\d*(?:e-?\d+)?|\.\d+)\s*([A-Za-z]*)", str(value).strip())
    if match is None or match[2] not in units or isinstance(value, bool):
        known = ", ".join(unit for unit in units if unit)
        raise ValueError(f"{value!r} is not a {what}; give a number of {known}")
    return float(match[1]) * units[match[2]]
