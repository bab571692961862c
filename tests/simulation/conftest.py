"""What the tests of the simulation share."""

import pytest
from simulated.command import scratch


@pytest.fixture
def folder():
    """A folder for the files of one simulated run after the other."""
    with scratch() as folder:
        yield folder
