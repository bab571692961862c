"""The tables of the runs that are there."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from beside.plan import lone
from beside.run import Result

Row = tuple[str, str]  # entry, setting


def results(out: Path) -> list[Result]:
    """Return the last try of each run that is there."""
    found = {}
    for path in sorted(out.glob("*/*s/*/*/*/try-*/result.json")):
        found[path.parents[1]] = {**json.loads(path.read_text()), "group": path.parts[-7]}
    return list(found.values())


def losses(out: Path, base: str) -> str:
    """Return a table for each cell and length: every entry by its best setting.

    The best setting is that with the least loss of the lowest seed, which all have.

    Args:
        out: folder of the runs.
        base: entry whose loss the others' are compared with, seed by seed.
    """
    cells: dict[tuple[str, float], dict[Row, dict[int, Result]]] = defaultdict(
        lambda: defaultdict(dict))
    for one in results(out):
        if not one["event"] and one["loss"] is not None:
            cells[one["group"], one["wanted"]][one["entry"], one["setting"]][one["seed"]] = one
    for (cell, seconds), rows in list(cells.items()):  # the lone machine is in each cell's table
        if not cell.startswith("lone"):
            rows.update(cells.get((lone(cell), seconds), {}))
    text = []
    for (cell, seconds), rows in sorted(cells.items()):
        best: dict[str, Row] = {}
        for row, runs in rows.items():
            if row[0] not in best or _first(runs) < _first(rows[best[row[0]]]):
                best[row[0]] = row
        text += [f"\n{cell}, {seconds:g} s\n",
                 f"| entry | best setting (of) | loss | runs | minus {base} (pairs) | examples/s | "
                 "steps/s of each machine | KB a step | start, end s |",
                 "|---|---|---|---|---|---|---|---|---|"]
        against = rows[best[base]] if base in best else {}
        for row in sorted(best.values(), key=lambda row: _mean(rows[row].values(), "loss")):
            text.append(_line(row, rows[row], against,
                              sum(other[0] == row[0] for other in rows)))
    return "\n".join(text)


def _line(row: Row, runs: dict[int, Result], against: dict[int, Result], settings: int) -> str:
    some, pairs = list(runs.values()), sorted(runs.keys() & against.keys())
    minus = [runs[seed]["loss"] - against[seed]["loss"] for seed in pairs]
    steps = " + ".join(f"{statistics.mean(one['steps'][n] / one['seconds'] for one in some):.1f}"
                       for n in some[0]["steps"])
    moved = [one["bytes"] / sum(one["steps"].values()) for one in some if one["bytes"] is not None]
    return (f"| {row[0]} | {row[1]} ({settings}) | {_mean(some, 'loss'):.4f}"
            f"{' *' if any(one['off'] for one in some) else ''} | {len(some)} | "
            f"{f'{statistics.mean(minus):+.4f} ({len(minus)})' if minus else '-'} | "
            f"{statistics.mean(one['examples'] / one['seconds'] for one in some):.1f} | {steps} | "
            f"{f'{statistics.mean(moved) / 1000:.1f}' if moved else '?'} | "
            f"{_mean(some, 'start_seconds'):.1f}, {_mean(some, 'end_seconds'):.1f} |")


def _first(runs: dict[int, Result]) -> float:
    return runs[min(runs)]["loss"]


def _mean(runs: Iterable[Result], name: str) -> float:
    return statistics.mean(one[name] for one in runs)


def happened(out: Path) -> str:
    """Return the table of the runs in which something happened."""
    text = ["\n| cell | event | entry | ended | seconds (undisturbed) | longest pause of "
            "each machine s | examples trained twice, never | loss | last words |",
            f"|{'---|' * 9}"]
    found = [one for one in results(out) if one["event"]]
    for one in sorted(found, key=lambda one: (one["group"], one["event"], one["entry"])):
        words = [lines[-1] for name, lines in one["said"].items() if lines and name != "evaluate"]
        known = one["entry"].partition(":")[0] in ("lone", "ddp", "wbsp")  # one order for all
        cells = [one["group"], one["event"], one["entry"]]
        if one["seconds"] is None:
            cells += ["no", f"- ({one['wanted']:.0f})", "-", "?"]
        else:
            cells += ["yes", f"{one['seconds']:.0f} ({one['wanted']:.0f})",
                      ", ".join(f"{pause:.1f}" for pause in one["pauses"].values()),
                      f"{one['twice']}, {one['never']}" if known else "?"]
        cells += ["-" if one["loss"] is None else f"{one['loss']:.4f}",
                  " / ".join(word.replace("|", " ")[:160] for word in words)]
        text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text) if found else ""
