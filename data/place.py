"""The folder in which the files of a data set are searched.

It is `data_dir`, else the folder that the environment variable WBSP_DATA_DIR names, else Keras's
data folder.
"""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path


def root(data_dir: str | PathLike | None) -> tuple[bool, Path]:
    """Return whether the user named the folder of the files, and the folder."""
    given = data_dir or os.environ.get("WBSP_DATA_DIR")
    return bool(given), Path(given).expanduser() if given else keras_folder()


def keras_folder() -> Path:
    home = os.environ.get("KERAS_HOME")
    return (Path(home) if home else Path.home() / ".keras") / "datasets"
