"""The machines of a cell on this one: a core each, and namespaces for their network.

With root all runs are in network namespaces of their own, so that bytes are counted and no port is
taken. On loopback it is one for all machines; a cell with a rate has one each, on a bridge, and the
kernel's token bucket (`tc tbf`) limits each cable both ways. Without root loopback is the
machine's own, and bytes are not counted.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess

import hosts

from beside.plan import Cell

_LO = "127.0.0.1"


class Network(contextlib.AbstractContextManager):
    """Where the machines of a run are.

    Attributes:
        addresses: machine -> where it listens.
        device: the interface that leads to the others.
    """

    def __init__(self, cell: Cell):
        self._hosts: hosts.Hosts | None = None
        self._space: str | None = None
        self._names = [f"m{n}" for n in range(len(cell.slow))]
        if cell.mbit is not None:
            if reason := hosts.why_not():
                raise OSError(f"{cell.name}: {reason}")
            self._hosts = hosts.Hosts(*self._names)
            for name in self._names:
                self._hosts.limit(name, cell.mbit)
            self.addresses = tuple(self._hosts.address[name] for name in self._names)
            self.device = "eth0"
            return
        self.addresses, self.device = (_LO,) * len(cell.slow), "lo"
        if hosts.why_not() is None:
            self._space = f"beside{os.getpid()}"
            _ip("netns", "add", self._space)
            _ip("-n", self._space, "link", "set", "lo", "up")

    def on(self, machine: int) -> list[str]:
        """Return the words before a command that runs on a machine."""
        space = self._space if self._hosts is None else self._hosts.space(self._names[machine])
        cores = sorted(os.sched_getaffinity(0))
        where = [] if space is None else ["ip", "netns", "exec", space]
        return [*where, "taskset", "-c", str(cores[min(machine, len(cores) - 1)])]

    def bytes(self) -> int | None:
        """Return how many bytes all machines have received of one another; None: not known."""
        if self._space is None and self._hosts is None:
            return None
        found = 0
        for machine in range(1 if self._hosts is None else len(self._names)):
            command = [*self.on(machine), "cat", "/proc/net/dev"]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found += sum(int(line.split(":")[1].split()[0]) for line in text.splitlines()
                         if line.strip().startswith(f"{self.device}:"))
        return found

    def __exit__(self, *_: object) -> None:
        if self._hosts is not None:
            self._hosts.__exit__()
        if self._space is not None:
            _ip("netns", "del", self._space)


def free_ports(count: int) -> tuple[int, ...]:
    """Return ports that nobody has."""
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("", 0))
        return tuple(probe.getsockname()[1] for probe in probes)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
