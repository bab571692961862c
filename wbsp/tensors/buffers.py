"""Memory for received vectors that is used again instead of being returned to the kernel.

Fresh memory is expensive: the kernel zeroes every page, which for a model of 100 MB costs more than
copying it.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import Any

import numpy as np

_TRIM_THRESHOLD = -1  # this and the next are from <malloc.h>
_MMAP_THRESHOLD = -3
_KEPT = 64 << 20  # bytes that a heap keeps: many chunks, yet little relative to a training process
_MAPPED = 32 << 20  # bytes from which memory is mapped separately; the most that glibc accepts


def keep_freed() -> None:
    """Have glibc keep some freed memory; no effect with another C library.

    libzmq allocates every chunk it receives and frees it a moment later. On Python 3.11, TensorFlow
    undoes this where a tf.data pipeline calls Python (`from_generator`, the iterators of some
    strategies), since such processes' memory grew.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT)
        libc.mallopt(_MMAP_THRESHOLD, _MAPPED)


class BufferPool:
    """Vectors that are used again once nothing references them.

    The pool keeps as many vectors as were ever referenced at a time. Views count: a slice, or a
    message that has not been sent, references its vector.
    """

    def __init__(self) -> None:
        self._vectors: list[np.ndarray] = []

    def take(self, size: int) -> np.ndarray:
        """Return a vector, float32 [size], of any values; the caller may write to it."""
        for index in range(len(self._vectors)):
            if not is_held(self._vectors, index) and self._vectors[index].size == size:
                vector = self._vectors[index]
                vector.flags.writeable = True
                return vector
        vector = self._new(size)
        self._vectors.append(vector)
        return vector

    def _new(self, size: int) -> np.ndarray:
        return np.empty(size, np.float32)


def is_held(items: Any, key: int) -> bool:
    """Return whether anything but this list or dict references items[key], or a view of it."""
    return _holders(items, key) > _NOBODY


def _holders(items: Any, key: int) -> int:
    """Return the number of references to items[key], with those of the container and this call."""
    return sys.getrefcount(items[key])


_NOBODY = _holders([object()], 0)  # of an item that only its container holds
