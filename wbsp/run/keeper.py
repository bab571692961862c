"""A process that ends the processes of a run when the one that started them has ended, however.

    python keeper.py < PIPE

Each line of the pipe is "+PID", a process that leads a group, or "-PID", one that has ended. When
the pipe ends, no process is left to end the remaining groups: they are killed. This file is run by
itself, so that Python starts in a moment, and imports nothing of wbsp.
"""

from __future__ import annotations

import contextlib
import os
import signal


def main() -> None:
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    groups: set[int] = set()
    with open(0, "rb", buffering=0) as pipe:
        for line in iter(pipe.readline, b""):
            (groups.add if line[:1] == b"+" else groups.discard)(int(line[1:]))
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
