"""Made-up runs to draw."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from made_runs import write_run, write_site

from wbsp.runlog.reader import Run


@pytest.fixture
def make_run(tmp_path) -> Callable[..., Run]:
    """make_run("wbsp/run-001", "wbsp", accuracy=lambda t: ..., ...) writes a run and reads it."""
    return lambda folder, *args, **kwargs: write_run(tmp_path / folder, *args, **kwargs)


@pytest.fixture
def site_run(tmp_path) -> Run:
    """A site's run, of versions 1 and 2 of its own and 3 from the server above, a second apart."""
    return write_site(tmp_path / "site")
