"""From ImageNet's files to batches: read, decode, crop, mirror, resize; in tf.data, in parallel.

    training     a random part of the picture, 8 to 100 % of its area, sides 3:4 to 4:3, mirrored
                 in half of the cases (Szegedy et al. 2015, as TensorFlow's own models do it)
    evaluation   the central square, 7/8 of the shorter side

With `augment=False` both take the whole picture and squeeze it into the square, as the published
code did. Pixels are 0..1, as there [code].

A picture that cannot be read or decoded does not end the training: a line names it once, and a grey
image replaces it, so that the stream's other examples keep their positions. Above one such picture
in a thousand, training ends with one line (`reason`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from data.draws import keys, subset
from data.imagenet import Look, Split
from data.pipeline import shuffled, untuned

AREA, SIDES = (0.08, 1.0), (3 / 4, 4 / 3)  # of the random part
CENTRE = 7 / 8  # of the shorter side; 224 of 256 pixels
BLOCK = 256  # positions whose files are looked up at once
OPEN_FILES = 16  # of records, read in turn
SHUFFLED = 2048  # records at once; some 230 MB of ImageNet's, while the next block is read
FEATURES = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    "image/filename": tf.io.FixedLenFeature([], tf.string, "no name"),
}


def train(
    split: Split, batch_size: int, seed: int, worker_index: int, look: Look
) -> tf.data.Dataset:
    """Return endless shuffled batches (images float32 [batch_size, size, size, 3], labels int32).

    They are a pure function of (seed, worker index, position). Records are read in a shuffled order
    of their files, and shuffled in blocks.
    """
    order, *draws = keys([seed, worker_index], 3)
    if split.labels is None:
        examples = _records(split, look, order)
    else:
        named, blocks = _by_position(split, order), tf.data.Dataset.range(0, 2**62, BLOCK)
        examples = blocks.map(lambda first: named(tf.range(first, first + BLOCK))).unbatch()
    return (
        _decoded(examples, split, look, draws)
        .batch(batch_size, drop_remainder=True)
        .apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        .prefetch(2)
        .with_options(untuned())
    )


def shared_batch(
    split: Split, seed: int | Sequence[int], look: Look
) -> Callable[[int | tf.Tensor, int | tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Return a function (start, count) -> (images float32 [count, ...], labels int32 [count]).

    The positions are start ... start + count - 1 of an endless stream: see `data.pipeline`.
    """
    if split.labels is None:
        raise ValueError(f"{split.path} has TFRecords, which are read from their beginnings: a "
                         "model that chooses examples by their position needs class folders")
    order, *draws = keys(seed, 3)
    named = _by_position(split, order)

    @tf.function(input_signature=2 * [tf.TensorSpec([], tf.int64)])
    def batch(start, count):
        with tf.device("CPU:0"):
            examples = tf.data.Dataset.from_tensor_slices(named(tf.range(start, start + count)))
            return _decoded(examples, split, look, draws).batch(count).get_single_element()

    return batch


