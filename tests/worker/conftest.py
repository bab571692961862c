"""Shared parts of the tests of workers in this process."""

import pytest

from wbsp.worker import next_run


@pytest.fixture
def process_ends():
    """Act as the end of this process would."""
    yield
    next_run.close_all()
