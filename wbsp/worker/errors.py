"""Errors in a worker's script: those that one line explains, and those that end a tuner's trial.

A script ends with the one line, because the traceback above it would show no code of the user. Only
Python's default exception hook is replaced, as only its default signal handlers are.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import TracebackType

from wbsp.wire.errors import TransportError

_PLAIN = "_wbsp_says_all"  # attribute of such errors
# (package, class) of errors that a user's own code raises, and a tuner catches; known by name, not
# imported.
_ENDS_TRIAL = frozenset({
    ("optuna", "TrialPruned"), ("keras_tuner", "FailedTrialError"),
    ("kerastuner", "FailedTrialError")})


def ends_trial(error: BaseException) -> bool:
    """Return whether this error ends a trial for all workers, but not the tuner's search."""
    return any((kind.__module__.partition(".")[0], kind.__name__) in _ENDS_TRIAL
               for kind in type(error).__mro__)


@contextlib.contextmanager
def in_one_line() -> Iterator[None]:
    """Show an uncaught TransportError, ValueError or OSError of the body as one line."""
    try:
        yield
    except (TransportError, ValueError, OSError) as error:
        says_all(error)
        raise


def says_all(error: Exception) -> Exception:
    """Mark an error to be shown as one line if it is not caught; return it."""
    setattr(error, _PLAIN, True)
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show
    return error


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if getattr(error, _PLAIN, False):
        if sys.stderr is not None:
            print(f"wbsp: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)
