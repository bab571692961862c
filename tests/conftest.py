"""What holds for all tests: how they share the machine."""

import gc
import os
from collections import Counter

# Several processes run tests, and many tests start more: there are no cores left over.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")


def pytest_collection_modifyitems(items):
    """Files with many slow tests come first: at the end no process is left alone with one."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_collection_finish():
    """What has been imported stays, so that the garbage collector can leave it alone."""
    gc.collect()
    gc.freeze()
