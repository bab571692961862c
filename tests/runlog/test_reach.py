"""Lines on who can connect."""

import pytest

from wbsp.process.own_address import address_for_others
from wbsp.process.token import Token
from wbsp.runlog.reach import Reach


def token(file, usual=False):
    one = Token(b"a secret of the run")
    one.file, one.usual = file, usual
    return one


def test_a_server_of_one_machine_names_the_flag_for_others():
    (line,) = Reach(False, "127.0.0.1:2606", None, False).of_server("python train.py")
    assert line.startswith("only this machine can connect;") and "--host=0.0.0.0" in line


def test_the_usual_token_is_copied_once_and_needs_no_name():
    reach = Reach(True, "10.0.0.1:2606", token("/home/a b/.config/wbsp/token", usual=True), True)
    copy, start = reach.of_server("python train.py")
    assert "10.0.0.1:/home/a b/.config/wbsp/token' ~/.config/wbsp/token" in copy, "quoted"
    assert start.endswith("WBSP_SERVER=10.0.0.1:2606 python train.py")
    assert reach.of_token() == [
        "made a token, for this and later runs: /home/a b/.config/wbsp/token"]


def test_a_named_token_is_named_to_workers():
    reach = Reach(True, "[fd00::1]:2606", token("token"), False)
    assert reach.of_token() == []
    (line,) = reach.of_server("python train.py")
    assert "WBSP_TOKEN_FILE=token WBSP_SERVER=[fd00::1]:2606 python train.py" in line


@pytest.mark.parametrize("host, address", [
    ("10.0.0.1", "10.0.0.1"), ("[fd00::1]", "fd00::1"), ("machine.example", "machine.example")])
def test_a_server_at_one_address_is_found_at_it(host, address):
    assert address_for_others(host) == address


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "::"])
def test_a_server_at_all_addresses_is_found_at_one_of_this_machine(host):
    found = address_for_others(host)
    assert found and not found.startswith("127.") and found not in ("::1", host)
