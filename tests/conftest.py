"""What holds for all tests."""

import gc


def pytest_collection_finish():
    """What has been imported stays; the garbage collector need not go through it again and again."""
    gc.collect()
    gc.freeze()
