"""`python -m wbsp.run.remote`: the supervisor of a run's workers on a machine that `wbsp run
--hosts` reaches by ssh. Its standard input is that connection; see `hosts.py`."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import tempfile
from typing import Any

from wbsp import timeouts
from wbsp.process.streams import open_streams
from wbsp.run import machine
from wbsp.run.hosts import READY
from wbsp.run.log import ServerLines
from wbsp.run.member import Command, Member
from wbsp.run.supervisor import Supervisor


def main() -> int:
    """Train with the workers of the job; return the exit code."""
    print(READY.decode(), flush=True)
    job = _job()
    if job is None:
        return 1
    with tempfile.NamedTemporaryFile("w", prefix="wbsp-") as secret:  # for this user alone
        secret.write(job["token"])
        secret.flush()
        code = _supervisor(job, secret.name).run()
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
    return json.loads(line)


def _supervisor(job: dict[str, Any], token_file: str) -> Supervisor:
    """Return the supervisor of the job's workers."""
    host = job["host"] or os.environ.get("SSH_CONNECTION", "localhost").split()[0]
    address = f"[{host}]" if ":" in host and not host.startswith("[") else host
    task = {"WBSP_SERVER": f"{address}:{job['port']}", "WBSP_WORKER_NUM": str(job["everyone"]),
            "WBSP_TOKEN_FILE": token_file}
    gpus = machine.visible_gpus(os.environ)
    numbers = job["numbers"]

    def worker(place: int, number: int) -> Member:
        own = {"WBSP_WORKER_INDEX": str(number)} if job["indexed"] else {}
        environment = machine.of_worker(place, len(numbers), gpus, os.environ) | task | own
        command = Command([sys.executable, *job["script"]], environment)
        return Member(f"{'worker' if job['indexed'] else 'process'} {number}",
                      lambda again: command, job["max_restarts"])

    supervisor = Supervisor(
        None, ServerLines(), [worker(place, number) for place, number in enumerate(numbers)],
        alone=False, names=job["names"], place=job["place"])
    for line in machine.shares(numbers, gpus):
        supervisor.say(line)
    return supervisor


if __name__ == "__main__":
    open_streams()
    with contextlib.suppress(ConnectionError):  # then nobody is left to tell
        sys.exit(main())
    sys.exit(1)
