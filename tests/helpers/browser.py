"""Drive a real browser without a window through a pipe (Chromium's DevTools protocol)."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE = 120.0  # seconds; only there so that nothing hangs for ever


def find_browser() -> str | None:
    """Return the path of a Chromium; the variable CHROMIUM overrides it."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser(contextlib.AbstractContextManager):
    """A browser with one page of 1366 x 900 pixels.

    Attributes:
        address: of the open page.
        trouble: errors in the console since the page was opened: exceptions, refused scripts.
        requests: addresses that the page has requested.
    """

    def __init__(self, program: str, folder: Path):
        theirs, self._send = os.pipe()
        self._receive, answers = os.pipe()
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{theirs} 4>&{answers}', "bash", program,
             "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--hide-scrollbars", "--window-size=1366,900",
             "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"],
            pass_fds=(theirs, answers), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(theirs)
        os.close(answers)
        self._waiting = b""
        self._number = 0
        self.address = ""
        self.trouble: list[str] = []
        self.requests: list[str] = []
        self._session: str | None = None
        [page] = list(self._page_targets())
        self._session = self._call("Target.attachToTarget", targetId=page,
                                   flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._send)
        os.close(self._receive)

    @property
    def pid(self) -> int:
        """Return the id of the browser's first process, the parent of the others."""
        return self._process.pid

    def open(self, address: str) -> None:
        """Open the page and wait until it reports that it was drawn."""
        self._call("Page.navigate", url="about:blank")
        self.trouble.clear()
        self.requests.clear()
        self._call("Page.navigate", url=address)
        self.address = address
        self.until("document.body && document.body.dataset.drawn")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True,
                            awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, expression: str) -> Any:
        """Wait until the expression is true, and return its value."""
        end = time.monotonic() + PATIENCE
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < end, f"waited for {expression}: {self.trouble}"
            time.sleep(0.02)
        return value

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send a mouse event ("mouseMoved", "mousePressed", "mouseReleased") at a point of the
        window.
        """
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", **more)

    def picture(self, path: Path) -> None:
        """Save the visible part of the page as a PNG."""
        path.write_bytes(base64.b64decode(self._call("Page.captureScreenshot")["data"]))

    def _page_targets(self) -> list[str]:
        end = time.monotonic() + PATIENCE
        while True:
            found = [target["targetId"] for target in
                     self._call("Target.getTargets")["targetInfos"] if target["type"] == "page"]
            if found:
                return found[:1]
            assert time.monotonic() < end, "the browser has no page"
            time.sleep(0.02)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer.get("method"), answer.get("params", {}))

    def _note(self, method: str | None, said: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.trouble.append(str(said["exceptionDetails"]))
        elif method == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.trouble.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._waiting:
            ready, _, _ = select.select([self._receive], [], [], max(0, end - time.monotonic()))
            data = os.read(self._receive, 1 << 20) if ready else b""
            assert data, f"the browser does not answer; it ended with {self._process.poll()}"
            self._waiting += data
        message, _, self._waiting = self._waiting.partition(b"\0")
        return json.loads(message)
