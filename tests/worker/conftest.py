"""What the tests of workers in this process share."""

import pytest

from wbsp.worker import next_run


@pytest.fixture
def process_ends():
    """What the end of this process would do."""
    yield
    next_run.close_all()
