"""The secret of one user's processes: the same for all of them, and no other's."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from wbsp.process import user_key as module

user_key = module.user_key.__wrapped__  # without its cache


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "home"


def test_all_processes_of_a_user_have_the_same(home):
    key = user_key()
    assert len(key) == 32 and user_key() == key
    (path,) = [path for path in home.rglob("*") if path.is_file()]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("spoil", [
    lambda path: path.chmod(0o644), lambda path: path.write_text("ab"),
    lambda path: path.write_text("x" * 64), lambda path: path.parent.chmod(0o777)],
    ids=["can be read by others", "torn", "no number", "can be replaced by others"])
def test_a_key_that_others_can_read_or_write_is_replaced(home, spoil):
    key = user_key()
    (path,) = [path for path in home.rglob("*") if path.is_file()]
    spoil(path)
    assert user_key() != key
    assert user_key() == user_key(), "one at another place"


def test_a_link_of_another_user_is_not_followed(home, tmp_path):
    key = user_key()
    (path,) = [path for path in home.rglob("*") if path.is_file()]
    os.rename(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert user_key() != key


def test_a_key_without_a_folder_is_this_processs_alone(home, monkeypatch):
    monkeypatch.setattr(module, "_folders", lambda: [])
    assert user_key() != user_key()
