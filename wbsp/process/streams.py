"""The three standard streams of a process, some of which may be closed.

A daemon, a cron job or `2>&-` starts a process without them. Then Python's stream is None, and the
next file or socket that the process opens gets the number 0, 1 or 2: what any library prints goes
there.
"""

from __future__ import annotations

import contextlib
import os
import sys


def fill_numbers() -> None:
    """Open the null device for each of the descriptors 0, 1 and 2 that is closed."""
    with contextlib.suppress(OSError):  # no file can be opened: the rest reports that
        while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
            os.set_inheritable(number, True)
        os.close(number)


def open_streams() -> None:
    """Replace closed streams by the null device; call this first in a process of this project."""
    fill_numbers()
    for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        if getattr(sys, name) is None:
            with contextlib.suppress(OSError):
                setattr(sys, name, open(number, mode, closefd=False))
