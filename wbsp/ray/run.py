"""`run`: a server, perhaps its standby, and workers on a Ray cluster, from begin to end.

The driver, where `run` is called, watches over all of them. It is the one process that must not
die: Ray ends a job's actors with its driver. `name` then goes on where the run was.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from wbsp.ray.placement import (
    Needs,
    RunError,
    actor_options,
    checked,
    hosts_with,
    of_workers,
    reserved,
)
from wbsp.ray.places import Place, one_line
from wbsp.ray.server import IN_ORDER, START_PATIENCE, Ending, Server
from wbsp.ray.worker import Outcome, Script, Worker
from wbsp.runlog.console import say

STOP_PATIENCE = 30.0  # seconds for a run that is ended early to be ended in good order
_LOOK = 0.5  # seconds between two looks at what time alone brings


@dataclass(frozen=True)
class Result:
    """What a run came to.

    returned: what `train` returned in each worker, by index; None for one that is missing
    missing:  worker -> why it was not there at the end
    summary:  the content of the run's summary.json
    folder:   of the run's files, as the node of the server sees it
    """

    returned: list[Any]
    missing: dict[int, str]
    summary: dict[str, Any]
    folder: str


def run(train: Callable[..., Any] | Script, workers: int | Sequence[Needs], *,
        config: Any = None, sync: str = "pcc", flags: Sequence[str] = (),
        storage: str | os.PathLike = "~/ray_results", name: str | None = None,
        standby: bool = False, server: Needs | None = None, strategy: str = "SPREAD",
        placement_timeout: float = 60.0, max_restarts: int = 5) -> Result:
    """Train on the Ray cluster that this process is connected to, else on the one that `ray.init`
    finds; return when the run has ended.

    train:             called in each worker, with `config` if there is one; a `fit` in it has a
                       `wbsp.SyncCallback()`. What it raises, this raises. After its process's
                       death it is called again, from its beginning
    workers:           how many, with a CPU each; or what each needs: [{"GPU": 1}, {"CPU": 4}]
    sync, flags:       synchronization model, and other flags of `python -m wbsp.ps`
    storage:           folder for the folders of runs, which all nodes see; one that only the
                       server's node sees does as long as that node lives
    name:              of this run's folder there; that of an earlier run goes on with it.
                       Default: a new one
    standby:           have one (docs/failure.md), on another node if there is room
    server:            what the server needs, and the standby; default: a CPU
    strategy:          of the placement group, in Ray's words
    placement_timeout: seconds to wait for room on the cluster
    max_restarts:      times in a row that a process which dies within a minute is started again

    Raises ValueError for bad arguments, and RunError, both in one line.
    """
    crew = of_workers(workers)
    least = checked("the server", {"CPU": 1} if server is None else server)
    folder = _folder(storage, name or f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}")
    if not ray.is_initialized():
        ray.init()
    needs = {"server": least, **({"standby": least} if standby else {}),
             **{f"worker {index}": need for index, need in enumerate(crew)}}
    with reserved(needs, strategy, placement_timeout) as group:
        cast = _Cast(group, needs, _Limits(max_restarts, placement_timeout), folder,
                     [f"--worker_num={len(crew)}", f"--sync={sync}", *flags],
                     ray.put((train, () if config is None else (config,))))
        try:
            say(f"wbsp.ray: {len(crew)} workers; the files are in {folder}")
            return cast.play()
        finally:
            cast.end()


def _folder(storage: str | os.PathLike, name: str) -> str:
    text = os.fspath(storage)
    if "://" in text:
        raise ValueError(f"storage is {text!r}: give a folder that the nodes see, not a URI")
    if not name or os.path.basename(name) != name or name in (".", ".."):
        raise ValueError(f"name is {name!r}: give the name of a folder in {text}")
    return os.path.join(os.path.abspath(os.path.expanduser(text)), name)


class _Limits(NamedTuple):
    restarts: int  # in a row
    placement: float  # seconds


class _Cast:
    """All processes of one run, as the driver has them placed and started again.

    train: reference to (function, its arguments)
    """

    def __init__(self, group: PlacementGroup, needs: dict[str, dict[str, float]],
                 limits: _Limits, folder: str, flags: list[str], train: Any):
        self._group, self._needs, self._limits = group, needs, limits
        self._folder, self._flags, self._train = folder, flags, train
        self._token = secrets.token_hex(32)
        self._addresses: dict[str, str] = {}  # "server", "standby" -> host:port
        self._servers = [self._server(who) for who in ("server", "standby") if who in needs]
        self._workers = [self._worker(index) for index in range(len(needs) - len(self._servers))]

    def play(self) -> Result:
        """The run from begin to end."""
        for place in self._servers:
            self._begin(place)
        while not (self._left and self._summaries):
            self._step()
            self._judge()
        missing = {index: place.gone for index, place in enumerate(self._workers) if place.gone}
        if missing:
            names = ", ".join(f"worker {index} ({why})" for index, why in missing.items())
            say(f"wbsp.ray: missing at the end: {names}")
        last = max(self._summaries, key=lambda ending: ending.epoch)
        return Result([place.ended and place.ended.value for place in self._workers], missing,
                      last.summary or {}, last.folder)

    def end(self) -> None:
        """End what still runs, the servers in good order."""
        with contextlib.suppress(RayError):
            stops = [place.actor.stop.remote(STOP_PATIENCE) for place in self._servers
                     if place.begun and not place.over]
            ray.wait(stops, num_returns=len(stops), timeout=STOP_PATIENCE + 5) if stops else None
        for place in (*self._workers, *self._servers):
            place.kill()

    @property
    def _left(self) -> bool:
        """All workers have come to an end."""
        return all(place.over for place in self._workers)

    @property
    def _summaries(self) -> list[Ending]:
        """Ends of servers that were there at the run's end; if none is to come, of any."""
        ends = [place.ended for place in self._servers if place.ended]
        known = [ending for ending in ends if ending.summary]
        return ends if not known and all(place.over for place in self._servers) else known

    def _server(self, who: str) -> Place:
        def make() -> tuple[Any, Any]:
            other = [f"--standby_of={self._addresses['server']}"] if who == "standby" else []
            actor = self._actor(who, Server, max_concurrency=2).remote(
                who, [*self._flags, *other], self._folder, self._token)
            before = self._addresses.get(who)
            return actor, actor.start.remote(
                before and int(before.rpartition(":")[2]), before is not None and who == "server")

        def work(actor: Any, address: str) -> Any:
            self._addresses[who] = address
            return actor.wait.remote()

        return Place(who, make, work, self._limits.restarts)

    def _worker(self, index: int) -> Place:
        def make() -> tuple[Any, Any]:
            actor = self._actor(f"worker {index}", Worker).remote(index)
            return actor, actor.ready.remote()

        def work(actor: Any, node: str) -> Any:
            return actor.train.remote(self._train, self._token, {
                "WBSP_SERVER": self._where(), "WBSP_WORKER_NUM": str(len(self._workers))})

        return Place(f"worker {index}", make, work, self._limits.restarts)

    def _actor(self, who: str, kind: type, **options: Any) -> Any:
        return ray.remote(kind).options(
            **actor_options(self._needs[who]), **options,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._group, list(self._needs).index(who)))

    def _where(self) -> str:
        """The servers' addresses, and behind them those that a server would have which is started
        again on another node: workers in mid-training try them in turn."""
        ports = [address.rpartition(":")[2] for address in self._addresses.values()]
        others = (f"{host}:{port}" for host in hosts_with(self._needs["server"]) for port in ports)
        return ",".join(dict.fromkeys([*self._addresses.values(), *others]))

    def _begin(self, place: Place) -> None:
        """Start a server for the first time. Raises RunError where it does not listen."""
        place.start_if_due()
        limit = START_PATIENCE + self._limits.placement
        if not ray.wait([place.waits], timeout=limit)[0]:
            raise RunError(f"the {place.name} was not started within {limit:g} s")
        try:
            place.read()
        except RayTaskError as error:
            raise RunError(f"the {place.name}: {one_line(error)}") from None
        if not place.begun:
            raise RunError(f"the {place.name}: {place.why}")

    def _step(self) -> None:
        """Wait for news of any process, for a moment, and take it in."""
        places = [place for place in (*self._servers, *self._workers) if not place.over]
        for place in places:
            place.start_if_due()
        waits = {place.waits: place for place in places if place.waits is not None}
        if not waits:
            time.sleep(_LOOK)
            return
        for reference in ray.wait(list(waits), num_returns=1, timeout=_LOOK)[0]:
            place = waits[reference]
            try:
                found = place.read()
            except RayTaskError as error:
                if place in self._workers:
                    raise
                place.died(one_line(error))
                continue
            if isinstance(found, Ending):
                self._server_ended(place, found)
            elif isinstance(found, Outcome):
                self._worker_ended(place, found)

    def _server_ended(self, place: Place, ending: Ending) -> None:
        over = self._left and any(worker.ended for worker in self._workers)
        if ending.code in IN_ORDER or over:
            place.ended = ending
        elif ending.code < 0 or len(self._servers) > 1:
            killed = f"it was killed by signal {-ending.code}"
            place.died(killed if ending.code < 0 else ending.said)
        else:
            raise RunError(f"the server ended with {ending.code}: {ending.said}; its output is in "
                           f"{self._folder}")

    def _worker_ended(self, place: Place, outcome: Outcome) -> None:
        if outcome.lost is None:
            place.ended = outcome
        elif any(server.ended for server in self._servers):
            place.give_up(outcome.lost)
        else:
            place.died(outcome.lost)

    def _judge(self) -> None:
        """See who is not waited for any more. Raises RunError where the run cannot go on."""
        limit = self._limits.placement + START_PATIENCE
        for place in self._servers:
            if place.waiting > limit:
                place.give_up(f"{place.why}, and it was not there again within {limit:g} s")
        if all(place.gone for place in self._servers):
            raise RunError(f"the run has no server any more: {self._servers[0].gone}; the files "
                           f"are in {self._folder}")
        if all(place.gone for place in self._workers):
            raise RunError(f"no worker is left: worker 0: {self._workers[0].gone}; the files are "
                           f"in {self._folder}")
        if any(place.ended for place in self._servers):
            for place in self._workers:
                if not (place.over or place.begun):
                    place.give_up(f"{place.why}; the run ended before it was there again")
