"""The commands that the user of an entry types, on each machine."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import NamedTuple

from beside.environments import OF_ENTRY, python
from beside.plan import Plan


class Job(NamedTuple):
    """A command.

    Attributes:
        name: of its log.
        machine: on which it runs.
        words: of the command.
        serves: it does not end with the run.
    """

    name: str
    machine: int
    words: list[str]
    serves: bool = False


def jobs(plan: Plan, folder: Path) -> list[Job]:
    """Return the commands of a run, in the order in which they are typed."""
    interpreter = str(python(OF_ENTRY[plan.name]))
    head = [interpreter, "-u"]
    first, port = plan.addresses[0], plan.ports[0]
    found = [] if plan.name != "torchft" else [Job("lighthouse", 0, [
        str(Path(interpreter).with_name("torchft_lighthouse")), "--bind", f"[::]:{port}",
        "--min_replicas", plan.options.get("min_replicas", str(plan.begin)),
        "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"], serves=True)]
    (folder / "token").write_text(secrets.token_hex(32))
    for machine, address in enumerate(plan.addresses):
        script = ["-m", f"beside.entries.{plan.name}", str(folder), str(machine)]
        match plan.name:
            case "ddp" | "postlocalsgd":
                count = str(plan.begin)
                restarts = []
                if "elastic" in plan.options:
                    count, restarts = f"1:{len(plan.addresses)}", ["--max_restarts=10"]
                words = [*head, "-m", "torch.distributed.run", f"--nnodes={count}",
                         "--nproc_per_node=1", "--rdzv_backend=c10d", "--rdzv_id=beside",
                         f"--rdzv_endpoint={first}:{port}", f"--local_addr={address}",
                         f"--rdzv_conf=is_host={int(machine == 0)}", *restarts, *script]
            case "torchft":
                words = [*head, "-m", "torch.distributed.run", "--nnodes=1", "--nproc_per_node=1",
                         "--master_addr=127.0.0.1", f"--master_port={plan.ports[1 + machine]}",
                         *script]
            case "wbsp":
                if machine == 0:
                    own = [f"--worker_num={len(plan.addresses)}", f"--host={address}",
                           f"--port_base={port}", f"--sync={plan.options.get('sync', 'auto')}",
                           f"--base_dir={folder / 'wbsp'}"]
                    if plan.begin < len(plan.addresses):  # how long it waits for the late one
                        own.append("--connect_timeout=20")
                    if batch := plan.options.get("batch"):
                        own.append(f"--sync_option=batch={batch}")
                    own += [f"--{key}={plan.options[key]}"
                            for key in ("outer", "wire") if key in plan.options]
                    own += [f"--outer_option={key}={plan.options[key]}"
                            for key in ("rate", "nu", "momentum") if key in plan.options]
                else:
                    own = [f"--server={first}:{port}"]
                if len(set(plan.addresses)) > 1:  # else nothing is encrypted, as with the others
                    own.append(f"--token_file={folder / 'token'}")
                words = [*head, "-m", "wbsp", "run", "--workers=1", *own, *script]
            case _:
                words = [*head, *script]
        found.append(Job(f"machine-{machine}", machine, words))
    return found
