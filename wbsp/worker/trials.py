"""Errors by which a tuner's trial ends for all workers: they are known by name, not imported."""

from __future__ import annotations

# (package, class): each error is raised in the user's own code, and a tuner catches it.
_ENDS_TRIAL = frozenset({
    ("optuna", "TrialPruned"), ("keras_tuner", "FailedTrialError"),
    ("kerastuner", "FailedTrialError")})


def ends_trial(error: BaseException) -> bool:
    """Return whether this error ends a trial, but not the tuner's search."""
    return any((kind.__module__.partition(".")[0], kind.__name__) in _ENDS_TRIAL
               for kind in type(error).__mro__)
