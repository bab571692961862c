"""The command that shows runs, also during training: `python -m wbsp.watch runs/wbsp/run-001`."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from wbsp.command import Parser
from wbsp.figures import find_runs
from wbsp.figures.load import named
from wbsp.figures.trace import write_trace
from wbsp.limits import one_line
from wbsp.process.streams import open_streams
from wbsp.runlog.files import write_whole
from wbsp.watch.page import html
from wbsp.watch.run import WatchedRun, refreshed
from wbsp.watch.server import Watch


def main(arguments: list[str] | None = None) -> int:
    """Serve the page until interrupted, or write a report or a trace; return 0, or 1 after one line
    on the error."""
    parser = Parser(prog="wbsp watch", description="Show runs in a browser, also while they train. "
                    "Without --out and --trace a page is served until Ctrl-C.")
    parser.add_argument("run", nargs="+", type=Path, help="a run's folder, or one that holds runs")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--http", type=int, default=0, metavar="PORT", help="port of 127.0.0.1 that "
                       "serves the page (default: 0, any free one, which is printed)")
    where.add_argument("--out", type=Path, metavar="FILE.html", help="write the current page into "
                       "one self-contained file, and end")
    where.add_argument("--trace", type=Path, metavar="FILE.json", help="write all lanes and events "
                       "of one run as a Chrome trace, for ui.perfetto.dev, and end")
    parser.add_argument("--token_file", help=argparse.SUPPRESS)  # of an earlier release
    flags = parser.parse_args(arguments)
    try:
        if not 0 <= flags.http < 1 << 16:
            raise ValueError(f"--http={flags.http} is not a port; give 0 to 65535")
        for folder in flags.run:
            if _ADDRESS.fullmatch(str(folder)) and not folder.exists():
                raise ValueError(_elsewhere(str(folder), flags.http))
        if flags.token_file is not None:
            raise ValueError(f"--token_file={flags.token_file} has no effect: a page reads the "
                             "folders of runs, and asks no server; leave it out")
        _show(flags.run, flags)
    except (OSError, ValueError, ModuleNotFoundError) as error:
        _say(_one_line(error))
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


_ADDRESS = re.compile(r"[^/,]+:\d+(,[^/,]+:\d+)*")


def _elsewhere(address: str, http: int) -> str:
    """Return a line about how to open the page of a server from another machine."""
    host, port = address.split(",")[0].rsplit(":", 1)[0], http or 8000
    return (f"{address} is an address, and a page reads the folder of a run: start it on the "
            f"machine of that folder (wbsp watch FOLDER --http={port}), run 'ssh -L "
            f"{port}:127.0.0.1:{port} {host}' here, and open http://localhost:{port}/")


def _show(found: Sequence[Path], flags: argparse.Namespace) -> None:
    """Write the page of these runs or a trace, or serve the page until interrupted."""
    there = find_runs(found, _say)
    if flags.trace is not None:
        if len(there) > 1:
            raise ValueError(f"--trace={flags.trace} takes one run, and there are {len(there)}: "
                             f"give the folder of one, such as {there[0].folder}")
        print(write_trace(there[0], flags.trace))
        return
    runs = [WatchedRun(one.run.folder, one.name) for one in named(there)]
    if flags.out is not None:
        write_whole(flags.out, html(_readable(runs), live=False))
        print(flags.out)
        return
    with Watch(runs, flags.http) as server:
        print(f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} at {server.address} "
              "(Ctrl-C ends this page, no run)", flush=True)
        # while the browser starts, this process already serves the page
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ended = _interrupted()
        server.read(_say)
        ended.wait()


def _readable(runs: Sequence[WatchedRun]) -> list[WatchedRun]:
    """Return the runs whose files can be read, and print a line on each other one; raises as
    `refreshed`."""
    found, bad = refreshed(runs)
    for one in bad:
        _say(f"left out: {_one_line(one)}")
    return found


def _say(line: str) -> None:
    print(f"watch: {line}", file=sys.stderr, flush=True)


def _interrupted() -> threading.Event:
    """Return an event that the first Ctrl-C or SIGTERM sets; the second ends the process.

    As an exception, the first would come in the midst of reading, where numpy replaces it.
    """
    event = threading.Event()

    def handle(signum: int, _: object) -> None:
        signal.signal(signum, signal.default_int_handler)
        event.set()

    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, handle)
    return event


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        return f"cannot serve the page: {os.strerror(error.errno)}; choose another --http"
    return one_line(str(error), 2000)


if __name__ == "__main__":
    open_streams()
    sys.exit(main())
