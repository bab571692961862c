"""Memory for received vectors, which is used again instead of being handed back to the kernel.

Fresh memory is expensive: the kernel zeroes every page, which for a model of 100 MB costs more than
copying it.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import Any

import numpy as np

_TRIM_THRESHOLD = -1  # this and the next are of <malloc.h>
_MMAP_THRESHOLD = -3
_KEPT = 64 << 20  # bytes that a heap keeps: many chunks, and little beside a training process
_MAPPED = 32 << 20  # bytes from which on memory is mapped separately; the most that glibc takes


def keep_freed() -> None:
    """Have the C library keep some freed memory; no effect where it is not glibc.

    libzmq allocates every chunk it receives and frees it a moment later. On Python 3.11 TensorFlow
    takes this back where a tf.data pipeline calls Python (`from_generator`, the iterators of some
    strategies), since the memory of such processes grew.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT)
        libc.mallopt(_MMAP_THRESHOLD, _MAPPED)


class BufferPool:
    """Vectors that were handed out, to be used again when they are held no more.

    The pool keeps as many vectors as were ever held at a time. Views count: a slice, or a message
    that has not been sent, holds its vector.
    """

    def __init__(self) -> None:
        self._vectors: list[np.ndarray] = []

    def take(self, size: int) -> np.ndarray:
        """A vector, float32 [size], of any values; the caller may write to it."""
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
    """Whether anything but this list or dict holds the vector items[key], or a view of it."""
    return _holders(items, key) > _NOBODY


def _holders(items: Any, key: int) -> int:
    """References to items[key], those of the container and of this call included."""
    return sys.getrefcount(items[key])


_NOBODY = _holders([object()], 0)  # of an item that only its container holds
