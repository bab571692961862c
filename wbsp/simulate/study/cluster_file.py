"""Cluster files: specs of clusters, written in TOML."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from wbsp import units
from wbsp.simulate.study.spec import ClusterSpec, Group, SiteSpec
from wbsp.simulate.world.machine import INF
from wbsp.simulate.world.server import ServerSpec, check_number

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CLUSTERS = Path(__file__).parents[1] / "clusters"
LINK = {"bandwidth": units.bandwidth, "ingress": units.bandwidth, "egress": units.bandwidth}


def read_cluster(path: str | Path) -> ClusterSpec:
    """Return the spec in a TOML file.

    Args:
        path: a file, or the name of one in the package, such as "wan".

    Raises:
        ValueError: a key or value is not valid; one line that names file and key.
        FileNotFoundError: the file does not exist.
    """
    path = Path(path)
    if not path.is_file():
        included = {one.stem: one for one in CLUSTERS.glob("*.toml")}
        if str(path) not in included:
            raise FileNotFoundError(f"cluster file {path} does not exist; give one, or the name of "
                                    f"one that wbsp has: {', '.join(sorted(included))}")
        path = included[str(path)]
    text = path.read_text(encoding="utf-8")
    try:
        content = tomllib.loads(text)
        top = _known(content, {"model_bytes": units.size, "batch_size": _count, "server": _server,
                               "workers": lambda groups: _groups(groups, path.parent),
                               "sites": lambda sites: _sites(sites, path.parent)})
        workers, sites = top.pop("workers", ()), top.pop("sites", [])
        if workers and sites:
            raise ValueError("give [[workers]] or [[sites]], not both; workers beside the server "
                             "are a site whose line has no bandwidth")
        if not workers and not sites:
            raise ValueError("no [[workers]]: a cluster needs at least one group of them")
    except tomllib.TOMLDecodeError as error:
        hint = "".join(f"; write [[{one}]] before each group of {one}, in two brackets"
                       for one in ("workers", "sites") if f"\n[{one}]" in f"\n{text}")
        raise ValueError(f"{path}: {error}{hint}") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    for place, (_, groups) in enumerate(sites):
        workers += tuple(replace(group, site=place) for group in groups)
    return ClusterSpec(workers, text=text, sites=tuple(site for site, _ in sites), **top)


def _server(given: Any) -> ServerSpec:
    server = _directed(_known(_table(given), {
        **LINK, "shards": _shards, "apply_seconds": units.seconds,
        "detect_seconds": units.seconds}), "ingress", "egress")
    return replace(ClusterSpec.server, **server)


def _shards(given: Any) -> int:
    if isinstance(given, list):
        raise ValueError("shards have no links of their own: give their number; each has an "
                         "interface like the server's")
    count = _count(given)
    check_number(count, f"{count} shards")
    return count


def _directed(link: dict[str, Any], *directions: str) -> dict[str, Any]:
    """Return `link` with its bandwidth in each direction that has none."""
    both = link.pop("bandwidth", None)
    return link if both is None else {**dict.fromkeys(directions, both), **link}


def _groups(given: Any, folder: Path) -> tuple[Group, ...]:
    if not isinstance(given, list):
        raise ValueError("is not a list of tables; write [[workers]]")
    groups = []
    for number, table in enumerate(given, 1):
        try:
            groups.append(_group(_table(table), folder))
        except ValueError as error:
            raise ValueError(f"group {number}: {error}") from None
    return tuple(groups)


def _sites(given: Any, folder: Path) -> list[tuple[SiteSpec, tuple[Group, ...]]]:
    """Return each site, and its workers."""
    if not isinstance(given, list):
        raise ValueError("is not a list of tables; write [[sites]]")
    sites = []
    for number, table in enumerate(given, 1):
        try:
            site = _directed(_known(_table(table), {
                "count": _count, "latency": units.seconds, "bandwidth": units.bandwidth,
                "up": units.bandwidth, "down": units.bandwidth, "server": _server,
                "workers": lambda groups: _groups(groups, folder)}), "up", "down")
            groups, count = site.pop("workers", ()), site.pop("count", 1)
            if not groups:
                raise ValueError("no [[sites.workers]]: a site needs at least one group of them")
            made = SiteSpec(**site)
            if made.server.shards > 1:
                raise ValueError("server: shards: the server of a site has none")
            made.machine(0)  # raises ValueError for what cannot be
        except ValueError as error:
            raise ValueError(f"site {number}: {error}") from None
        sites += [(made, groups)] * count
    return sites


def _group(given: dict[str, Any], folder: Path) -> Group:
    group = _known(given, {
        "count": _count, "step_seconds": units.step, "speed": _positive, "jitter": _number,
        "trace": lambda name: _trace(folder / str(name)), "sleep_seconds": units.seconds,
        "changes": lambda changes: _pairs(changes, "at", units.seconds, "factor", _positive),
        "stalls": lambda stalls: _pairs(stalls, "from", units.seconds, "to", units.seconds),
        "join": units.seconds, "leave": units.seconds, "lose": units.seconds,
        "spread": units.seconds, "latency": units.seconds, "bandwidth": units.bandwidth,
        "up": units.bandwidth, "down": units.bandwidth})
    if sum(key in group for key in ("trace", "step_seconds", "speed")) != 1:
        raise ValueError("give one of step_seconds, trace and speed: how long a step takes")
    fixed, example = group.pop("step_seconds", (0.0, None))
    if example is None:
        group["step_seconds"] = fixed
    else:
        group |= {"step_seconds": fixed + example, "fixed_seconds": fixed,
                  "example_seconds": example}
    if "trace" in group and "jitter" in group:
        raise ValueError("jitter does not apply to trace, which has its own; give one of them")
    if "leave" in group and "lose" in group:
        raise ValueError("give leave or lose, not both")
    end = min(group.get("leave", INF), group.get("lose", INF))
    come = group.get("join", 0.0) + group.get("spread", 0.0)
    if not come <= end:
        raise ValueError(f"leaves at {end:g} s, before it joins at {come:g} s")
    made = Group(**_directed(group, "up", "down"))
    replace(made, speed=None).machine(0, 0)  # raises ValueError for what cannot be
    return made


def _known(given: dict[str, Any], keys: dict[str, Callable[[Any], Any]]) -> dict[str, Any]:
    """Return key -> value, parsed by the function of `keys` for this key."""
    result = {}
    for key, value in given.items():
        if key not in keys:
            raise ValueError(f"unknown key {key!r}; known: {', '.join(keys)}")
        try:
            result[key] = keys[key](value)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return result


def _table(given: Any) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise ValueError(f"{given!r} is not a table")
    return given


def _pairs(given: Any, first: str, parse_first: Callable[[Any], float], second: str,
           parse_second: Callable[[Any], float]) -> tuple[tuple[float, float], ...]:
    """Parse pairs: [{at = 100, factor = 4}, ...] -> ((100.0, 4.0), ...)."""
    if not isinstance(given, list):
        raise ValueError(f"{given!r} is not a list of {{{first} = ..., {second} = ...}}")
    pairs = []
    for table in given:
        pair = _known(_table(table), {first: parse_first, second: parse_second})
        if len(pair) < 2:
            raise ValueError(f"{table!r} needs both {first} and {second}")
        pairs.append((pair[first], pair[second]))
    return tuple(pairs)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is not a whole number of 1 or more")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < INF:
        raise ValueError(f"{value!r} is not a number of 0 or more")
    return float(value)


def _positive(value: Any) -> float:
    if not (number := _number(value)):
        raise ValueError("must be above 0")
    return number


def _trace(path: Path) -> tuple[float, ...]:
    """Read recorded seconds, one step a line."""
    if not path.is_file():
        raise ValueError(f"file {path} does not exist")
    steps = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            try:
                steps.append(units.seconds(line))
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
    if not steps:
        raise ValueError(f"{path} holds no step time; write one a line")
    return tuple(steps)
