"""The C library's memory, told to keep what a wire frees.

libzmq allocates every chunk it receives and frees it a moment later. By default glibc may hand such
memory back to the kernel each time and get it again as fresh, zeroed pages: for a model of 100 MB
up to ten thousand page faults a round trip.
"""

from __future__ import annotations

import contextlib
import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>
_KEPT = 64 << 20  # bytes a heap may keep; many chunks, and little beside a training process
_MAPPED = 32 << 20  # bytes from which on memory is mapped by itself; the most that glibc takes


def keep_freed() -> None:
    """Let this process keep some freed memory; does nothing where the C library is not glibc."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_TRIM_THRESHOLD, _KEPT)
        libc.mallopt(_MMAP_THRESHOLD, _MAPPED)
