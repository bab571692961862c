"""The token: a secret that all processes of a run share, on however many machines.

It is in a file. A server that other machines can reach makes one at the usual place, if none is
named; a copy at the same place of another machine is found there.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from wbsp.process.disk import DISK
from wbsp.process.private import make_once

_LEAST = 16  # bytes; a shorter secret can be guessed from the public keys on the wire
_MOST = 1 << 16  # bytes
_MADE = 32  # bytes


class Token(bytes):
    """A secret.

    Attributes:
        file: that it is from, as users write it; "": not known.
        usual: that file is at the usual place.
        exposed: every user of this machine can read that file.
    """

    file: str
    usual: bool
    exposed: bool

    def __new__(cls, secret: bytes, file: str = "", usual: bool = False,
                exposed: bool = False) -> Token:
        token = super().__new__(cls, secret)
        token.file, token.usual, token.exposed = file, usual, exposed
        return token

    def warning(self) -> str | None:
        """Return the line on a file that others can read; None: they cannot."""
        if not self.exposed:
            return None
        return (f"every user of this machine can read the token {self.file}, and so join or change "
                f"runs: chmod 600 {self.file}")


def usual_place() -> Path:
    """Return the path of this user's token.

    Raises:
        OSError: this user has no home folder; one line.
    """
    folder = os.environ.get("XDG_CONFIG_HOME", "").strip()
    if folder and os.path.isabs(folder):  # a relative one is to be ignored, by that standard
        return Path(folder, "wbsp", "token")
    try:
        return Path.home() / ".config" / "wbsp" / "token"
    except RuntimeError:
        raise OSError("this user has no home folder, which a token could be kept in: name a file "
                      "by --token_file, or by WBSP_TOKEN_FILE") from None


def read_token(path: str | os.PathLike[str], usual: bool = False) -> Token:
    """Return the secret in the file; `usual`: as in `Token`.

    Raises:
        ValueError: the file holds no secret; one line.
        OSError: it cannot be read; one line.
    """
    name = os.fspath(path)
    try:
        opened = DISK.regular(path)
    except ValueError as error:
        raise ValueError(f"the token {error}: a pipe, such as <(...) of a shell, can be read once, "
                         "and each fit and each restarted process reads its token again; write it "
                         "to a file that only you can read (chmod 600)") from None
    with opened as file:
        status = os.fstat(file.fileno())
        if status.st_size > _MOST:
            raise ValueError(f"token file {name} has {status.st_size:,} bytes; at most {_MOST:,} "
                             f"are read: openssl rand -hex 32 > {name}")
        token = Token(file.read(_MOST).strip(), name, usual, bool(status.st_mode & stat.S_IROTH))
    if len(token) < _LEAST:
        raise ValueError(f"token file {name} holds {len(token)} bytes; at least {_LEAST} are "
                         f"needed: openssl rand -hex 32 > {name}")
    return token


def usual_there() -> bool:
    """Return whether there is a file at the usual place."""
    try:
        return usual_place().exists()
    except OSError:  # also where this process may not look, such as in another user's home
        return False


def usual_token() -> Token | None:
    """Return the token at the usual place; None: that has none.

    Raises:
        ValueError: it is too short; one line.
        OSError: it cannot be read, or other users can read it or own it; one line.
    """
    if not usual_there():
        return None
    path = usual_place()
    status = path.stat()
    remedy = "or name another file by --token_file, or by WBSP_TOKEN_FILE"
    if status.st_uid != os.geteuid():
        raise PermissionError(f"the token {path} belongs to another user (uid {status.st_uid}): "
                              f"remove it, {remedy}")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise PermissionError(f"other users may read the token {path} (mode {mode:03o}): "
                              f"chmod 600 {path}, {remedy}")
    return read_token(path, usual=True)


def make_token() -> tuple[Token, bool]:
    """Return the token at the usual place, and whether this call has made it.

    Raises:
        ValueError: it is too short; one line.
        OSError: it cannot be made or read, or other users can read it or own it; one line.
    """
    if (found := usual_token()) is not None:
        return found, False
    path = usual_place()
    mine = secrets.token_hex(_MADE)
    try:
        make_once(path, f"{mine}\n")
    except OSError as error:
        raise OSError(f"cannot make a token at {path}: {error.strerror or error}; name a file by "
                      "--token_file, or use --host=localhost") from None
    made = usual_token()
    assert made is not None, "it was there a moment ago"
    return made, made == mine.encode()
