"""Make pushes for tests that drive an engine or a synchronization model by hand."""

from __future__ import annotations

from wbsp.sync import Push


def push(worker: int, seq: int = 0, base: int = 0, steps: int = 1, samples: int | None = None,
         seconds: float | None = None, to: int | None = None,
         dropped: int | None = None) -> Push:
    """Return a push of `steps` steps; by default a step has one example and takes one second."""
    return Push(worker, seq, base, steps, steps if samples is None else samples,
                float(steps) if seconds is None else seconds, to=to, dropped=dropped)
