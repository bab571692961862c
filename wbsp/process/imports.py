"""Start of the project's own processes: imports of TensorFlow, and the end with a parent."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

from wbsp.process.streams import fill_numbers


@contextlib.contextmanager
def heavy_imports() -> Iterator[None]:
    """Speed up the imports of TensorFlow and Keras in the body, in a process of this project.

    They create hundreds of thousands of permanent objects. The garbage collector would scan them
    repeatedly during the import and once at the exit, for a third of the time of both. Here it
    scans none of them, now or later.

    TensorFlow prints messages at its import and, without a GPU, at its first search for one; log
    levels do not suppress all of them. With TF_CPP_MIN_LOG_LEVEL=2 or more this suppresses all.
    """
    quiet = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") >= "2"
    gc.disable()
    try:
        with _silence() if quiet else contextlib.nullcontext():
            yield
    finally:
        gc.enable()
        gc.freeze()


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discard standard error in the body."""
    fill_numbers()
    saved = os.dup(2)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def end_with_parent() -> None:
    """End this process at once when its standard input ends.

    The parent holds that open and never writes to it, so this process ends with the parent, however
    that ends.
    """
    def watch() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, name="wbsp-parent", daemon=True).start()
