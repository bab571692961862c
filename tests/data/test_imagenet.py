"""ImageNet from a disk: class folders, TFRecords, what becomes of a picture, what goes wrong."""

import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
from small_imagenet import CLASSES, COUNTS, draw, record, write_records

import data
from data import imagenet, pictures

TRAIN = COUNTS["train"] * len(CLASSES)
TEST = COUNTS["validation"] * len(CLASSES)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """home -> imagenet of class folders; no test changes it."""
    home = tmp_path_factory.mktemp("folders")
    draw(home)
    return home


@pytest.fixture(scope="module")
def records(drawn, tmp_path_factory):
    home = tmp_path_factory.mktemp("records")
    write_records(drawn / "imagenet", home)
    return home


@pytest.fixture
def changed(drawn, tmp_path):
    """A copy to spoil."""
    shutil.copytree(drawn, tmp_path, dirs_exist_ok=True)
    return tmp_path


def look(**changes):
    return imagenet.Look(**{"size": 24, "class_num": len(CLASSES), **changes})


def batches(home, count, batch=TRAIN, seed=1, worker=0, **changes):
    stream = data.train_dataset("imagenet", batch, seed, worker, home, look(**changes))
    return [(x.numpy(), y.numpy()) for x, y in stream.take(count)]


def same(one, other):
    return all(a.tobytes() == b.tobytes() for left, right in zip(one, other, strict=True)
               for a, b in zip(left, right, strict=True))


def evaluated(home, count=None, **changes):
    parts = [(x.numpy(), y.numpy()) for x, y in
             data.test_dataset("imagenet", 5, home, look(**changes), count)]
    return [np.concatenate(part) for part in zip(*parts, strict=True)]


# Existing files.


@pytest.mark.parametrize("below", ["", "imagenet"])
def test_class_folders_are_found_and_labels_are_places_among_sorted_names(drawn, below):
    split = imagenet.find(drawn / below, "train")
    assert split.classes == CLASSES and split.class_num() == len(CLASSES)
    assert data.size("imagenet", drawn / below) == split.size == TRAIN
    assert [CLASSES[label] for label in split.labels] == [
        name.partition("/")[0] for name in split.files]


def test_the_environment_variable_names_the_folder_too(changed, monkeypatch):
    monkeypatch.setenv("WBSP_DATA_DIR", str(changed))
    assert data.size("imagenet") == TRAIN


def test_records_are_counted_without_reading_them(records):
    split = imagenet.find(records, "train")
    assert split.size == TRAIN and split.labels is None
    assert split.class_num() == 1000 and split.class_num(4) == 4


def test_records_may_lie_in_folders_and_validation_may_be_val(records, drawn, tmp_path):
    for name in COUNTS:
        (tmp_path / name).mkdir()
        for file in (records / "imagenet").glob(f"{name}-*"):
            shutil.copy(file, tmp_path / name)
    assert imagenet.find(tmp_path, "test").size == TEST
    shutil.copytree(drawn / "imagenet/train", tmp_path / "pictures/train")
    shutil.copytree(drawn / "imagenet/validation", tmp_path / "pictures/val")
    assert imagenet.find(tmp_path / "pictures", "test").size == TEST


# Training.


