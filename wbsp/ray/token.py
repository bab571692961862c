"""The run's secret, for a process that takes it from a file."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def token_file(token: str) -> Iterator[str]:
    """Path of a file with the secret, which this user alone can read, for as long as needed."""
    with tempfile.TemporaryDirectory(prefix="wbsp-") as folder:
        path = os.path.join(folder, "token")
        with open(path, "w") as file:
            file.write(token)
        yield path
