"""The numbers of runs in Prometheus's text format, for scrapers of `/metrics`.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from wbsp.limits import one_line
from wbsp.runlog.files import UNREADABLE

METRICS = {  # name -> type, and its help text
    "wbsp_readable": ("gauge", "whether the run's files can be read, 0 or 1"),
    "wbsp_ended": ("gauge", "whether the run has ended, 0 or 1"),
    "wbsp_duration_seconds": ("gauge", "from the start of training to the newest event"),
    "wbsp_version": ("gauge", "number of the newest version"),
    "wbsp_training_loss": ("gauge", "mean loss of the workers' newest steps"),
    "wbsp_epochs_trained": ("gauge", "complete passes over the data that the workers share"),
    "wbsp_loss": ("gauge", "of the newest evaluated version"),
    "wbsp_accuracy": ("gauge", "of the newest evaluated version, 0 to 1"),
    "wbsp_bits_per_byte": ("gauge", "loss of the newest evaluated version, of text"),
    "wbsp_staleness_mean": ("gauge", "mean staleness of accepted pushes, in versions"),
    "wbsp_worker_active": ("gauge", "whether the worker takes part, 0 or 1"),
    "wbsp_worker_behind": ("gauge", "workers behind a worker that is a site"),
    "wbsp_worker_steps_total": ("counter", "steps that the server has received"),
    "wbsp_worker_samples_total": ("counter", "examples that the server has received"),
    "wbsp_worker_pushes_total": ("counter", "updates that the server has received"),
    "wbsp_worker_rejected_total": ("counter", "updates that were rejected, by reason"),
    "wbsp_worker_speed_of_best": ("gauge", "speed of the worker, relative to the fastest"),
    "wbsp_worker_seconds_total": ("counter", "time of the worker, by phase"),
}


class Unreadable(NamedTuple):
    """A run whose files cannot be read, and why, in one line."""

    sync: str
    reason: str


def exposition(states: Iterable[tuple[str, dict[str, Any] | Unreadable]]) -> str:
    """Return the metrics of runs, from their places and states for the page (`WatchedRun.state`).

    The label `run` is the place, because a name on the page depends on the other runs.
    """
    found: dict[str, list[str]] = {name: [] for name in METRICS}
    bad: list[str] = []
    for place, state in states:
        if isinstance(state, Unreadable):
            found["wbsp_readable"].append(_line(
                "wbsp_readable", {"run": place, "sync": state.sync}, 0))
            bad.append(f"# cannot read {one_line(place)}: {state.reason}\n")
            continue
        run = {"run": place, "sync": str(state["settings"].get("sync", "unknown"))}
        try:
            lines = [(name, _line(name, {**run, **labels}, value))
                     for name, labels, value in _samples(state) if value is not None]
        except UNREADABLE as error:  # a summary that no server wrote
            lines = [("wbsp_readable", _line("wbsp_readable", run, 0))]
            bad.append(f"# cannot read {one_line(place)}: {one_line(repr(error))}\n")
        for name, line in lines:
            found[name].append(line)
    return "".join(f"# HELP {name} {METRICS[name][1]}\n# TYPE {name} {METRICS[name][0]}\n"
                   + "".join(f"{line}\n" for line in lines)
                   for name, lines in found.items() if lines) + "".join(bad)


def _line(name: str, labels: dict[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {float(value)!r}"


def _samples(state: dict[str, Any]) -> Iterator[tuple[str, dict[str, str], float | None]]:
    summary = state["summary"]
    yield "wbsp_readable", {}, True
    yield "wbsp_ended", {}, state["ended"]
    yield "wbsp_duration_seconds", {}, state["duration"]
    yield "wbsp_version", {}, summary["version"]
    yield "wbsp_training_loss", {}, next(reversed(state["training"]["loss"]), None)
    yield "wbsp_epochs_trained", {}, state["epoch"] and state["epoch"]["trained"]
    yield "wbsp_loss", {}, next(reversed(state["evaluations"]["loss"]), None)
    yield "wbsp_accuracy", {}, next(reversed(state["evaluations"]["accuracy"]), None)
    yield "wbsp_bits_per_byte", {}, next(reversed(state["evaluations"]["bits_per_byte"]), None)
    yield "wbsp_staleness_mean", {}, summary["staleness"]["mean"]
    for worker, one in summary["workers"].items():
        label = {"worker": worker}
        yield "wbsp_worker_active", label, int(worker) in state["active"]
        yield "wbsp_worker_behind", label, state["sites"].get(int(worker))
        yield "wbsp_worker_steps_total", label, one["steps"]
        yield "wbsp_worker_samples_total", label, one["samples"]
        yield "wbsp_worker_pushes_total", label, one["pushes"]
        yield "wbsp_worker_speed_of_best", label, one["vs_best"]
        for reason, count in one["rejected_why"].items():
            yield "wbsp_worker_rejected_total", {**label, "reason": reason}, count
        for phase, seconds in one["seconds"].items():
            yield "wbsp_worker_seconds_total", {**label, "phase": phase}, seconds


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