@pytest.mark.parametrize("form", ["drawn", "records"])
def test_every_picture_comes_once_a_pass_in_an_order_of_seed_and_worker(form, request):
    home = request.getfixturevalue(form)
    passes = batches(home, 2)
    for x, y in passes:
        assert (x.shape, x.dtype, y.dtype) == ((TRAIN, 24, 24, 3), np.float32, np.int32)
        assert x.min() >= 0 and x.max() <= 1
        assert np.bincount(y).tolist() == [COUNTS["train"]] * len(CLASSES)
    assert passes[0][1].tolist() != passes[1][1].tolist()
    halves = batches(home, 2, batch=TRAIN // 2)
    assert same(passes[:1], [[np.concatenate(part) for part in zip(*halves, strict=True)]])
    (_, other), = batches(home, 1, worker=1)
    assert other.tolist() != passes[0][1].tolist()


@pytest.mark.parametrize("form", ["drawn", "records"])
def test_tensorflows_global_seed_changes_nothing(form, request):
    home, streams = request.getfixturevalue(form), []
    for seed in (0, 1):
        tf.keras.utils.set_random_seed(seed)
        streams.append(batches(home, 2))
    assert same(*streams)


def test_the_shared_stream_is_the_same_for_any_batch_size(drawn):
    examples = data.shared_batch("imagenet", 1, drawn, look())
    whole = [part.numpy() for part in examples(0, 2 * TRAIN)]
    assert np.bincount(whole[1][:TRAIN]).tolist() == [COUNTS["train"]] * len(CLASSES)
    for start, count in ((0, 1), (5, 7), (TRAIN - 2, 4)):
        part = [one.numpy() for one in examples(start, count)]
        assert same([part], [[one[start:start + count] for one in whole]])
    assert examples.experimental_get_tracing_count() == 1


def test_augmentation_takes_parts_of_a_picture_and_mirrors_some(tmp_path):
    """Red grows from left to right, green from top to bottom: pixels show where they were."""
    for split in COUNTS:
        for name in ("a", "b"):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            red, green = np.meshgrid(np.arange(200), np.arange(160))
            picture = np.stack([red, green, 0 * red], -1).astype(np.uint8)
            (folder / "1.png").write_bytes(tf.io.encode_png(picture).numpy())
    (x, _), = batches(tmp_path, 1, batch=200)
    x = 255 * x
    width = np.abs(x[:, 12, -1, 0] - x[:, 12, 0, 0]) * 24 / 23
    height = (x[:, -1, 12, 1] - x[:, 0, 12, 1]) * 24 / 23
    area = width * height / (200 * 160)
    assert 0.06 < area.min() < 0.2 and 0.85 < area.max() < 1.05
    assert 0.7 < (width / height).min() < 0.85 and 1.2 < (width / height).max() < 1.4
    assert 0.4 < (x[:, 12, 0, 0] > x[:, 12, -1, 0]).mean() < 0.6, "mirrored"
    (plain, _), = batches(tmp_path, 1, batch=4, augment=False)
    np.testing.assert_allclose(255 * plain[:, 12, [0, -1], 0], [[3.7, 195.3]] * 4, atol=1)
    np.testing.assert_allclose(255 * plain[:, [0, -1], 12, 1], [[2.8, 156.2]] * 4, atol=1)
    centre, _ = evaluated(tmp_path)
    np.testing.assert_allclose(255 * centre[0][12, [0, -1], 0], [32.4, 166.6], atol=2)


# Evaluation.


def test_the_validation_set_comes_once_and_in_both_forms_it_is_the_same(drawn, records):
    (x, y), (other, labels) = evaluated(drawn), evaluated(records)
    assert np.bincount(y).tolist() == [COUNTS["validation"]] * len(CLASSES)
    assert sorted((label, image.tobytes()) for image, label in zip(x, y, strict=True)) == sorted(
        (label, image.tobytes()) for image, label in zip(other, labels, strict=True))


@pytest.mark.parametrize("form", ["drawn", "records"])
def test_a_part_of_the_validation_set_is_always_the_same(form, request):
    home = request.getfixturevalue(form)
    part = evaluated(home, count=7)
    assert data.test_dataset("imagenet", 5, home, look(), 7).cardinality() == 2
    assert len(part[1]) == 7 and same([part], [evaluated(home, count=7)])


# What goes wrong.


def spoil(changed, what):
    home = changed / "imagenet"
    match what:
        case "no folder":
            shutil.rmtree(home)
        case "no validation":
            shutil.rmtree(home / "validation")
        case "empty class":
            shutil.rmtree(home / "train/frame")
            (home / "train/frame").mkdir()
        case "another class":
            (home / "validation/disk").rename(home / "validation/oval")
        case "one class too many":
            shutil.copytree(home / "validation/disk", home / "validation/oval")
        case "no class folders":
            shutil.copytree(home / "validation/disk", changed / "flat")
            shutil.rmtree(home / "validation")
            (changed / "flat").rename(home / "validation")
        case "an empty folder":
            shutil.rmtree(home / "validation")
            (home / "validation").mkdir()
    return home


@pytest.mark.parametrize("what, split, says", [
    ("no folder", "train", "no train set of ImageNet in .*: put class folders there "
                           r"\(imagenet/train/n01440764/\*.JPEG, ...\) or TFRecords"),
    ("no validation", "test", r"no validation set of ImageNet in .*\(imagenet/validation/"),
    ("empty class", "train", r"train/frame has no picture \(.jpeg, .jpg, .png\): put"),
    ("another class", "test", "validation lacks the class folder 'disk' of .*train: labels are"),
    ("one class too many", "test", "train lacks the class folder 'oval' of .*validation: labels"),
    ("no class folders", "test", "validation has pictures, but no class folders: it needs"),
    ("an empty folder", "test", "validation has no class folders: it needs a folder a class"),
])
def test_a_missing_file_of_imagenet_is_one_line(changed, what, split, says):
    spoil(changed, what)
    with pytest.raises((ValueError, OSError), match=says) as caught:
        imagenet.find(changed, split)
    assert "\n" not in str(caught.value)


def test_a_number_of_classes_that_is_another_is_named(drawn):
    with pytest.raises(ValueError, match="train has 4 class folders, not --class_num=1000: leave"):
        imagenet.find(drawn, "train").class_num(1000)


def test_records_that_are_incomplete_truncated_or_of_another_kind_are_named(records, tmp_path):
    home = tmp_path / "some"
    shutil.copytree(records / "imagenet", home)
    file = home / "train-00001-of-00002"
    whole = file.read_bytes()
    file.write_bytes(whole[:-5])
    with pytest.raises(ValueError, match="train-00001-of-00002 is truncated or no file of TFRec"):
        data.size("imagenet", home)
    with tf.io.TFRecordWriter(str(home / "train-00000-of-00002")) as writer:
        writer.write(tf.train.Example().SerializeToString())
    with pytest.raises(ValueError, match="train-00000-of-00002 does not begin with a record that"):
        batches(home, 1)
    with pytest.raises(ValueError, match="TFRecords, which are read from their beginnings"):
        data.shared_batch("imagenet", 1, records, look())
    other = tmp_path / "other"
    shutil.copytree(records / "imagenet", other)
    (other / "train-00000-of-00002").unlink()
    with pytest.raises(ValueError, match="has 1 of the 2 files train-.*-of-00002: copy the others"):
        imagenet.find(other, "train")


def reason(home, **changes):
    with pytest.raises(tf.errors.OpError) as caught:
        batches(home, 3, **changes)
    return pictures.reason(caught.value)


def test_a_broken_picture_is_reported_once_and_replaced_by_grey(changed):
    whole = batches(changed, 3, augment=False)
    broken = changed / "imagenet/train/ring/2-0.JPEG"
    broken.write_bytes(broken.read_bytes()[:60])
    told = []
    got = batches(changed, 3, augment=False, say=told.append)
    assert told == [f"{broken} cannot be decoded: using a grey image in its place"]
    for (x, y), (expected, labels) in zip(got, whole, strict=True):
        assert y.tolist() == labels.tolist()
        differs = [n for n in range(TRAIN) if x[n].tobytes() != expected[n].tobytes()]
        assert len(differs) == 1 and (x[differs[0]] == 0.5).all()
        assert CLASSES[y[differs[0]]] == "ring"


def test_many_broken_pictures_end_training_and_are_reported_by_an_evaluation(changed):
    for split, number in (("train", 4), ("validation", 1)):
        for name in CLASSES:
            for path in sorted((changed / "imagenet" / split / name).iterdir())[:number]:
                path.write_bytes(b"<html>not found</html>")
    assert f"of {TRAIN} pictures in {changed}/imagenet/train cannot be decoded, among them" in (
        reason(changed, say=lambda line: None))
    told = []
    for _ in range(2):
        x, _ = evaluated(changed, say=told.append)
    assert len(x) == TEST and sum((image == 0.5).all() for image in x) == len(CLASSES)
    assert len(set(told)) == len(CLASSES)


def test_a_png_by_another_name_and_a_grey_jpeg_are_pictures(changed):
    ring = changed / "imagenet/validation/ring"
    first, second, *_ = sorted(ring.iterdir())
    first.write_bytes(tf.io.encode_png(np.full((50, 60, 3), 51, np.uint8)).numpy())
    second.write_bytes(tf.io.encode_jpeg(np.full((50, 60, 1), 102, np.uint8)).numpy())
    x, y = evaluated(changed, say=pytest.fail)
    np.testing.assert_allclose(x[y == CLASSES.index("ring")][:2].mean((1, 2, 3)), [0.2, 0.4],
                               atol=0.01)


def test_a_wrong_label_and_a_damaged_record_end_the_training_with_a_reason(records, tmp_path):
    home = tmp_path / "imagenet"
    shutil.copytree(records / "imagenet", home)
    assert re.fullmatch(r"the record of 3-\d.JPEG has the label 4: there are labels 1 to 3; "
                        "--class_num says how many", reason(home, class_num=3))
    file = home / "train-00001-of-00002"
    damaged = bytearray(file.read_bytes())
    damaged[40] ^= 1
    file.write_bytes(damaged)
    assert reason(home).startswith("a file of TFRecords is damaged (corrupted record at ")
    with tf.io.TFRecordWriter(str(file)) as writer:
        writer.write(record(b"", 0, "zero.JPEG"))
    assert "the record of zero.JPEG has the label 0" in reason(home)


def test_an_error_unrelated_to_reading_has_no_reason():
    with pytest.raises(tf.errors.OpError) as caught:
        tf.reshape([1, 2], [3])
    assert pictures.reason(caught.value) is None


def test_nothing_tunes_the_pipelines(drawn):
    for stream in (data.train_dataset("imagenet", 2, 1, 0, drawn, look()),
                   data.test_dataset("imagenet", 2, drawn, look())):
        assert stream.options().autotune.enabled is False


def test_imagenet_is_no_array():
    with pytest.raises(ValueError, match="imagenet stays on the disk"):
        data.load("imagenet")
