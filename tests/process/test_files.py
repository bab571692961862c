"""Processes that can open few files: each reports that in one line, or takes part in a run."""

import os
import resource

import pytest
from jobs import free_port

from wbsp.process.files import check_files

WORKER = """
from wbsp.worker.errors import in_one_line
from wbsp.worker.loop import Worker
with in_one_line():
    Worker("localhost:{}", 0).connect()
print("connected")
"""


@pytest.mark.parametrize("files", [12, 16, 24])
@pytest.mark.parametrize("what", ["server", "worker"])
def test_too_low_a_limit_of_open_files_is_reported_with_a_remedy(jobs, what, files):
    (jobs.folder / "worker.py").write_text(WORKER.format(9))
    command = "-m wbsp.ps --worker_num=1" if what == "server" else "worker.py"
    job = jobs.run(what, "bash", "-c", f"ulimit -n {files} && exec python {command}")
    assert job.ends() == 1
    line, = job.lines
    assert f"more files, and a {what} needs 22 at least: its limit is {files}; raise it " in line
    assert not (jobs.folder / "runs").exists()


def test_a_server_and_a_worker_that_can_open_64_files_meet(jobs):
    port = free_port()
    (jobs.folder / "worker.py").write_text(WORKER.format(port))
    server = jobs.run("server", "bash", "-c", "ulimit -n 64 && exec python -m wbsp.ps "
                      f"--one_run --worker_num=1 --port_base={port}")
    server.until("can open 64 files, but 1 workers may need 134: if connections are refused")
    worker = jobs.run("worker", "bash", "-c", "ulimit -n 64 && exec python worker.py")
    worker.until("connected")
    worker.was_clean()
    server.was_clean()


def test_files_opened_for_a_check_are_closed():
    before = os.listdir("/proc/self/fd")
    check_files("a server")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(before) + 3, hard))
    try:
        with pytest.raises(OSError, match=r"can open \d+ more files, and a server needs 22"):
            check_files("a server")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(os.listdir("/proc/self/fd")) == len(before)
