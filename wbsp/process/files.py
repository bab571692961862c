"""The files that this process can still open, whose number the system limits."""

from __future__ import annotations

import errno
import os
import resource

_LEAST = 22  # for sockets, their helpers in libzmq, which aborts without them, and files of a run


def check_files(of: str) -> None:
    """Raise OSError, in one line, if this process can open too few files to take part in a run.

    Args:
        of: what needs them, such as "a server".
    """
    opened: list[int] = []
    try:
        while len(opened) < _LEAST:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            return  # a system without that file
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise OSError(f"this process can open {len(opened)} more files, and {of} needs {_LEAST} at "
                      f"least: its limit is {limit}; raise it (ulimit -n 1024)") from None
    finally:
        for fd in opened:
            os.close(fd)
