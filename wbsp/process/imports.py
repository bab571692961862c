"""How the project's own processes start."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def heavy_imports() -> Iterator[None]:
    """Around the imports of TensorFlow and Keras, in a process that is ours.

    They bring hundreds of thousands of objects, all to stay. The garbage collector goes through
    them again and again while they come, and once more at the end, for a third of the time that an
    import and an exit take; here it looks at none of them, now or later.

    TensorFlow greets at its import, and complains at its first look for a GPU where there is none;
    some of it no log level holds back. Under TF_CPP_MIN_LOG_LEVEL=2 or more none of it is shown.
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
    """Standard error leads nowhere."""
    saved = os.dup(2)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def end_with_parent() -> None:
    """End this process at once when its standard input ends, which a parent holds open and never
    writes to: with that process, however it dies."""
    def watch() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, name="wbsp-parent", daemon=True).start()
