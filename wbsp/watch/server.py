"""The page's server: a few fixed addresses, on the loopback interface only.

No address names a file: it is one of the fixed ones, or there is no such page. A browser that a
foreign page has sent here under its own name (DNS rebinding) receives nothing.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from wbsp.limits import one_line
from wbsp.runlog.files import UNREADABLE, to_json
from wbsp.watch.metrics import Unreadable, exposition
from wbsp.watch.page import html
from wbsp.watch.run import WatchedRun, refreshed

_NAMES = {"localhost", "127.0.0.1"}
_JSON, _BYTES = "application/json", "application/octet-stream"
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Watch(ThreadingHTTPServer):
    """Serves the page of `runs` on a `port` of 127.0.0.1 (0: any free one).

    /                                       the page
    /run/I?seen=STAMP                       state of run I; 204 if its stamp is still STAMP
    /run/I/spans?generation=G&have=N        its spans from the N-th on: see `WatchedRun.pack`
    /metrics                                the numbers of all runs, for Prometheus; of a run that
                                            cannot be read, that it cannot

    The files are read when a page requests data, and not while no page is open. Raises OSError for
    a taken port, ModuleNotFoundError without plotly.
    """

    daemon_threads = True

    def __init__(self, runs: Sequence[WatchedRun], port: int = 0):
        self._runs, self._page, self._lock = runs, html(runs, live=True), threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that disconnects during an answer."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def read(self, say: Callable[[str], None]) -> None:
        """Read all files once, before the first request; `say` takes a line on each run that cannot
        be read, which the page shows, too.

        Raises ValueError or OSError, in one line, if no run can be read.
        """
        with self._lock:
            _, bad = refreshed(self._runs)
        for one in bad:
            say(f"cannot read a run: {one_line(str(one), 2000)}; trying again with each request")

    def answer(self, target: str) -> tuple[int, str, bytes]:
        """Return status, type and body of the answer to a request for `target`."""
        path, _, query = target.partition("?")
        if path == "/":
            return 200, "text/html; charset=utf-8", self._page
        if path == "/metrics":
            return self._metrics()
        match = re.fullmatch(r"/run/(\d{1,6})(/spans)?", path, re.ASCII)
        if match is None or int(match[1]) >= len(self._runs):
            return 404, "text/plain", b"there is no such page\n"
        run, asked = self._runs[int(match[1])], parse_qs(query)
        try:
            seen, generation, have = (_number(asked, name)
                                      for name in ("seen", "generation", "have"))
        except ValueError:
            return 400, "text/plain", b"numbers must be whole\n"
        with self._lock:
            if match[2]:
                return 200, _BYTES, run.pack(generation, max(0, have))
            try:
                run.refresh()
                if run.stamp == seen:
                    return 204, _JSON, b""
                return 200, _JSON, to_json(run.state())
            except (OSError, *UNREADABLE) as error:  # the page shows it
                return 500, "text/plain; charset=utf-8", _told(error)

    def _metrics(self) -> tuple[int, str, bytes]:
        states: list[tuple[str, dict[str, Any] | Unreadable]] = []
        with self._lock:
            for run in self._runs:
                try:
                    run.refresh()
                    states.append((str(run.folder), run.state()))
                except (OSError, ValueError) as error:  # a scraper requests again
                    states.append((str(run.folder),
                                   Unreadable(run.sync, one_line(str(error), 2000))))
            return 200, _PROMETHEUS, exposition(states).encode()


def _told(error: Exception) -> bytes:
    return f"{one_line(str(error), 2000)}\n".encode()


def _number(asked: dict[str, list[str]], name: str) -> int:
    """Return the number `name` of a query, of at most 18 digits; -1 without one."""
    return int(asked.get(name, ["-1"])[0][:18])


class _Handler(BaseHTTPRequestHandler):
    server: Watch
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds without a request, after which a connection is closed

    def do_GET(self) -> None:
        host = re.sub(r":\d*$", "", self.headers.get("Host", ""))
        status, kind, body = self.server.answer(self.path) if host in _NAMES else (
            403, "text/plain", b"this page is for 127.0.0.1 and localhost\n")
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
