"""How the project's own processes start."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def heavy_imports() -> Iterator[None]:
    """Around the imports of TensorFlow and Keras, in a process that is ours.

    They bring hundreds of thousands of objects, all to stay. The garbage collector goes through
    them again and again while they come, and once more at the end, for a third of the time that an
    import and an exit take; here it looks at none of them, now or later.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()
