"""Files that only this user can read."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path


def make_once(path: Path, text: str) -> None:
    """Write a file that only this user can read, unless it exists.

    Of several processes that do so at once, one writes the file, and all find it.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    beside.touch(0o600)
    try:
        beside.write_text(text)
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)  # atomic, and never replaces another process's file
    finally:
        beside.unlink()


@contextlib.contextmanager
def kept_in_file(text: str) -> Iterator[str]:
    """Yield the path of a file with this text that only this user can read; remove it then.

    Raises:
        OSError: it cannot be written.
    """
    with tempfile.NamedTemporaryFile("w", prefix="wbsp-") as file:
        file.write(text)
        file.flush()
        yield file.name


def check(status: os.stat_result, closed: int) -> None:
    """Raise PermissionError if another user owns the file, or has one of these permissions."""
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & closed:
        raise PermissionError("other users have access")
