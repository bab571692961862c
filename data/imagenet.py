"""ImageNet on a disk: class folders of pictures, or TFRecords. TensorFlow is not needed.

    imagenet/train/n01440764/*.JPEG, ...        a folder a class; its label is its place among the
    imagenet/validation/n01440764/*.JPEG, ...   sorted names, as in Keras; "val" is a name, too
    imagenet/train-00000-of-01024, ...          the records that TensorFlow's own builders write
    imagenet/validation-00000-of-00128, ...     (build_imagenet_data.py, imagenet_to_gcs.py)

The folder in which they are searched (`data.place`) may contain `imagenet` or be that folder
itself; records may also be in `train` and `validation`. Nothing is downloaded. Any other set of
pictures in this form works, too.
"""

from __future__ import annotations

import functools
import hashlib
import os
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.place import root

FOLDER = "imagenet"
SPLITS = {"train": ("train",), "test": ("validation", "val")}  # names on the disk
SUFFIXES = (".jpeg", ".jpg", ".png")
CLASSES = 1000  # of records, which do not contain their number
SIZE = 224  # pixels of a side, by default


class Look(NamedTuple):
    """The form that a picture is given, and `say` for a line on one that cannot be decoded.

    size:      pixels of a side of the square
    class_num: classes of records, whose labels are 1 ... class_num; None: 1000
    """

    size: int = SIZE
    augment: bool = True
    class_num: int | None = None
    say: Callable[[str], None] = print


@dataclass(frozen=True, eq=False)
class Split:
    """The training or the validation set: `labels` for pictures, None for records.

    files:   names below `path` of the pictures or of the files of records
    classes: names of the class folders; none for records
    labels:  int32, one for each picture
    """

    path: Path
    files: tuple[str, ...]
    classes: tuple[str, ...] = ()
    labels: np.ndarray | None = None

    @functools.cached_property
    def size(self) -> int:
        """Number of examples. Of records, it reads the headers of all."""
        if self.labels is not None:
            return len(self.labels)
        with ThreadPoolExecutor(16) as pool:
            return sum(pool.map(_records_in, (self.path / name for name in self.files)))

    def class_num(self, said: int | None = None) -> int:
        """Return the number of classes; `said`: by the user. Raises ValueError if it is another."""
        if not self.classes:
            return CLASSES if said is None else said
        if said not in (None, len(self.classes)):
            raise ValueError(f"{self.path} has {len(self.classes)} class folders, not "
                             f"--class_num={said}: leave the flag out, or name their number")
        return len(self.classes)

    @property
    def class_names(self) -> str:
        """A short text, equal for equal names of class folders."""
        return hashlib.sha256("\n".join(self.classes).encode()).hexdigest()[:12]


def find(data_dir: str | PathLike | None, split: str) -> Split:
    """Find the "train" or "test" split. Raises ValueError or OSError in one line."""
    return _find(*root(data_dir), split)


@functools.cache  # listing a million files takes seconds
def _find(given: bool, place: Path, split: str) -> Split:
    home, name = _home(given, place, split)
    folder = home / name
    if names := _class_folders(folder):
        if split == "test":
            _same_classes(names, _find(given, place, "train"), folder)
        return _pictures(folder, names)
    for path in (home, folder):
        if files := sorted(file.name for file in path.glob(f"{name}-*-of-*")):
            count = int(files[0].rpartition("-")[2])
            if len(files) != count:
                raise ValueError(f"{path} has {len(files)} of the {count} files {name}-*-of-"
                                 f"{count:05}: copy the others there, too")
            return Split(path, tuple(files))
    kind = "pictures, but no class folders" if _pictures_in(folder) else "no class folders"
    raise ValueError(f"{folder} has {kind}: it needs a folder a class, each with its pictures "
                     f"({', '.join(SUFFIXES)}), or files {name}-00000-of-...")


def _home(given: bool, place: Path, split: str) -> tuple[Path, str]:
    """Return the folder `imagenet`, and the split's name there."""
    for folder in (place / FOLDER, place):
        for name in SPLITS[split]:
            if (folder / name).is_dir() or any(folder.glob(f"{name}-*-of-*")):
                return folder, name
    name = SPLITS[split][0]
    raise FileNotFoundError(
        f"no {name} set of ImageNet in {place}: put class folders there ({FOLDER}/{name}/"
        f"n01440764/*.JPEG, ...) or TFRecords ({FOLDER}/{name}-00000-of-..., ...)"
        + ("" if given else ", or name their folder with --data_dir or WBSP_DATA_DIR"))


def _class_folders(folder: Path) -> tuple[str, ...]:
    """Return the sorted names of the folders in `folder`."""
    if not folder.is_dir():
        return ()
    with os.scandir(folder) as entries:
        return tuple(sorted(entry.name for entry in entries
                            if entry.is_dir() and not entry.name.startswith(".")))


def _pictures_in(folder: Path) -> list[str]:
    """Return the sorted names of the pictures in `folder`."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:  # `is_file` of a million entries would take minutes
        return sorted(entry.name for entry in entries
                      if entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith("."))


def _pictures(folder: Path, classes: tuple[str, ...]) -> Split:
    files: list[str] = []
    counts = []
    for name in classes:
        found = _pictures_in(folder / name)
        if not found:
            raise ValueError(f"{folder / name} has no picture ({', '.join(SUFFIXES)}): put the "
                             "class's there, or remove the folder from the training and the "
                             "validation set")
        files += [f"{name}/{file}" for file in found]
        counts.append(len(found))
    labels = np.repeat(np.arange(len(classes), dtype=np.int32), counts)
    return Split(folder, tuple(files), classes, labels)


def _same_classes(names: tuple[str, ...], train: Split, folder: Path) -> None:
    """Raise ValueError unless the training set has the same class folders, if any."""
    if train.classes and names != train.classes:
        missing = sorted(set(train.classes) - set(names))
        where, other = (folder, train.path) if missing else (train.path, folder)
        first = missing[0] if missing else min(set(names) - set(train.classes))
        raise ValueError(f"{where} lacks the class folder {first!r} of {other}: labels are indices "
                         "of the sorted names, which must be equal in both")


def _records_in(path: Path) -> int:
    """Count the records in a file by their headers. Raises ValueError if it is damaged.

    A record: its length as uint64, 4 bytes of checksum, the data, 4 bytes of checksum.
    """
    count, end = 0, path.stat().st_size
    with open(path, "rb", buffering=0) as file:
        at = 0
        while at < end:
            file.seek(at)
            header = file.read(12)
            at += 16 + (struct.unpack("<Q", header[:8])[0] if len(header) == 12 else end)
            count += 1
    if at != end or not count:
        raise ValueError(f"{path} is truncated or no file of TFRecords: copy it again")
    return count
