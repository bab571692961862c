"""What holds for all tests."""

import gc


def pytest_collection_finish():
    """What has been imported stays, so that the garbage collector can leave it alone."""
    gc.collect()
    gc.freeze()
