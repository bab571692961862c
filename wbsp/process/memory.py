"""Anonymous shared memory that a process shares with others of its machine.

A process with a file descriptor of a segment can map it; the segment is freed with the last process
that does. The tests' simulation has its own memory.
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
        """Return whether this system has such memory."""
        return hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")

    def create(self, size: int, read_only: bool) -> tuple[int, np.ndarray]:
        """Create a segment whose memory is allocated and whose size is sealed.

        Args:
            size: floats.
            read_only: for all other processes.

        Returns:
            A file descriptor, and the mapping, float32 [size].

        Raises:
            OSError: the system cannot create it.
        """
        fd = os.memfd_create("wbsp", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(fd, 0, 4 * size)  # a missing page would kill its reader
            mapping = mmap.mmap(fd, 4 * size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
                        | fcntl.F_SEAL_SEAL | (_FUTURE_WRITE if read_only else 0))
        except BaseException:
            os.close(fd)
            raise
        return fd, np.frombuffer(mapping, np.float32)

    def mapped(self, fd: int) -> np.ndarray:
        """Return the mapping of a received segment, float32 [size].

        Raises:
            OSError: it cannot be mapped, or its size may change.
        """
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if not seals & fcntl.F_SEAL_SHRINK:
            raise OSError("the segment's size is not sealed")
        access = mmap.PROT_READ | (0 if seals & _FUTURE_WRITE else mmap.PROT_WRITE)
        return np.frombuffer(mmap.mmap(fd, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, access),
                             np.float32)

    def close(self, fd: int) -> None:
        """Close a segment's descriptor; its mappings stay."""
        os.close(fd)
