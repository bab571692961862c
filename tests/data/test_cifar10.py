import keras
import numpy as np
import pytest

import data
from data import cifar10


@pytest.fixture(autouse=True)
def no_other_source(tmp_path, monkeypatch):
    """Keep the user's own data out, and every file small."""
    monkeypatch.delenv("WBSP_DATA_DIR", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setattr(cifar10, "RECORDS", 20)


@pytest.fixture
def batches(tmp_path):
    """A folder with files of 20 records each, and the images and labels in them."""
    random = np.random.default_rng(0)
    folder = tmp_path / "set" / cifar10.FOLDER
    folder.mkdir(parents=True)
    images, labels = {}, {}
    for name in [*cifar10.FILES["train"], *cifar10.FILES["test"]]:
        images[name] = random.integers(0, 256, (20, 32, 32, 3), np.uint8)
        labels[name] = random.integers(0, 10, 20, np.uint8)
        planes = images[name].transpose(0, 3, 1, 2).reshape(20, -1)
        np.column_stack([labels[name], planes]).tofile(folder / name)
    return folder, images, labels


def test_labels_and_colour_planes_are_read_in_order(batches):
    folder, images, labels = batches
    for split, names in cifar10.FILES.items():
        x, y = data.load("cifar10", folder.parent, split)
        assert (x.dtype, y.dtype) == (np.uint8, np.int32)
        np.testing.assert_array_equal(x, np.concatenate([images[name] for name in names]))
        np.testing.assert_array_equal(y, np.concatenate([labels[name] for name in names]))


def test_the_folder_itself_and_the_environment_variable_work_too(batches, monkeypatch):
    folder, images, _ = batches
    expected = images["test_batch.bin"]
    np.testing.assert_array_equal(data.load("cifar10", str(folder), "test")[0], expected)
    monkeypatch.setenv("WBSP_DATA_DIR", str(folder.parent))
    np.testing.assert_array_equal(data.load("cifar10", split="test")[0], expected)


def test_keras_folder_is_the_last_one_searched(batches, tmp_path):
    folder, images, _ = batches
    (tmp_path / "keras").mkdir()
    folder.parent.rename(tmp_path / "keras" / "datasets")
    np.testing.assert_array_equal(data.load("cifar10", split="test")[0], images["test_batch.bin"])


def test_a_truncated_file_is_named(batches):
    folder, *_ = batches
    path = folder / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"data_batch_3.bin has 61459 bytes instead of 61460"):
        data.load("cifar10", folder)


def test_a_missing_file_is_named(batches):
    folder, *_ = batches
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_3.bin is missing"):
        data.load("cifar10", folder)


def test_a_wrong_label_is_named(batches):
    folder, *_ = batches
    path = folder / "test_batch.bin"
    path.write_bytes(b"\x0b" + path.read_bytes()[1:])
    with pytest.raises(ValueError, match=r"test_batch.bin has the label 11"):
        data.load("cifar10", folder, "test")


@pytest.mark.parametrize("folder", ["empty", "nowhere"])
def test_a_given_folder_without_batches_is_named_and_nothing_is_downloaded(
    folder, tmp_path, monkeypatch
):
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(keras.datasets.cifar10, "load_data", lambda: pytest.fail("downloaded"))
    with pytest.raises(FileNotFoundError, match=f"no CIFAR-10 in .*{folder}: put the binary"):
        data.load("cifar10", tmp_path / folder)


def test_keras_downloads_data_that_no_folder_has(monkeypatch):
    splits = [(np.zeros((n, 32, 32, 3), np.uint8), np.zeros((n, 1), np.uint8)) for n in (5, 3)]
    monkeypatch.setattr(keras.datasets.cifar10, "load_data", lambda: splits)
    images, labels = data.load("cifar10", split="test")
    assert (images.shape, labels.shape, labels.dtype) == ((3, 32, 32, 3), (3,), np.int32)


def test_a_failed_download_names_the_folder_for_the_files(monkeypatch):
    def fail():
        raise Exception("URL fetch failure")

    monkeypatch.setattr(keras.datasets.cifar10, "load_data", fail)
    with pytest.raises(FileNotFoundError, match=r"keras.datasets.*URL fetch failure.*data_dir"):
        data.load("cifar10")


def test_unknown_names_list_the_known_ones():
    with pytest.raises(ValueError, match="'mnist': choose one of cifar10, shapes10"):
        data.load("mnist")
    with pytest.raises(ValueError, match="'valid': choose train or test"):
        data.load("cifar10", split="valid")


def test_the_size_is_known_without_reading():
    assert data.size("cifar10") == 50_000
    assert data.size("shapes10") == 10_000
