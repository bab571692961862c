"""The token at its usual place: made once, read by its owner alone."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from wbsp.access import Access
from wbsp.environment import token_of_server
from wbsp.process.token import make_token, read_token, usual_place, usual_token

HERE, THERE = "localhost:1", "192.0.2.1:1"  # which is an address of documentation


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in "WBSP_TOKEN_FILE", "WBSP_UPSTREAM_TOKEN_FILE":
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config"


@pytest.fixture
def unasked(monkeypatch):
    def refuse(address):
        raise AssertionError("nobody asked whether the server is on another machine")
    monkeypatch.setattr("wbsp.access.all_here", refuse)


def test_the_usual_place_is_that_of_the_user(folder, monkeypatch):
    assert usual_place() == folder / "wbsp" / "token"
    for other in "", "relative/to/what":
        monkeypatch.setenv("XDG_CONFIG_HOME", other)
        assert usual_place() == Path.home() / ".config" / "wbsp" / "token"


def test_a_token_is_made_once_for_this_user_alone(folder):
    assert usual_token() is None
    first, made = make_token()
    again, made_again = make_token()
    assert (made, made_again) == (True, False) and first == again == usual_token()
    assert len(first) == 64 and first.file == str(usual_place()) and first.usual
    assert first.warning() is None
    path = usual_place()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["token"]


def test_servers_that_start_at_once_have_one_token():
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda _: make_token(), range(16)))
    assert len({token for token, _ in found}) == 1
    assert [made for _, made in found].count(True) == 1


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_token_that_others_can_read_is_refused(mode):
    make_token()
    usual_place().chmod(mode)
    for use in usual_token, make_token, lambda: Access(THERE, None):
        with pytest.raises(PermissionError, match=f"mode {mode:03o}.: chmod 600 ") as caught:
            use()
        assert str(usual_place()) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_token_of_another_user_is_refused():
    make_token()
    os.chown(usual_place(), 12345, -1)
    with pytest.raises(PermissionError, match=r"belongs to another user \(uid 12345\)"):
        usual_token()


def test_a_token_file_that_others_can_read_gets_a_warning(tmp_path, unasked):
    path = tmp_path / "named"
    path.write_text("a secret of the run\r\n")
    path.chmod(0o600)
    assert read_token(path).warning() is None
    path.chmod(0o644)
    access, said = Access(THERE, str(path)), []
    access.warn(said.append)
    assert access.token == b"a secret of the run" and not access.token.usual
    assert f"can read the token {path}" in said[0] and "chmod 600" in said[0]


@pytest.mark.parametrize("beyond", [True, False])
def test_a_server_makes_a_token_only_for_other_machines(beyond, tmp_path):
    token, made = token_of_server(None, beyond)
    assert (token is not None, made, usual_place().exists()) == (beyond, beyond, beyond)
    assert token_of_server("", beyond) == (None, False)
    path = tmp_path / "named"
    path.write_text("a secret of the run")
    assert token_of_server(str(path), beyond) == (b"a secret of the run", False)


def test_the_usual_token_is_used_only_for_other_machines():
    assert Access(THERE, None).token is None
    token, _ = make_token()
    assert Access(THERE, None).token == token
    assert Access(HERE, None).token is None


def test_no_name_is_resolved_without_a_token_to_use(unasked):
    assert Access(THERE, None).token is None, "there is none to look for"
    make_token()
    assert Access(THERE, "").token is None


def test_a_process_without_a_token_tries_the_usual_one_once_it_is_refused():
    assert not Access(HERE, None).other(), "there is none"
    token, _ = make_token()
    here = Access(HERE, None)
    assert here.other() and here.token == token
    assert not here.other(), "it was tried"
    assert not Access(HERE, "").other(), "it was told to have none"


def test_an_unreadable_home_folder_has_no_token(folder):
    folder.write_text("no folder")
    assert usual_token() is None
    with pytest.raises(OSError, match="cannot make a token at .*: .*--token_file"):
        make_token()


def test_a_pipe_of_the_shell_is_refused_with_the_remedy():
    reads, writes = os.pipe()
    try:
        os.write(writes, b"a secret of the run\n")
        with pytest.raises(ValueError, match=f"^the token '/dev/fd/{reads}' is no regular file: a "
                           "pipe, such as .* can be read once.*chmod 600") as caught:
            read_token(f"/dev/fd/{reads}")
        assert "\n" not in str(caught.value)
    finally:
        os.close(reads)
        os.close(writes)
