"""The process of a shard, here or on another machine.

A server starts the shards of its own machine by `python -m wbsp.ps.sharding.process`; they end with
it, whatever ends it, because the pipe between the two does. A shard on another machine is
`python -m wbsp.ps --shard`, and waits for the next server.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from wbsp.process.child import settings_from_server
from wbsp.process.host import HOST, Host
from wbsp.process.signals import Interrupts
from wbsp.ps.sharding.server import ShardServer
from wbsp.runlog.console import say
from wbsp.wire.sockets import ServerSocket


def prepare_shard(host: str, port: int, token: bytes | None,
                  bandwidth: float | None, on: Host = HOST) -> Callable[[], int]:
    """Listen; return what waits for servers, serves them, and answers with an exit code.

    From here on the process's signals are the shard's. Raises ValueError or OSError in one line.
    """
    interrupts = Interrupts(on).install()
    socket = ServerSocket(host, port, token, on=on)

    def serve() -> int:
        say(f"shard: listening on port {socket.port}, in waiting for a server")
        return ShardServer(socket, bandwidth, interrupts).run()

    return serve


def main() -> int:
    """A shard that a server on this machine has started: its first line of input is JSON, its first
    line of output the port."""
    settings = settings_from_server()
    if settings is None:
        return 1
    token = settings["token"] and bytes.fromhex(settings["token"])
    socket = ServerSocket(settings["host"], 0, token)
    print(socket.port, flush=True)
    return ShardServer(socket, settings["bandwidth"], Interrupts(), 0,
                       bytes.fromhex(settings["key"])).run()


if __name__ == "__main__":
    sys.exit(main())
