"""What a run is. Nothing here needs a framework: the command and every process read it."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent


class Cell(NamedTuple):
    """Machines and what is trained on them.

    Attributes:
        name: in cells.toml.
        slow: machine -> how many times longer than the first its step lasts.
        mbit: of each machine's line, each way; None: all are on loopback.
        model: the network, by the name that `models.gpt.shape` reads.
    """

    name: str
    slow: tuple[float, ...]
    mbit: float | None
    model: str


class Setting(NamedTuple):
    """What is swept: the examples of a machine's step on average, AdamW's rate and beta1."""

    batch: int
    lr: float
    beta1: float = 0.9

    def __str__(self) -> str:
        return f"batch={self.batch}:lr={self.lr:g}" + (
            "" if self.beta1 == 0.9 else f":beta1={self.beta1:g}")


def options(text: str) -> dict[str, str]:
    """Return the options of "uneven=true:outer=qhm". Raises ValueError, in one line."""
    pairs = [part.partition("=") for part in text.split(":") if part]
    if bad := [key for key, sign, value in pairs if not (key and sign and value)]:
        raise ValueError(f"{text!r}: {bad[0]!r} has no value; write name=value:name=value")
    return {key: value for key, _, value in pairs}


def setting(text: str) -> Setting:
    """Return the setting of "batch=4:lr=2e-3:beta1=0". Raises ValueError, in one line."""
    given = options(text)
    try:
        found = Setting(int(given.pop("batch")), float(given.pop("lr")),
                        float(given.pop("beta1", "0.9")))
    except (KeyError, ValueError):
        raise ValueError(f"setting {text!r}: write batch=4:lr=2e-3, and :beta1=0 if so") from None
    if given or found.batch < 1 or not found.lr > 0 or not 0 <= found.beta1 < 1:
        raise ValueError(f"setting {text!r}: batch >= 1, lr > 0, 0 <= beta1 < 1, nothing else")
    return found


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run, as each of its processes reads it from plan.json.

    Attributes:
        cell, entry, setting: their names and texts.
        total: examples of the whole run, of all machines together; the schedule ends with them.
        slow: machine -> how many times longer its step lasts. `sleeps`: by sleeping in it; else
            other processes take its core.
        begin: machines that the run begins with; others join later.
        addresses: machine -> where it listens. `ports`: that are free.
    """

    cell: str
    entry: str
    setting: str
    seed: int
    total: int
    model: str
    slow: tuple[float, ...]
    sleeps: bool = True
    begin: int = 0
    addresses: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return the entry without its options."""
        return self.entry.partition(":")[0]

    @property
    def options(self) -> dict[str, str]:
        """Return the entry's options."""
        return options(self.entry.partition(":")[2])

    def whole(self, name: str, default: int) -> int:
        """Return an option that is a whole number."""
        return int(self.options.get(name, default))

    @property
    def given(self) -> Setting:
        """Return the setting."""
        return setting(self.setting)

    def write(self, folder: Path) -> None:
        """Write plan.json."""
        (folder / "plan.json").write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @staticmethod
    def read(folder: Path) -> Plan:
        """Read plan.json."""
        found = json.loads((folder / "plan.json").read_text())
        return Plan(**found | {key: tuple(found[key]) for key in ("slow", "addresses", "ports")})


def lone(cell: str) -> str:
    """Return the name of a cell's runs of the fastest machine alone."""
    return f"lone-{cell.replace('-100mbit', '')}"


def shares(count: int, slow: Sequence[float]) -> list[int]:
    """Divide `count` examples by speed, so that the last is ready early; each has one at least."""
    parts = [1] * len(slow)
    while sum(parts) < count:
        parts[min(range(len(slow)), key=lambda i: (parts[i] + 1) * slow[i])] += 1
    return parts


def file_name(text: str) -> str:
    """Return a text as a part of a path."""
    return re.sub(r"[^\w.=,+-]", ",", text)


def data(path: Path = HERE / "cells.toml") -> tuple[dict[str, Cell], dict[str, list[str]]]:
    """Return the cells by name, and entry -> settings."""
    found: dict[str, Any] = tomllib.loads(path.read_text())
    models = found["models"]
    cells = {name: Cell(name, tuple(map(float, one["slow"])), one.get("mbit"),
                        models[one.get("model", "small")])
             for name, one in found["cells"].items()}
    return cells, {one["name"]: one["settings"] for one in found["entries"]}