def test(
    split: Split, batch_size: int, look: Look, count: int | None = None
) -> tf.data.Dataset:
    """Return every picture once, or a fixed subset of `count`; the last batch may be smaller."""
    size = min(split.size, count or split.size)
    if split.labels is None:
        records = tf.data.TFRecordDataset(_first(split)).take(size)
        examples = records.map(_parsed(split, look))
    else:
        chosen = np.sort(subset(split.size, count))
        paths = np.array([str(split.path / split.files[place]) for place in chosen])
        with tf.device("CPU:0"):
            parts = tf.constant(paths), tf.constant(split.labels[chosen]), tf.constant(chosen)
        examples = tf.data.Dataset.from_tensor_slices(parts)
    return (
        _decoded(examples, split, look, None)
        .batch(batch_size)
        # TensorFlow does not know the number of records, and Keras would warn about their end.
        .apply(tf.data.experimental.assert_cardinality(-(-size // batch_size)))
        .prefetch(2)
        .with_options(untuned())
    )


def reason(error: tf.errors.OpError) -> str | None:
    """Return why reading ended, in one line, if `error` is about that; else None."""
    if isinstance(error, tf.errors.DataLossError):
        where = re.findall(r"\w+ record at \d+", error.message)
        return f"a file of TFRecords is damaged ({', '.join(where) or 'lost data'}): copy it again"
    told = re.search(r"ValueError: (.+)|assertion failed: \[(.+?)\]|(Feature: .+)", error.message)
    return next(filter(None, told.groups())) if told else None


# An example in the pipeline: (source, label int32, position int64). The source is a picture's path,
# or the content of a record: (name, encoded picture).


def _by_position(split: Split, key: int) -> Callable[[tf.Tensor], tuple[tf.Tensor, ...]]:
    """Return positions [n] -> (paths [n], labels [n], positions [n]) of the shuffled stream."""
    with tf.device("CPU:0"):
        files, labels = tf.constant(split.files), tf.constant(split.labels)

    def named(positions):
        chosen = shuffled(positions, split.size, key)
        paths = tf.strings.join([f"{split.path}/", tf.gather(files, chosen)])
        return paths, tf.gather(labels, chosen), positions

    return named


def _records(split: Split, look: Look, key: int) -> tf.data.Dataset:
    """Return the endless stream of examples, one shuffled pass after another."""
    parsed = _parsed(split, look)
    with tf.device("CPU:0"):
        paths = tf.constant(_first(split))

    def one_pass(number):
        # `Dataset.shuffle` would make the order depend on TensorFlow's global seed as well.
        def mixed(block, records):
            return tf.random.experimental.stateless_shuffle(records, [key + 1 + block, number])

        order = tf.random.experimental.stateless_shuffle(paths, seed=[key, number])
        return tf.data.Dataset.from_tensor_slices(order).interleave(
            tf.data.TFRecordDataset, OPEN_FILES, num_parallel_calls=4, deterministic=True
        ).batch(SHUFFLED).enumerate().map(mixed).prefetch(1).unbatch()

    return tf.data.Dataset.counter().flat_map(one_pass).enumerate().map(
        lambda position, record: (*parsed(record)[:2], position))


def _first(split: Split) -> list[str]:
    """Return the paths of the split's files, after a check of the first record."""
    paths = [str(split.path / name) for name in split.files]
    try:
        tf.io.parse_single_example(next(iter(tf.data.TFRecordDataset(paths[0]))), FEATURES)
    except (StopIteration, tf.errors.OpError):
        raise ValueError(f"{paths[0]} does not begin with a record that has image/encoded and "
                         "image/class/label, as TensorFlow's ImageNet builders write them"
                         ) from None
    return paths


def _parsed(split: Split, look: Look) -> Callable[[tf.Tensor], tuple]:
    """Return record -> ((name, encoded picture), label, position 0)."""
    classes = split.class_num(look.class_num)

    def parsed(record):
        found = tf.io.parse_single_example(record, FEATURES)
        name, label = found["image/filename"], found["image/class/label"]
        wrong = tf.strings.join(["the record of ", name, " has the label ",
                                 tf.strings.as_string(label), ": there are labels 1 to "
                                 f"{classes}; --class_num says how many"])
        right = (label >= 1) & (label <= classes)
        with tf.control_dependencies([tf.debugging.Assert(right, [wrong])]):
            label = tf.cast(label - 1, tf.int32)
            return (name, found["image/encoded"]), label, tf.zeros([], tf.int64)

    return parsed


def _decoded(
    examples: tf.data.Dataset, split: Split, look: Look, draws: Sequence[int] | None
) -> tf.data.Dataset:
    """Return (image float32 [size, size, 3], label) of each example; `draws`: seeds of training."""
    broken = _Broken(split, look.say, limited=draws is not None)

    def decoded(source, label, position):
        path_or_name, encoded = source if isinstance(source, tuple) else (source, None)
        if encoded is None:
            encoded = tf.io.read_file(path_or_name)
        if not look.augment:
            image = _resized(_cut(encoded, _whole), look.size)
        elif draws is None:
            image = _resized(_cut(encoded, _centre), look.size)
        else:
            image = _resized(_cut(encoded, lambda shape: _part(shape, [draws[0], position])),
                             look.size)
            mirrored = tf.random.stateless_uniform([], seed=[draws[1], position]) < 0.5
            image = tf.where(mirrored, image[:, ::-1], image)
        return image, label

    def in_its_place(source, label, position):
        name = source[0] if isinstance(source, tuple) else source
        with tf.control_dependencies([tf.numpy_function(broken, [name], tf.int64)]):
            return tf.fill([look.size, look.size, 3], 0.5), label

    def one(*example):
        only = tf.data.Dataset.from_tensors(example)
        tried = only.map(decoded).ignore_errors().concatenate(only.map(in_its_place))
        return tried.take(1).get_single_element()

    return examples.map(one, num_parallel_calls=_cores(), deterministic=True)


class _Broken:
    """Called with each picture that cannot be decoded: prints a line for each name.

    limited: raise ValueError above one picture in a thousand
    """

    def __init__(self, split: Split, say: Callable[[str], None], limited: bool):
        self._split, self._say, self._limited = split, say, limited
        self._names: set[bytes] = set()

    def __call__(self, name: bytes) -> np.int64:
        if name not in self._names:
            self._names.add(name)
            self._say(f"{name.decode(errors='replace')} cannot be decoded: using a grey image in "
                      "its place")
        if self._limited and len(self._names) > max(1, self._split.size // 1000):
            raise ValueError(f"{len(self._names)} of {self._split.size} pictures in "
                             f"{self._split.path} cannot be decoded, among them "
                             f"{name.decode(errors='replace')}: copy them again")
        return np.int64(0)


def _cut(encoded: tf.Tensor, window: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Decode the pixels in `window`(shape [3]), [top, left, height, width]: uint8 [h, w, 3].

    Of a JPEG, only these are decoded. One picture of ImageNet is a PNG by another name.
    """

    def of_jpeg():
        shape = tf.io.extract_jpeg_shape(encoded)
        return tf.io.decode_and_crop_jpeg(encoded, window(shape), channels=3)

    def of_png():
        image = tf.io.decode_png(encoded, channels=3)
        top, left, height, width = tf.unstack(window(tf.shape(image)))
        return image[top:top + height, left:left + width]

    return tf.cond(tf.io.is_jpeg(encoded), of_jpeg, of_png)


def _part(shape: tf.Tensor, seed: Sequence[int | tf.Tensor]) -> tf.Tensor:
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape, [[[0.0, 0.0, 1.0, 1.0]]], seed, min_object_covered=0.0, aspect_ratio_range=SIDES,
        area_range=AREA)
    return tf.concat([begin[:2], size[:2]], 0)


def _centre(shape: tf.Tensor) -> tf.Tensor:
    side = tf.cast(tf.round(CENTRE * tf.cast(tf.reduce_min(shape[:2]), tf.float32)), tf.int32)
    return tf.concat([(shape[:2] - side) // 2, [side, side]], 0)


def _whole(shape: tf.Tensor) -> tf.Tensor:
    return tf.concat([[0, 0], shape[:2]], 0)


def _resized(image: tf.Tensor, size: int) -> tf.Tensor:
    """Resize bilinearly to float32 [size, size, 3], 0..1."""
    return tf.ensure_shape(tf.image.resize(image, [size, size]), [size, size, 3]) / 255


def _cores() -> int:
    """Return the number of pictures to decode at once: the cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1
