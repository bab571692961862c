"""A secret that the processes of one user share.

Without a token, a server, its standby and its shards use it to verify that they belong to one user.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import tempfile
from pathlib import Path

from wbsp.process.private import check, make_once

_SIZE = 32  # bytes


@functools.cache
def user_key() -> bytes:
    """Return the user's key, from a file that only this user can read; create it if necessary.

    If the file cannot be created, the key is random, and no other process has it.
    """
    for folder in _folders():
        with contextlib.suppress(OSError, ValueError):
            return _of_file(folder / "key")
    return secrets.token_bytes(_SIZE)


def _folders() -> list[Path]:
    """Return the folders that may hold the file: in the home folder, else in the temporary one."""
    folders = [Path(tempfile.gettempdir()) / f"wbsp-{os.geteuid()}"]
    with contextlib.suppress(RuntimeError):
        folders.insert(0, Path.home() / ".local" / "state" / "wbsp")
    return folders


def _of_file(path: Path) -> bytes:
    """Return the key in `path`, which is created if necessary.

    Raises:
        OSError: the file cannot be read or created, or others can access it.
        ValueError: it is damaged.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check(os.lstat(path.parent), 0o022)
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    make_once(path, secrets.token_hex(_SIZE))
    return _read(path)


def _read(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC),
              "rb") as file:  # a pipe would block without that
        check(os.fstat(file.fileno()), 0o077)
        key = bytes.fromhex(file.read(4 * _SIZE).decode("ascii", "replace"))
    if len(key) != _SIZE:
        raise ValueError(f"{path} is damaged")
    return key
