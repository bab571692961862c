"""Simulate hosts by network namespaces on one bridge, whose cables can be cut. Needs root and
Linux.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import slow_line

_numbers = itertools.count()


def _ip(*words: object) -> None:
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True, text=True)


@functools.cache
def why_not() -> str | None:
    """Return why no hosts can be made here; None: they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    name = f"wt{os.getpid()}x"
    try:
        _ip("netns", "add", name)
        _ip("netns", "del", name)
        _ip("link", "add", name, "type", "bridge")
        _ip("link", "del", name)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", None) or error
        return f"no network namespaces here: {str(reason).strip()}"
    return None


class Line(NamedTuple):
    """The rate and delay of a cable that is not ideal; see `slow_line`."""

    mbit: float  # Mbit/s each way
    ms: float  # milliseconds each way


class Hosts(contextlib.AbstractContextManager):
    """Hosts with one name, one address (`address`) and one cable each."""

    def __init__(self, *names: str, lines: Mapping[str, Line] | None = None):
        """Set up the hosts.

        Args:
            lines: host -> the rate and delay of its cable.
        """
        self._lines: list[subprocess.Popen] = []
        self._id = f"{os.getpid() % 100000}{next(_numbers)}"
        self._bridge = f"wb{self._id}"
        self._names = names
        self.address = {name: f"10.77.0.{i}" for i, name in enumerate(names, 1)}
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("link", "set", self._bridge, "up")
        for i, name in enumerate(names, 1):
            space, cable = self.space(name), self._cable(name)
            _ip("netns", "add", space)
            if lines and name in lines:
                self._lay(space, cable, lines[name])
            else:
                _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", cable, "master", self._bridge, "up")
            _ip("-n", space, "addr", "add", f"10.77.0.{i}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def _lay(self, space: str, cable: str, line: Line) -> None:
        """Connect `cable`, here, and eth0 of the namespace by a line."""
        fd = slow_line.tap(cable)
        process = subprocess.Popen(
            ["ip", "netns", "exec", space, sys.executable,
             Path(slow_line.__file__), str(fd), "eth0", str(line.mbit), str(line.ms)],
            pass_fds=[fd], stdout=subprocess.PIPE, text=True)
        os.close(fd)
        self._lines.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n", "there is no line"

    def space(self, name: str) -> str:
        """Return the host's network namespace."""
        return f"wb{self._id}-{name}"

    def limit(self, name: str, mbit: float) -> None:
        """Limit the host's cable to this many Mbit/s in each direction."""
        for within in (["-n", self.space(name), "qdisc", "add", "dev", "eth0"],
                       ["qdisc", "add", "dev", self._cable(name)]):
            subprocess.run(["tc", *within, "root", "tbf", "rate", f"{mbit:g}mbit", "burst", "64kb",
                            "latency", "100ms"], check=True, capture_output=True)

    def cut(self, name: str, way: str = "both") -> None:
        """Cut the host's cable; `way`: "in" or "out" cuts one direction only."""
        if way == "both":
            _ip("link", "set", self._cable(name), "down")
        else:
            self._iptables(name, "-A", way)

    def mend(self, name: str, way: str = "both") -> None:
        if way == "both":
            _ip("link", "set", self._cable(name), "up")
        else:
            self._iptables(name, "-D", way)

    def __exit__(self, *_: object) -> None:
        for process in self._lines:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        for name in self._names:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self.space(name))
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._bridge)

    def _iptables(self, name: str, act: str, way: str) -> None:
        chain, device = {"in": ("INPUT", "-i"), "out": ("OUTPUT", "-o")}[way]
        _ip("netns", "exec", self.space(name), "iptables", act, chain, device, "eth0", "-j", "DROP")

    def _cable(self, name: str) -> str:
        return f"v{self._id}{self._names.index(name)}"
