"""The trace of a run: all its spans and events, for https://ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from wbsp.core.stats import Lane
from wbsp.figures.load import VERSIONS
from wbsp.runlog.files import to_json
from wbsp.runlog.reader import Run


def write_trace(run: Run, path: Path) -> Path:
    """Write all spans and server events of a run as a Chrome trace (JSON, microseconds)."""
    with open(path, "wb") as file:
        file.write(b'{"displayTimeUnit": "ms", "traceEvents": [')
        for number, event in enumerate(_trace_events(run)):
            file.write((b",\n" if number else b"\n") + to_json(event))
        file.write(b"\n]}\n")
    return path


def _trace_events(run: Run) -> Iterator[dict[str, Any]]:
    """Process 0 is the server, process i + 1 worker i; a thread is a lane."""
    lanes = {lane: thread for thread, lane in enumerate(get_args(Lane))}
    yield _name("process_name", 0, 0, f"server ({run.settings.get('sync', 'unknown')})")
    yield _name("thread_name", 0, 0, "versions")
    yield _name("thread_name", 0, 1, "other events")
    for worker, spans in run.spans.items():
        yield _name("process_name", worker + 1, 0, f"worker {worker}")
        for lane, thread in lanes.items():
            yield _name("thread_name", worker + 1, thread, lane)
        for span in spans:
            extra = {k: v for k, v in span.items() if k not in ("t", "seconds", "lane", "kind")}
            yield {"name": span["kind"], "cat": span["lane"], "ph": "X", "ts": span["t"] * 1e6,
                   "dur": span["seconds"] * 1e6, "pid": worker + 1, "tid": lanes[span["lane"]],
                   "args": extra}
    for event in run.events:
        fields = {k: v for k, v in event.items() if k not in ("t", "kind")}
        made = event["kind"] in VERSIONS
        # A version is drawn through all processes ("g"), anything else on the server's ("p").
        yield {"name": f"v{event['version']}" if made else event["kind"], "cat": event["kind"],
               "ph": "i", "s": "g" if made else "p", "ts": event["t"] * 1e6, "pid": 0,
               "tid": 0 if made else 1, "args": fields}


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
