"""A port for a server that may be started again."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port(host: str) -> int:
    """Return a free TCP port of this machine, below those that the kernel gives to clients: it
    should still be free when a server is restarted."""
    while True:
        port = random.randrange(20_000, 32_000)
        with (contextlib.suppress(OSError),
              socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe):
            probe.bind((host, port))
            return port
