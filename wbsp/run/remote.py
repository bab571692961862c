"""`python -m wbsp.run.remote`: the supervisor of a run's workers on a machine that `wbsp run
--hosts` reaches by ssh. Its standard input is that connection; see `hosts.py`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from typing import Any

from wbsp import timeouts
from wbsp.process.private import kept_in_file
from wbsp.process.streams import open_streams
from wbsp.run import machine
from wbsp.run.hosts import READY
from wbsp.run.log import ServerLines
from wbsp.run.member import workers_of
from wbsp.run.supervisor import Supervisor


def main() -> int:
    """Train with the workers of the job; return the exit code."""
    print(READY.decode(), flush=True)
    job = _job()
    if job is None:
        return 1
    with kept_in_file(job["token"]) as token_file:
        code = _supervisor(job, token_file).run()
    return 1 if code == 255 else code  # 255 is ssh's own


def _job() -> dict[str, Any] | None:
    """Return the job; None: the connection has ended."""
    line = b""
    while not line.endswith(b"\n") or not line.strip():
        ready, _, _ = select.select([0], [], [], timeouts.PROCESS_START + timeouts.HOST_SILENT)
        # Byte for byte: what follows is for the supervisor.
        if not ready or not (byte := os.read(0, 1)):
            return None
        line = line.lstrip() + byte
    job: dict[str, Any] = json.loads(line)
    return job


def _supervisor(job: dict[str, Any], token_file: str) -> Supervisor:
    """Return the supervisor of the job's workers."""
    host = job["host"] or os.environ.get("SSH_CONNECTION", "localhost").split()[0]
    address = f"[{host}]" if ":" in host and not host.startswith("[") else host
    task = {"WBSP_SERVER": f"{address}:{job['port']}", "WBSP_WORKER_NUM": str(job["everyone"]),
            "WBSP_TOKEN_FILE": token_file}
    gpus = machine.visible_gpus(os.environ)
    numbers = job["numbers"]

    workers = workers_of(numbers, job["indexed"], job["script"], task, gpus, job["max_restarts"])
    supervisor = Supervisor(None, ServerLines(), workers, alone=False, names=job["names"],
                            place=job["place"])
    for line in machine.shares(numbers, gpus):
        supervisor.say(line)
    return supervisor


if __name__ == "__main__":
    open_streams()
    with contextlib.suppress(ConnectionError):  # then no process is left that could receive it
        sys.exit(main())
    sys.exit(1)
