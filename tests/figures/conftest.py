"""Made-up runs to draw."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from made_runs import write_run

from wbsp.runlog.reader import Run


@pytest.fixture
def make_run(tmp_path) -> Callable[..., Run]:
    """make_run("wbsp/run-001", "wbsp", accuracy=lambda t: ..., ...) writes a run and reads it."""
    return lambda folder, *args, **kwargs: write_run(tmp_path / folder, *args, **kwargs)
