"""The text of the running Python's own library: a data set of bytes that every machine has.

An example is a window of `context` bytes, and its targets are the same bytes one place later.
Windows do not overlap. A file is either trained or validated as a whole, by a hash of its path, so
that the split of a file is the same for every version of Python. The text itself is not: its
SHA-256 says which one it is.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sysconfig
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

AUGMENTED = False
VALIDATED = 0.05  # part of the files
_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


class Look(NamedTuple):
    """The form of an example: bytes that a network sees at once."""

    context: int = 64


class Text(NamedTuple):
    """The text of one version of Python.

    Attributes:
        python: the version.
        sha256: of all files with their paths, in hexadecimal.
        train, test: uint8 [bytes], the files one after another.
    """

    python: str
    sha256: str
    train: np.ndarray
    test: np.ndarray

    @property
    def name(self) -> str:
        """Version and SHA-256, as run.json has them."""
        return f"Python {self.python}, SHA-256 {self.sha256}"


def load(data_dir: str | PathLike | None, split: str,
         look: Look | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return (bytes, the byte after each), both uint8 [n, context]; `data_dir` is ignored."""
    part, context = getattr(text(), split), (look or Look()).context
    windows = size(data_dir, split, look)
    return tuple(part[first:first + windows * context].reshape(windows, context)
                 for first in (0, 1))


def size(data_dir: str | PathLike | None, split: str, look: Look | None = None) -> int:
    """Return the number of windows of a split."""
    return (len(getattr(text(), split)) - 1) // (look or Look()).context


def check(run: str) -> None:
    """Raise ValueError, in one line, unless this Python's text is that of a run, by its `name`."""
    if run != text().name:
        raise ValueError(f"the text here is that of {text().name}, and the run's of {run}: start "
                         "this process with the same build of Python")


@functools.cache
def text() -> Text:
    """Read the library of the running Python."""
    return read(Path(sysconfig.get_paths()["stdlib"]), platform.python_version())


def read(library: Path, python: str) -> Text:
    """Read a library: its modules without tests, and without what was installed or configured on
    this machine.

    Raises:
        FileNotFoundError: the folder has no text to train on or to validate with; one line.
    """
    digest, parts = hashlib.sha256(), {True: list[bytes](), False: list[bytes]()}
    names = _modules(library)
    for name in names:
        content = (library / name).read_bytes()
        digest.update(b"%d %b %d " % (len(name), name.encode(), len(content)))
        digest.update(content)
        parts[validated(name)].append(content)
    if not all(parts.values()):
        raise FileNotFoundError(f"the library of this Python, {library}, has {len(names)} modules "
                                "as text, too few to train on and to validate with: take a Python "
                                "whose library is installed as files")
    train, test = (np.frombuffer(b"".join(parts[of]), np.uint8) for of in (False, True))
    return Text(python, digest.hexdigest(), train, test)


def validated(name: str) -> bool:
    """Return whether a file validates; `name`: its path relative to the library, with slashes."""
    # By another hash the largest file, pydoc's topics, might be half of what is validated.
    return int(hashlib.blake2b(name.encode()).hexdigest()[:8], 16) < VALIDATED * 2**32


def _modules(library: Path) -> list[str]:
    """Return the paths of the modules, sorted."""
    found = []
    for folder, below, files in os.walk(library):
        below[:] = set(below) - _LEFT_OUT  # is not entered
        found += [Path(folder, name).relative_to(library).as_posix() for name in files
                  if name.endswith(".py") and not name.startswith("_sysconfigdata")]
    return sorted(found)
