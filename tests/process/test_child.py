"""Child processes of a server, whatever becomes of the server."""

import json
import os
import subprocess
import sys

import pytest

SETTINGS = {
    "wbsp.ps.sharding.process": {"host": "localhost", "token": None, "bandwidth": None,
                                 "key": "00" * 32}}


@pytest.mark.parametrize("module", SETTINGS)
def test_a_child_whose_server_has_ended_meanwhile_ends_without_a_traceback(module, tmp_path):
    settings = {"folder": str(tmp_path), **SETTINGS[module]}
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as answers:
        done = subprocess.run([sys.executable, "-m", module], stdout=answers,
                              stderr=subprocess.PIPE, input=json.dumps(settings).encode() + b"\n",
                              timeout=60)
    assert (done.returncode, done.stderr) == (1, b"")
