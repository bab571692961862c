"""What measurements share: a real server beside them, paired figures, tables.

Machines are noisy and differ, so a benchmark runs two things in turn, several times, and states
performance as the ratio of each pair: the median says how much, the range how sure.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

CONNECT = 120.0  # seconds for all processes of a benchmark to come up
_ROOT = Path(__file__).parents[1]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and range of `values`."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Median and range of above[i] / below[i]: a pair was measured one right after the other."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def in_words(ratio: dict[str, float]) -> str:
    """Return a ratio and its range as text."""
    return f"{ratio['median']:.2f} ({ratio['min']:.2f}-{ratio['max']:.2f})"


def free_port() -> int:
    """Return a TCP port of the loopback interface that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def server(sync: str, workers: int, *flags: str, standby: Sequence[str] | None = None,
           host: str = "localhost", space: str | None = None) -> Iterator[str]:
    """Run `python -m wbsp.ps` in a process of its own, perhaps with a standby in another; yield its
    host:port.

    flags: more of both; standby: more of the standby alone, None: there is none
    host, space: where it listens, and the network namespace that is in

    It ends with its first run, though the workers' processes live on. Checkpoints are put off:
    their writing is a matter of the disk, not of what is measured.
    Raises RuntimeError if a server does not end well by itself, as a run's end should make it.
    """
    address = f"{host}:{free_port()}"
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        def start(port: str, *more: str) -> None:
            stack.enter_context(ending_well(
                Path(folder) / f"said-{port}", f"--sync={sync}", f"--worker_num={workers}",
                f"--host={host}", f"--port_base={port}", f"--log_root={folder}",
                f"--connect_timeout={CONNECT}", "--check_period=3600", "--one_run", *flags, *more,
                space=space))

        start(address.rpartition(":")[2])
        if standby is not None:
            start(str(free_port()), f"--standby_of={address}", *standby)
        yield address


@contextlib.contextmanager
def ending_well(output: Path, *flags: str, space: str | None = None) -> Iterator[None]:
    """Yield a server's process in a network namespace; kill it if the block fails."""
    within = ["ip", "netns", "exec", space] if space else []
    with open(output, "w+") as said:
        process = subprocess.Popen([*within, sys.executable, "-m", "wbsp.ps", *flags], cwd=_ROOT,
                                   stdout=subprocess.DEVNULL, stderr=said)
        try:
            yield
            code = process.wait(CONNECT)
        finally:
            process.kill()
            process.wait()
        if code:
            said.seek(0)
            raise RuntimeError(f"the server ended with exit code {code}: {said.read()[-1000:]}")


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns that are as wide as their widest entry, aligned right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        print("  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True)))


def write_json(path: str | None, figures: dict) -> None:
    """Keep the figures of a benchmark in a file, if there is one to keep them in."""
    if path is not None:
        Path(path).write_text(json.dumps(figures, indent=2) + "\n")
