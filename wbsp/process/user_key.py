"""A secret that the processes of one user have in common: without a token, a server, its standby
and its shards know by it that none of them is another user's."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import stat
import tempfile
from pathlib import Path

_SIZE = 32  # bytes


@functools.cache
def user_key() -> bytes:
    """What is in a file that this user alone can read, made where there is none.

    Where there can be no such file: a key that no other process has.
    """
    for folder in _folders():
        with contextlib.suppress(OSError, ValueError):
            return _of_file(folder / "key")
    return secrets.token_bytes(_SIZE)


def _folders() -> list[Path]:
    """Where the file may be: at home, or where there is none, beside others' files."""
    folders = [Path(tempfile.gettempdir()) / f"wbsp-{os.geteuid()}"]
    with contextlib.suppress(RuntimeError):
        folders.insert(0, Path.home() / ".local" / "state" / "wbsp")
    return folders


def _of_file(path: Path) -> bytes:
    """Raises OSError, ValueError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check(os.lstat(path.parent), 0o022)
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    beside = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    beside.touch(0o600)
    try:
        beside.write_text(secrets.token_hex(_SIZE))
        os.link(beside, path)  # whole, and never in the place of another process's
    except FileExistsError:
        pass
    finally:
        beside.unlink()
    return _read(path)


def _read(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        _check(os.fstat(file.fileno()), 0o077)
        key = bytes.fromhex(file.read(4 * _SIZE).decode("ascii", "replace"))
    if len(key) != _SIZE:
        raise ValueError(f"{path} is damaged")
    return key


def _check(status: os.stat_result, closed: int) -> None:
    """Raise PermissionError for what is another user's, or open to others by one of these bits."""
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & closed:
        raise PermissionError("not this user's alone")
