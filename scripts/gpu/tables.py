"""The rows of the parts as tables for a person."""

from __future__ import annotations

from typing import Any

from scripts.gpu.parts import Rows
from scripts.harness import in_words, print_table


def show(part: str, rows: Rows) -> None:
    """Print the rows of a part."""
    {"versions": _versions, "hook": _hook, "together": _together, "h1": _h1,
     "trips": _trips}[part.partition(" ")[0]](rows)


def _versions(rows: Rows) -> None:
    exact, trained = rows
    wrong = ", ".join(f"{act} {number}" for act, number in exact["wrong"].items())
    print_table(("versions against the CPU's", "found", "allowed", ""), [
        (f"values that are not equal, of {exact['floats']:,}", wrong, "0", _word(exact)),
        (f"difference after {trained['steps']} steps / way from W_0",
         f"{trained['difference']:.1e}", f"{trained['tolerance']:g}", _word(trained))])
    print(f"vectors lie in the memory of the {'host' if exact['host'] else 'device'}")


def _hook(rows: Rows) -> None:
    print_table(("hook", "batch", "MB", "plain ms/step", "as a worker", "in the hook ms",
                 "overhead %"),
                [(row["network"], str(row["batch_size"]), f"{row['bytes'] / 1e6:.1f}",
                  *(in_words(row[key]) for key in ("plain_ms", "synced_ms", "hook_ms",
                                                   "overhead_percent"))) for row in rows])


def _together(rows: Rows) -> None:
    print_table(("two workers on it", "batch", "steps/s alone", "steps/s both", "both / alone"),
                [(row["network"], str(row["batch_size"]), *(
                    " ".join(f"{speed:.1f}" for speed in row[key]) for key in ("alone", "both")),
                  in_words(row["both/alone"])) for row in rows])


def _h1(rows: Rows) -> None:
    print_table(("H1", "version", "steps", "computing %", "waiting %"),
                [(row["sync"], str(row["version"]), " / ".join(map(str, row["steps"])), *(
                    " / ".join(f"{100 * one[key]:.1f}" for one in row["shares"])
                    for key in ("compute", "wait"))) for row in rows])


def _trips(rows: Rows) -> None:
    print_table(("round trip, MB", "trips", "ms", "trip / copies to the host and back"),
                [(f"{row['bytes'] / 1e6:.1f}", str(row["trips"]), in_words(row["ms"]),
                  in_words(row["trip/copies"])) for row in rows])


def _word(row: dict[str, Any]) -> str:
    return "ok" if row["ok"] else "WRONG"
