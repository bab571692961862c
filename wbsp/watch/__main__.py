"""The command that shows runs: `python -m wbsp.watch runs/wbsp/run-001`, also while they go on."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
from pathlib import Path

from wbsp.figures import find_runs
from wbsp.figures.load import gather
from wbsp.runlog.files import write_whole
from wbsp.watch.page import html
from wbsp.watch.run import WatchedRun
from wbsp.watch.server import Watch


def main(arguments: list[str] | None = None) -> int:
    """Serve the page until interrupted, or write a report; return 0, or 1 after one line on the
    error."""
    parser = argparse.ArgumentParser(prog="python -m wbsp.watch", description=__doc__)
    parser.add_argument("run_dir", nargs="+", help="a run's folder, or one that holds "
                        "runs; on the machine of the run's server, which is not asked")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--http", type=int, default=0, metavar="PORT", help="port of 127.0.0.1 that "
                       "serves the page (default: 0, any free one, which is printed)")
    where.add_argument("--out", type=Path, metavar="FILE.html", help="write the page of this "
                       "moment into one file, which needs nothing else, and end")
    flags = parser.parse_args(arguments)
    try:
        if not 0 <= flags.http < 1 << 16:
            raise ValueError(f"--http={flags.http} is no port; give 0 to 65535")
        for name in flags.run_dir:
            if re.fullmatch(r"[^/]+:\d+", name) and not Path(name).exists():
                raise ValueError(f"{name} is no folder, and a server has no page: give the folder "
                                 "of its run, on its machine, such as runs/pcc/run-001")
        runs = [WatchedRun(one.run.folder, one.name) for one in gather(find_runs(flags.run_dir))]
        if flags.out is not None:
            for run in runs:
                run.refresh()
            write_whole(flags.out, html(runs, live=False))
            print(flags.out)
            return 0
        with Watch(runs, flags.http) as server:
            print(f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} at {server.address} "
                  "(Ctrl-C ends this page, no run)", flush=True)
            # a browser takes its time for the page, too
            threading.Thread(target=server.serve_forever, daemon=True).start()
            ended = _interrupted()
            server.read()
            ended.wait()
    except (OSError, ValueError, ModuleNotFoundError) as error:
        print(f"watch: {_one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def _interrupted() -> threading.Event:
    """Set by the first Ctrl-C from here on, the second ends the process: as an exception, it would
    come in the midst of reading, where numpy makes another one of it."""
    event = threading.Event()

    def handle(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        event.set()

    signal.signal(signal.SIGINT, handle)
    return event


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        return f"cannot serve the page: {os.strerror(error.errno)}; choose another --http"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
