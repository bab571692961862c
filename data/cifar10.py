"""CIFAR-10 from its binary version, or through Keras's own loader.

The folder in which they are searched (`data.place`) may contain `cifar-10-batches-bin` or be that
folder itself. Only Keras's loader may download.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np

from data.place import keras_folder, root

TRAIN_SIZE, TEST_SIZE = 50_000, 10_000
AUGMENTED = True

FOLDER = "cifar-10-batches-bin"
FILES = {
    "train": [f"data_batch_{k}.bin" for k in range(1, 6)],
    "test": ["test_batch.bin"],
}
RECORDS = 10_000  # in every file
RECORD_BYTES = 1 + 3 * 32 * 32  # the label, then a red, a green and a blue plane


def load(data_dir: str | PathLike | None, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return (images uint8 [n, 32, 32, 3], labels int32 [n])."""
    given, place = root(data_dir)
    folder = _folder(place, split)
    if folder:
        parts = [read_batch(folder / name) for name in FILES[split]]
        images, labels = zip(*parts, strict=True)
        return np.concatenate(images), np.concatenate(labels)
    if given:
        raise FileNotFoundError(
            f"no CIFAR-10 in {place}: put the binary version there ({FOLDER}/{FILES[split][0]}, "
            "...), or name no data folder to let Keras download it"
        )
    return _load_with_keras(split)


def first_file(data_dir: str | PathLike | None = None) -> Path | None:
    """Return the first file of the training set that `load` reads, binary or Keras's; None if there
    is none."""
    given, place = root(data_dir)
    folder = _folder(place, "train")
    if folder:
        return folder / FILES["train"][0]
    return None if given else min(place.glob("cifar-10-batches-py*/**/data_batch_1"), default=None)


def read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read one binary file: (images uint8 [records, 32, 32, 3], labels int32 [records])."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing beside the other CIFAR-10 files: copy it there")
    expected = RECORDS * RECORD_BYTES
    if path.stat().st_size != expected:
        raise ValueError(
            f"{path} has {path.stat().st_size} bytes instead of {expected}: "
            "it is truncated or not the binary version, copy it again"
        )
    records = np.fromfile(path, np.uint8).reshape(RECORDS, RECORD_BYTES)
    labels = records[:, 0].astype(np.int32)
    if labels.max() > 9:
        raise ValueError(f"{path} has the label {labels.max()}: the labels of CIFAR-10 are 0 to 9")
    planes = records[:, 1:].reshape(RECORDS, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


def _folder(place: Path, split: str) -> Path | None:
    """Return the folder at or in `place` that has the binary files."""
    return next((folder for folder in (place / FOLDER, place)
                 if (folder / FILES[split][0]).exists()), None)


def _load_with_keras(split: str) -> tuple[np.ndarray, np.ndarray]:
    import keras

    try:
        splits = dict(zip(("train", "test"), keras.datasets.cifar10.load_data(), strict=True))
    except Exception as error:  # Keras raises a bare Exception when the download fails
        raise FileNotFoundError(
            f"no CIFAR-10 in {keras_folder()}, and Keras could not fetch it ({error}): "
            f"name the folder that contains {FOLDER} with data_dir or WBSP_DATA_DIR"
        ) from error
    images, labels = splits[split]
    return images, labels.reshape(-1).astype(np.int32)
