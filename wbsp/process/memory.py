"""Memory without a name, which a process hands to others of its machine.

What has a file descriptor of it can map it, and it is gone with the last process that does. The
tests' simulation has memory of its own.
"""

from __future__ import annotations

import fcntl
import mmap
import os

import numpy as np

_FUTURE_WRITE = 0x10  # F_SEAL_FUTURE_WRITE of Linux 5.1: mappings made later can only be read


class Memory:
    """Segments of this system's memory."""

    def available(self) -> bool:
        """Whether this system has such memory."""
        return hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")

    def create(self, size: int, read_only: bool) -> tuple[int, np.ndarray]:
        """A file descriptor of a new segment of `size` floats, and its mapping.

        read_only: to all but this process

        All of it has its memory, and its size is sealed. Raises OSError.
        """
        fd = os.memfd_create("wbsp", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, 4 * size)  # what is missing would kill who reads it
            mapping = mmap.mmap(fd, 4 * size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
                        | fcntl.F_SEAL_SEAL | (_FUTURE_WRITE if read_only else 0))
        except BaseException:
            os.close(fd)
            raise
        return fd, np.frombuffer(mapping, np.float32)

    def mapped(self, fd: int) -> np.ndarray:
        """The mapping of a segment that was handed over, float32 [size]. Raises OSError."""
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if not seals & fcntl.F_SEAL_SHRINK:
            raise OSError("a segment whose size may change")
        access = mmap.PROT_READ | (0 if seals & _FUTURE_WRITE else mmap.PROT_WRITE)
        return np.frombuffer(mmap.mmap(fd, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, access),
                             np.float32)

    def close(self, fd: int) -> None:
        """Close a segment's descriptor; its mappings stay."""
        os.close(fd)
