"""A worker's errors; those that say in one line all that there is to say end a script with it.

Who trains a model of their own wrote none of the thirty lines that Python would show above it. As
with signals, only where Python's own way of showing errors is set.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import TracebackType

_PLAIN = "_wbsp_says_all"  # attribute of such errors


class TransportError(RuntimeError):
    """The server cannot be reached, was lost, or refused this worker; the message says which."""


class RunOver(TransportError):
    """The server refused this worker since its run has ended."""


class ServerEnds(TransportError):
    """The server refused this worker since it has been ended, and serves no other run."""


def refused(reason: str, over: bool, ends: bool = False) -> TransportError:
    """The error of a worker that the server refused; `over`: since its run has ended; `ends`: and
    no other one follows."""
    kind = ServerEnds if ends else RunOver if over else TransportError
    return kind(f"the server refused: {reason}")


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Around what a script calls: a TransportError, ValueError or OSError of the body is such an
    error, if nothing catches it."""
    try:
        yield
    except (TransportError, ValueError, OSError) as error:
        says_all(error)
        raise


def says_all(error: Exception) -> Exception:
    """This error, which is shown by its line alone if nothing catches it."""
    setattr(error, _PLAIN, True)
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show
    return error


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if getattr(error, _PLAIN, False):
        print(f"wbsp: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)
