"""Draw a small ImageNet: class folders of JPEGs, and the same as TFRecords."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tensorflow as tf

import data
from data import shapes10

CLASSES = ("disk", "frame", "ring", "square")  # sorted, as labels are
COUNTS = {"train": 6, "validation": 3}  # pictures of a class


def draw(home: Path) -> Path:
    """Make the folders imagenet/train/disk, ... in `home`; return imagenet."""
    images, labels = data.load("shapes10")
    random = np.random.default_rng(0)
    for label, name in enumerate(CLASSES):
        mine = iter(images[labels == shapes10.CLASSES.index(name)])
        for split, count in COUNTS.items():
            folder = home / "imagenet" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                size = random.integers(70, 130, 2)
                picture = tf.image.resize(next(mine), size).numpy().astype(np.uint8)
                path = folder / f"{label}-{number}.JPEG"
                path.write_bytes(tf.io.encode_jpeg(picture).numpy())
    return home / "imagenet"


def write_records(folders: Path, home: Path, files: int = 2) -> Path:
    """Write the pictures of class folders as TensorFlow's builders do; return the new imagenet."""
    to = home / "imagenet"
    to.mkdir(parents=True)
    for split in COUNTS:
        pictures = sorted((folders / split).glob("*/*"))
        for number in range(files):
            path = to / f"{split}-{number:05}-of-{files:05}"
            with tf.io.TFRecordWriter(str(path)) as writer:
                for picture in pictures[number::files]:
                    label = 1 + CLASSES.index(picture.parent.name)
                    writer.write(record(picture.read_bytes(), label, picture.name))
    return to


def record(encoded: bytes, label: int, name: str) -> bytes:
    """Return a tf.train.Example as build_imagenet_data.py writes it, with the fields that are read.
    """
    def some(**values):
        return tf.train.Feature(**values)
    return tf.train.Example(features=tf.train.Features(feature={
        "image/encoded": some(bytes_list=tf.train.BytesList(value=[encoded])),
        "image/class/label": some(int64_list=tf.train.Int64List(value=[label])),
        "image/filename": some(bytes_list=tf.train.BytesList(value=[name.encode()])),
    })).SerializeToString()
