"""Values that a user's code gives: each is converted, or refused by the name of its argument.

A number of numpy or of another framework is the number that it is, and an integer may be a float
without a fraction. Other values are refused where they are given, and not where they are sent.
"""

from __future__ import annotations

import contextlib
import math
import operator
import os
from collections.abc import Mapping
from typing import Any

from wbsp.limits import one_line

MOST = 1 << 53  # exact as a float64, too
MOST_AT_ONCE = 1 << 30  # steps or examples of one call
FOREVER = 1e9  # seconds
METRICS, NAMED = 64, 64  # metrics of a validation, and characters of a name, as in `Measured`
_PATH = 4096  # bytes of a path, at most
_SHOWN = 60  # characters of a wrong value
_REASON = 400  # characters of a reason: a server prints no more


def whole(name: str, value: Any, least: int = 0, most: int = MOST) -> int:
    """Return a whole number. Raises ValueError, in one line, if `value` is none in this range."""
    number = _number(value)
    if number is None or number != number or number in (math.inf, -math.inf) or (
            number != int(number)) or number < least:
        raise ValueError(f"{name}={shown(value)}: it must be a whole number from {least} on")
    if number > most:
        raise ValueError(f"{name}={shown(value)}: it must be at most {most:,}")
    return int(number)


def above_zero(name: str, value: Any, unit: str = "") -> float:
    """Return a number above 0, perhaps infinity. Raises ValueError, in one line."""
    number = _number(value)
    if number is None or not number > 0:
        raise ValueError(f"{name}={shown(value)}: it must be a number{unit} above 0")
    return float(number) if number <= 1e300 else math.inf


def seconds(name: str, value: Any, least: float = 0.0) -> float:
    """Return seconds; infinity is `FOREVER`. Raises ValueError, in one line."""
    number = _number(value)
    if number is None or not number >= least:
        raise ValueError(f"{name}={shown(value)}: it must be a number of seconds from "
                         f"{least:g} on")
    return float(min(number, FOREVER))


def number(name: str, value: Any) -> float:
    """Return a number, perhaps not finite. Raises ValueError, in one line."""
    found = _number(value)
    if found is None:
        raise ValueError(f"{one_line(name, NAMED)}={shown(value)} is not a number")
    return float(found)


def loss(value: Any) -> float:
    """Return a loss; NaN: it is not known. Raises ValueError, in one line."""
    number = _number(value)
    if number is None:
        raise ValueError(f"loss={shown(value)}: it must be a number, a scalar of the framework, or "
                         "None")
    return float(number) if abs(number) <= 1e300 else math.nan


def reason(name: str, value: Any) -> str:
    """Return a text as one line of printable characters, cut where it is too long.

    Raises ValueError, in one line, for what is no text.
    """
    if not isinstance(value, str):
        raise ValueError(f"{name}={shown(value)}: it must be a text")
    return one_line(value, _REASON)


def texts(name: str, value: Any) -> dict[str, str]:
    """Return a dict of texts by name; None: an empty one. Raises ValueError, in one line."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}={shown(value)}: it must be a dict of texts")
    for key, text in value.items():
        if not (isinstance(key, str) and isinstance(text, str)
                and key.isprintable() and len(key) <= 100 and len(text) <= 1 << 16):
            raise ValueError(f"{name}={{{shown(key)}: {shown(text)}}}: it must be a dict of texts, "
                             "with names of at most 100 characters")
    return dict(value)


def path(name: str, value: Any) -> str | None:
    """Return the path of a file, or None for None. Raises ValueError, in one line."""
    if value is None:
        return None
    try:
        found = os.fspath(value)
        if isinstance(found, str) and len(os.fsencode(found)) <= _PATH and "\0" not in found:
            return found
    except Exception:  # of the value's own class
        pass
    raise ValueError(f"{name}={shown(value)}: it must be the path of a file")


def names(name: str, value: Any) -> list[str] | None:
    """Return a list of names, or None for None. Raises ValueError, in one line."""
    if value is None:
        return None
    try:
        found = None if isinstance(value, str | bytes) else [*value]
    except Exception:  # of the value's own class
        found = None
    if found is None or not all(isinstance(one, str) for one in found):
        raise ValueError(f"{name}={shown(value)}: give a list of names")
    return found


def metrics(values: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the metrics that can be sent, by the names that are sent, and name -> sent name.

    A long name is cut. What is not finite, or more than `METRICS`, is left out.
    """
    sent: dict[str, float] = {}
    names: dict[str, str] = {}
    for name, value in values.items():
        number, cut = _number(value), short(name)
        if number is None or not abs(number) <= 1e300 or cut in sent or len(sent) == METRICS:
            continue
        sent[cut], names[name] = float(number), cut
    return sent, names


def short(name: str) -> str:
    """Return the name of a metric as it is sent."""
    return one_line(str(name), NAMED)


def shown(value: Any) -> str:
    """Return a value for a line."""
    try:
        text = repr(value)
    except Exception:  # of the value's own class; or an integer of thousands of digits
        text = f"a {type(value).__name__}"
    return one_line(text, _SHOWN) + ("..." if len(text) > _SHOWN else "")


def _number(value: Any) -> int | float | None:
    """Return the Python number that `value` is, or None."""
    if isinstance(value, bool | str | bytes | bytearray | memoryview):
        return None
    if isinstance(value, int | float):
        if isinstance(value, int) and abs(value) > 1e300:  # no float
            return math.inf if value > 0 else -math.inf
        return value
    try:
        shape = tuple(getattr(value, "shape", ()))
        if str(getattr(value, "dtype", "")).endswith("bool") or any(size != 1 for size in shape):
            return None
        value = value.reshape(()) if shape else value
        with contextlib.suppress(TypeError, AttributeError):  # a scalar of floats
            return operator.index(value)
        return float(value)
    except Exception:  # of the value's own class
        return None
