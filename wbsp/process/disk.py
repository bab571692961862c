"""The disk that a process writes to.

A path refers to its disk, so that code with the path of a run's folder needs no other argument. All
paths of this system are on `DISK`; the tests' simulation has its own disks and paths.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
import stat
import time
from typing import IO, Any

_PAUSES = 0.02, 0.1  # seconds between attempts to lock a file, while another process checks it


class Disk:
    """The disks of this system."""

    def path(self, text: str | os.PathLike[str]) -> pathlib.Path:
        """Return the path that `text` names; a path is returned unchanged."""
        return text if isinstance(text, pathlib.Path) else pathlib.Path(text)

    def regular(self, path: str | os.PathLike[str]) -> IO[bytes]:
        """Open a regular file, which another process or user may have made, to read it.

        No other kind of file is read: a pipe without a writer would block this process.

        Raises:
            OSError: it cannot be opened.
            ValueError: it is no regular file; one line.
        """
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ValueError(f"{str(path)!r} is no regular file")
            return open(fd, "rb")
        except BaseException:
            os.close(fd)
            raise

    def sync(self, file: IO[Any]) -> None:
        """Flush an open file to the storage device.

        Raises:
            OSError: that failed.
        """
        file.flush()
        os.fsync(file.fileno())

    def sync_names(self, folder: pathlib.Path) -> None:
        """Flush the names of a folder's files to the storage device, if the file system can."""
        with contextlib.suppress(OSError):  # not all file systems support it
            fd = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def remove(self, folder: pathlib.Path) -> None:
        """Remove a folder with all that is in it, as far as that is possible."""
        shutil.rmtree(folder, ignore_errors=True)

    def lock(self, file: IO[Any], shared: bool = False) -> None:
        """Lock an open file until it is closed or this process ends.

        Args:
            file: an open file.
            shared: check whether another process has locked it; a check makes no lock fail.

        Raises:
            BlockingIOError: another process has locked it.
            OSError: the file system has no locks.
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
    """Return the disk of a path."""
    return getattr(path, "disk", DISK)
