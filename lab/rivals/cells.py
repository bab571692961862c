"""Cells: clusters with lengths of runs, as `lab/reports/lm.toml` has them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wbsp import units
from wbsp.simulate.study.spec import ClusterSpec, Group
from wbsp.simulate.study.worth import fastest
from wbsp.simulate.world.machine import INF
from wbsp.simulate.world.server import ServerSpec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).parents[1] / "reports/lm.toml"
_KEYS = {"times", "lengths", "bytes", "fixed", "changes", "lose", "join"}


@dataclass(frozen=True)
class Cell:
    """A cluster and how long it trains.

    Attributes:
        name: of the cell.
        spec: the machines, at the batch of the file.
        lengths: seconds of its runs.
        bytes: of the model, in its own.
        law: of its fastest machine's steps: cells with the same one share a lone machine.
    """

    name: str
    spec: ClusterSpec
    lengths: tuple[float, ...]
    bytes: float
    law: str

    @property
    def ideal(self) -> float:
        """R: the sum of the speeds over the fastest's, of those present at the begin."""
        groups = tuple(group for group in self.spec.groups if not group.join)
        present = ClusterSpec(groups)
        return present.pace / fastest(present, 1).pace

    @property
    def alone(self) -> ClusterSpec:
        """The fastest machine, without a network."""
        [group] = fastest(self.spec, 1).groups
        law = Group(1, group.step_seconds, group.fixed_seconds, jitter=group.jitter)
        return ClusterSpec((law,), model_bytes=0.0, batch_size=self.spec.batch_size)


@dataclass(frozen=True)
class Entry:
    """What is trained in cells, and what is swept for it.

    Attributes:
        name: a rival or a model of wbsp's, with options.
        settings: texts such as "batch=2:lr=1e-3:beta1=0".
        lengths: seconds of its runs; empty: those of each cell.
        only: names of cells; empty: all.
    """

    name: str
    settings: tuple[str, ...]
    lengths: tuple[float, ...] = ()
    only: tuple[str, ...] = ()


def read(path: Path = FILE) -> tuple[dict[str, Cell], list[Entry]]:
    """Return the cells by name, and the entries.

    Raises:
        ValueError: a key or value is bad; one line.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        step, line = content["step"], content["line"]
        cells = {name: _cell(name, one, step, line) for name, one in content["cells"].items()}
        entries = [Entry(one["name"], tuple(one["settings"]),
                         tuple(map(float, one.get("lengths", ()))), tuple(one.get("only", ())))
                   for one in content["entries"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    for entry in entries:
        for name in entry.only:
            if name not in cells:
                raise ValueError(f"{path}: entry {entry.name} names the cell {name}, which the "
                                 "file does not have")
    return cells, entries


def _cell(name: str, one: Mapping[str, Any], step: Mapping[str, Any],
          line: Mapping[str, Any]) -> Cell:
    if unknown := sorted(one.keys() - _KEYS):
        raise ValueError(f"cell {name} has an unknown key {unknown[0]!r}; known: "
                         f"{', '.join(sorted(_KEYS))}")
    seconds, latency = units.seconds(step["seconds"]), units.seconds(line["latency"])
    bandwidth, fixed = units.bandwidth(line["bandwidth"]), float(one.get("fixed", 0.0))
    groups = []
    for place, times in enumerate(one["times"]):
        def of(key: str, default: Any, place: int = place) -> Any:
            return one.get(key, {}).get(str(place), default)

        changes = tuple((units.seconds(change["at"]), float(change["factor"]))
                        for change in of("changes", ()))
        groups.append(Group(
            1, times * seconds, fixed * times * seconds, jitter=step["jitter"], changes=changes,
            join=units.seconds(of("join", 0.0)), lose=_seconds(of("lose", INF)), latency=latency,
            up=bandwidth, down=bandwidth))
    server = ServerSpec(bandwidth, bandwidth, detect_seconds=units.seconds(line["detect"]))
    return Cell(name, ClusterSpec(tuple(groups), server, batch_size=step["batch"]),
                tuple(map(float, one["lengths"])), float(one.get("bytes", 1.0)),
                f"fixed={fixed:g}" if fixed else "")


def _seconds(value: Any) -> float:
    return INF if value == INF else units.seconds(value)
