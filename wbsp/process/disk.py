"""The disk that a process writes to.

A path knows the disk that it lies on: code that has the path of a run's folder needs nothing else.
All paths of this system lie on `DISK`; the tests' simulation has disks, and paths, of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import time
from typing import IO, Any

_PAUSES = 0.02, 0.1  # seconds between attempts to lock what another process looks at


class Disk:
    """The disks of this system."""

    def path(self, text: str | os.PathLike[str]) -> pathlib.Path:
        """The path that `text` names; a path stays as it is."""
        return text if isinstance(text, pathlib.Path) else pathlib.Path(text)

    def sync(self, file: IO[Any]) -> None:
        """Wait until what was written to an open file outlives the machine. Raises OSError."""
        file.flush()
        os.fsync(file.fileno())

    def sync_names(self, folder: pathlib.Path) -> None:
        """Wait until the names of the files in a folder outlive the machine, where that can be."""
        with contextlib.suppress(OSError):  # some file systems know no such thing
            fd = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def lock(self, file: IO[Any], shared: bool = False) -> None:
        """Lock an open file until it is closed or this process ends.

        shared: look whether another process has it; such a look does not make a lock fail

        Raises BlockingIOError where another process has locked it, OSError where there are no
        locks.
        """
        kind = fcntl.LOCK_NB | (fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        for pause in () if shared else _PAUSES:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, kind)
                return
            time.sleep(pause)
        fcntl.flock(file, kind)


DISK = Disk()


def disk_of(path: str | os.PathLike[str]) -> Disk:
    """The disk that a path lies on."""
    return getattr(path, "disk", DISK)
