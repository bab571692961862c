"""The process of a shard, here or on another machine.

A server starts the shards of its own machine by `python -m wbsp.ps.shard_process`; they end with
it, whatever ends it, because the pipe between the two does. A shard on another machine is
`python -m wbsp.ps --shard`, and waits for the next server.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable

from wbsp.ps.interrupt import SIGNALS, Interrupts
from wbsp.ps.shard_server import ShardServer
from wbsp.runlog.console import say
from wbsp.wire.sockets import ServerSocket

_PATIENCE = 60.0  # seconds for the first line of input


def prepare_shard(host: str, port: int, token: bytes | None,
                  bandwidth: float | None) -> Callable[[], int]:
    """Listen; return what waits for servers, serves them, and answers with an exit code.

    From here on the process's signals are the shard's. Raises ValueError or OSError in one line.
    """
    interrupts = Interrupts().install()
    socket = ServerSocket(host, port, token)

    def serve() -> int:
        say(f"shard: listening on port {socket.port}, in waiting for a server")
        return ShardServer(socket, bandwidth, interrupts).run()

    return serve


def main() -> int:
    """A shard that a server on this machine has started: its first line of input is JSON, its first
    line of output the port."""
    for signum in SIGNALS:  # Ctrl-C is sent to it too; the server decides
        signal.signal(signum, signal.SIG_IGN)
    ready, _, _ = select.select([0], [], [], _PATIENCE)
    line = os.read(0, 1 << 16) if ready else b""
    if not line:
        return 1
    settings = json.loads(line)
    token = settings["token"] and bytes.fromhex(settings["token"])
    socket = ServerSocket(settings["host"], 0, token)
    print(socket.port, flush=True)
    return ShardServer(socket, settings["bandwidth"], Interrupts(), 0).run()


if __name__ == "__main__":
    sys.exit(main())
