"""The page itself: one HTML file with its style, its scripts and plotly's.

The served page requests its data; a report contains the data and requests nothing. Both have the
same scripts. A policy in the page forbids the browser to load anything from elsewhere.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wbsp.figures.colors import PHASE_COLORS, sync_look
from wbsp.runlog.files import to_json
from wbsp.watch.run import WatchedRun

_HERE = Path(__file__).parent
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_SCRIPTS = ("spans.js", "charts.js", "tables.js", "page.js")


def html(runs: Sequence[WatchedRun], live: bool) -> bytes:
    """Return the page of `runs`: with their data, or (`live`) to be served separately from them.

    Raises ModuleNotFoundError, in one line, without plotly.
    """
    data: dict[str, Any] = {"live": live, "phases": [*PHASE_COLORS],
                            "colors": [*PHASE_COLORS.values()], "runs": _looks(runs)}
    if not live:
        data["states"] = [run.state() for run in runs]
        data["spans"] = [base64.b64encode(gzip.compress(run.pack(), 6, mtime=0)).decode()
                         for run in runs]
    scripts = [_plotly(), *((_HERE / name).read_text(encoding="utf-8") for name in _SCRIPTS)]
    parts = {"policy": _policy(scripts, live), "data": _inside(to_json(data)),
             "style": (_HERE / "page.css").read_text(encoding="utf-8"),
             "scripts": "\n".join(f"<script>{script}</script>" for script in scripts)}
    template = (_HERE / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{(\w+)\}", lambda match: parts[match[1]], template).encode()


def _looks(runs: Sequence[WatchedRun]) -> list[dict[str, str]]:
    """Return name, color and dash of each run: the color is its model's, as in the figures, and
    runs of one color differ by the dash."""
    used: Counter[str] = Counter()
    looks = []
    for run in runs:
        color, dash = sync_look(run.sync)
        number = used[color] + (dash != "-")
        looks.append({"name": run.name, "color": color, "dash": _DASHES[number % len(_DASHES)]})
        used[color] += 1
    return looks


def _plotly() -> str:
    """Return the JavaScript of plotly, from its Python package."""
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError:
        raise ModuleNotFoundError("the page needs plotly; install it with: pip install "
                                  "plotly", name="plotly") from None
    return str(get_plotlyjs())


def _policy(scripts: Sequence[str], live: bool) -> str:
    """Return the content security policy: only these scripts, the page's styles, and data from its
    own address."""
    hashes = " ".join("'sha256-" + base64.b64encode(
        hashlib.sha256(script.encode()).digest()).decode() + "'" for script in scripts)
    return (f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
            f"img-src data: blob:; connect-src {chr(39)}{'self' if live else 'none'}{chr(39)}; "
            "base-uri 'none'; form-action 'none'")


def _inside(data: bytes) -> str:
    """Return JSON that is safe inside a script element, whatever its strings hold."""
    return data.decode().replace("<", "\\u003c")
