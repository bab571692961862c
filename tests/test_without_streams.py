"""Processes without some of the standard streams, as a daemon starts them: they do their work."""

import os
import shlex
import signal
import subprocess
import sys

import pytest
from jobs import ROOT, ServerJob, free_port, surroundings, until

from wbsp.ps.checkpoint import format as checkpoint

WORKER = ROOT / "tests" / "helpers" / "user_worker.py"
CLOSED = ["<&- >&- 2>&-", "2>&-", ">&- 2>&-", "<&-"]


def without(jobs, name, streams, *command, **environment):
    """Start Python without these streams; the other ones go to a file."""
    line = " ".join(shlex.quote(str(word)) for word in (sys.executable, *command))
    return jobs.run(name, "bash", "-c", f"exec {line} {streams}", kind=ServerJob, **environment)


@pytest.mark.parametrize(("streams", "shards"), [
    (CLOSED[0], 2), (CLOSED[1], 1), *(pytest.param(one, 1, marks=pytest.mark.long)
                                      for one in CLOSED[2:])])
def test_a_server_and_its_worker_train(jobs, streams, shards):
    port = free_port()
    server = without(jobs, "server", streams, "-m", "wbsp.ps", "--worker_num=1", "--sync=asp",
                     "--one_run", f"--port_base={port}", f"--shards={shards}")
    worker = without(jobs, "worker", streams, WORKER, 5, 60,
                     WBSP_SERVER=f"localhost:{port}", WBSP_WORKER_INDEX="0")
    assert worker.ends() == 0 and server.ends() == 0
    folder = jobs.folder / "runs" / "asp" / "run-001"
    assert checkpoint.load(folder / "checkpoint.safetensors").state.version == 5
    assert not (folder / "events.jsonl").read_bytes().count(b"Traceback")
    if "2>&-" in streams:
        assert "listening" not in server.text, "its lines are on no other stream"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_no_socket_and_no_file_has_the_number_of_a_standard_stream(jobs):
    port = free_port()
    server = without(jobs, "server", CLOSED[0], "-m", "wbsp.ps", "--worker_num=1",
                     f"--port_base={port}")
    until(lambda: (jobs.folder / "runs").exists(), "the server to listen")
    assert [os.readlink(f"/proc/{server.process.pid}/fd/{number}") for number in range(3)] == [
        "/dev/null"] * 3
    server.signal(signal.SIGTERM)
    assert server.ends() == 128 + signal.SIGTERM


def test_a_wrong_flag_has_its_exit_code(tmp_path):
    command = f"exec {sys.executable} -m wbsp.ps --worker_num=0 {CLOSED[0]}"
    assert subprocess.call(["bash", "-c", command], cwd=tmp_path,
                           env={**os.environ, **surroundings()}) == 2
