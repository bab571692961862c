"""From settings to a server that is ready to run: what both entry points share."""

from __future__ import annotations

import os
import pathlib
import platform
import secrets
import sys
from collections.abc import Callable
from typing import Any

from wbsp import cluster
from wbsp.ps.background import CHECKPOINT, Evaluator
from wbsp.ps.checkpoint import load
from wbsp.ps.interrupt import Interrupts
from wbsp.ps.run import Outlet, ServerConfig
from wbsp.ps.server import Server
from wbsp.runlog.console import Console
from wbsp.runlog.files import beside_of
from wbsp.runlog.folder import (
    SETTINGS,
    hold_folder,
    read_settings,
    run_folder,
    write_settings,
)
from wbsp.runlog.server import ServerLog
from wbsp.sync import SyncModel
from wbsp.wire.sockets import ServerSocket, is_loopback, split_address


def where_to_listen(host: str | None, port: int | None, default_port: int) -> tuple[str, int]:
    """The host and port to listen on: those given, else what the environment tells the workers.

    They are told a name that leads here, maybe by way of a translator of addresses, or several of
    which one does: a server that others are to reach listens on every interface.
    Raises ValueError, in one line.
    """
    said = cluster.server_address("ps") if host is None and port is None else None
    if said is None:
        return host or "localhost", port or default_port
    try:
        hosts, ports = zip(*map(split_address, said.text.split(",")), strict=True)
    except ValueError as error:
        raise said.refused(error) from None
    if len(set(ports)) > 1:
        raise said.refused("several ports; say which is this server's: --port_base")
    return hosts[0] if all(map(is_loopback, hosts)) else "*", ports[0]


def prepare_server(
        settings: dict[str, str], model: SyncModel, options: dict[str, Any], config: ServerConfig,
        *, host: str, port: int, token_file: str | None, base_dir: str, log_root: str,
        resume: bool, start_evaluator: Callable[[], Evaluator] | None = None) -> Server:
    """Check everything, make the run's folder, and return the server, listening.

    From here on the process's signals are the server's. Raises ValueError or OSError in one line.
    """
    interrupts = Interrupts().install()
    socket = ServerSocket(host, port, cluster.token(token_file), config.worker_num)
    try:
        folder = run_folder(base_dir, log_root, resume)
    except FileNotFoundError:
        folder = run_folder(base_dir, log_root)
    hold = hold_folder(folder, f"process {os.getpid()} on {platform.node()}, port {port}")
    beside_of(folder / CHECKPOINT).unlink(missing_ok=True)  # of one that was killed while writing
    saved = load(folder / CHECKPOINT) if resume and (folder / CHECKPOINT).exists() else None
    before: dict[str, Any] = read_settings(folder) if (folder / SETTINGS).exists() else {}
    # a worker keeps its files in the same folder below its own log root
    relative = not pathlib.Path(base_dir).is_absolute()
    settings = {**settings, "folder": str(folder.relative_to(log_root) if relative else folder)}
    run: dict[str, Any] = before if saved else {
        **settings, "sync": model.name, "options": options, "clock": "real",
        "workers": config.worker_num, "check_period": config.check_period,
        "bandwidth": config.bandwidth, **config.outer.settings(),
        "command": " ".join(sys.argv)}
    run["id"] = before.get("id") or secrets.token_hex(4)
    run["epoch"] = before.get("epoch", 0) + 1
    write_settings(folder, run)
    settings["id"] = str(run["id"])
    console = Console(f"{model.name} {folder}")
    log = ServerLog(folder, model.name, append=resume, say=console.line)
    server = Server(model, socket, config, settings, Outlet(folder, log, console),
                    start_evaluator() if start_evaluator else None, interrupts, hold, run["epoch"])
    console.line(f"the files of this run are in {folder}")
    if saved:
        server.begin(*saved)
        console.line(f"going on from version {saved.state['version']}")
    elif resume:
        console.line("there is no checkpoint to go on from: beginning afresh")
    return server
