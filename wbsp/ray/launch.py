"""The function `wbsp.ray.run`: it places the processes of a run, and waits for its end."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from wbsp.ray.placement import STRATEGIES, Needs, checked, of_workers, reserved
from wbsp.ray.supervisor import Limits, Result, Supervisor
from wbsp.ray.worker import Script
from wbsp.runlog.console import say


def run(train: Callable[..., Any] | Script, workers: int | Sequence[Needs], *,
        config: Any = None, sync: str = "pcc", flags: Sequence[str] = (),
        storage: str | os.PathLike[str] = "~/ray_results", name: str | None = None,
        standby: bool = False, server: Needs | None = None, strategy: str = "SPREAD",
        placement_timeout: float = 60.0, max_restarts: int = 5) -> Result:
    """Train on a Ray cluster; return when the run has ended.

    Uses the cluster that this process is connected to, else the one that `ray.init` finds.

    Args:
        train: called in each worker, with `config` if given; a `fit` in it has a
            `wbsp.SyncCallback()`. Its exceptions are raised here. If its process dies, it is called
            again, from its beginning.
        workers: number of workers, with a CPU each; or what each needs: [{"GPU": 1}, {"CPU": 4}].
        config: argument of `train`; None: no argument.
        sync: synchronization model.
        flags: other flags of `python -m wbsp.ps`.
        storage: folder for the folders of runs, on a file system of all nodes. One that only the
            server's node can read suffices as long as that node lives.
        name: of this run's folder there; the name of an earlier run continues that run. Default: a
            new one.
        standby: start a standby (docs/how-to/standby.md), on another node if there is room.
        server: what the server needs, and the standby; default: a CPU.
        strategy: of the placement group, as Ray names it.
        placement_timeout: seconds to wait for room on the cluster.
        max_restarts: restarts in a row of a process that dies within a minute each time.

    Raises:
        ValueError: an argument is wrong; one line.
        RunError: the run cannot start or finish; one line.
    """
    crew = of_workers(workers)
    least = checked("the server", {"CPU": 1} if server is None else server)
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy is {strategy!r}, not one of {', '.join(STRATEGIES)}")
    if not placement_timeout > 0:
        raise ValueError(f"placement_timeout is {placement_timeout!r}: give seconds above 0")
    if max_restarts < 0:
        raise ValueError(f"max_restarts is {max_restarts!r}: give a number of 0 or more")
    folder = _folder(storage, name or f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}")
    if not ray.is_initialized():
        ray.init()
    needs = {"server": least, **({"standby": least} if standby else {}),
             **{f"worker {index}": need for index, need in enumerate(crew)}}
    with reserved(needs, strategy, placement_timeout) as group:
        supervisor = Supervisor(
            group, needs, Limits(max_restarts, placement_timeout), folder,
            [f"--worker_num={len(crew)}", f"--sync={sync}", *flags],
            ray.put((train, () if config is None else (config,))))
        try:
            say(f"wbsp.ray: {len(crew)} workers; the files are in {folder}")
            return supervisor.run()
        finally:
            supervisor.end()


def _folder(storage: str | os.PathLike[str], name: str) -> str:
    text = os.fspath(storage)
    if "://" in text:
        raise ValueError(f"storage is {text!r}: give a folder that the nodes see, not a URI")
    if not name or os.path.basename(name) != name or name in (".", ".."):
        raise ValueError(f"name is {name!r}: give the name of a folder in {text}")
    return os.path.join(os.path.abspath(os.path.expanduser(text)), name)
