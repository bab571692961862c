"""`python -m wbsp.watch` as a process, what its page says, and who hands out files."""

from __future__ import annotations

import base64
import gzip
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import psutil
from jobs import Job, Jobs


class Page:
    """The page of one run, watched by a process of its own."""

    def __init__(self, jobs: Jobs, address: str, *flags: str, **environment: str):
        """`address`: of the server; the mirror's folder lies in the folder of `jobs`."""
        (jobs.folder / "mirrors").mkdir(exist_ok=True)
        self.mirrors = jobs.folder / "mirrors"
        self.job: Job = jobs.start("watch", "-m", "wbsp.watch", address, *flags,
                                   TMPDIR=str(self.mirrors), **environment)
        line = self.job.until("run at http|^watch: ")
        self._address = re.search(r"http://127\.0\.0\.1:\d+/", line)[0]

    def state(self) -> dict[str, Any]:
        """What the page shows at this moment."""
        with urllib.request.urlopen(f"{self._address}run/0", timeout=30) as answer:
            return json.load(answer)

    def ends(self, signum: int) -> None:
        """It ends in good order, and leaves nothing."""
        self.job.signal(signum)
        assert self.job.ends(30) == 0, self.job.text
        self.job.was_clean()
        assert not list(self.mirrors.iterdir())


def data_of(report: Path) -> dict[str, Any]:
    """What a report holds; spans as bytes."""
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>',
                     report.read_text(), re.DOTALL)
    data = json.loads(text[1])
    return data | {"spans": [gzip.decompress(base64.b64decode(one)) for one in data["spans"]]}


def file_processes(server: Job) -> list[psutil.Process]:
    """Those that hand out the files of this server's run."""
    return [one for one in psutil.Process(server.process.pid).children()
            if "wbsp.ps.file_server" in one.cmdline()]
