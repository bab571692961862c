"""Define what all tests of the library and of lab/ share: profiles of hypothesis, processes, the
order of the files. Each top-level conftest.py imports all of it.
"""

import functools
import gc
import os
import sys
import tempfile
from collections import Counter
from itertools import zip_longest

import pytest
from hypothesis import settings
from jobs import Jobs

# The same examples in every run; a test takes a multiple of this max_examples.
settings.register_profile("repeatable", max_examples=12, derandomize=True, deadline=None,
                          database=None)
# For long nights, other examples in each run: pytest --hypothesis-profile=night. Hypothesis keeps
# what fails in .hypothesis/ and tries that first the next time.
settings.register_profile("night", max_examples=10_000, deadline=None, print_blob=True)
settings.load_profile("repeatable")

# No test reads or makes this user's token.
os.environ["XDG_CONFIG_HOME"] = os.path.join(tempfile.gettempdir(), f"wbsp-tests-{os.getpid()}")

# Several processes run tests, and many tests start more: there are no cores left over.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # PyTorch's


@pytest.fixture
def jobs(tmp_path):
    """Yield a `Jobs` in `tmp_path`; kill the processes that are left after the test."""
    with Jobs(tmp_path) as jobs:
        yield jobs


def pytest_collection_modifyitems(items):
    """Order the files: many slow tests first, so that no process is left alone with one; and files
    that compute in turn with files that wait, so that the cores are busy.
    """
    if "WBSP_LONG" not in os.environ:
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip("takes long: WBSP_LONG=1"))
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    files = sorted(dict.fromkeys(item.path for item in items), key=lambda path: -slow[path])
    waiting = [path for path in files if path.parent.name in ("faults", "ps")]
    computing = [path for path in files if path not in waiting]
    turns = [path for pair in zip_longest(computing, waiting) for path in pair if path]
    place = {path: place for place, path in enumerate(turns)}
    items.sort(key=lambda item: place[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Collect Keras's reference cycles, such as iterators of tf.data, with the test that made them.

    Deleting such an iterator may take as long as it has lived, up to a minute, because its
    autotuning sleeps longer each time and is not always woken. Without this a much later test would
    wait.
    """
    result = yield
    if item.get_closest_marker("slow") and "tensorflow" in sys.modules:
        gc.collect()
        exempt("tensorflow")
    return result


def pytest_collection_finish():
    gc.collect()
    exempt("what all tests import")


@functools.cache
def exempt(imported):
    """Exempt all present objects, which live to the end, from garbage collection, once."""
    gc.freeze()
