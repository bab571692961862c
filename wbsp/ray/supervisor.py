"""The supervisor of a run on a Ray cluster: its processes, from start to end.

It lives in the driver, and restarts processes that die. Ray's own restarts (max_restarts) would
cover the death of an actor's process, but not that of the server below it, nor a server that
restarts on another node; they neither pause nor report what they do.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from wbsp import timeouts
from wbsp.ray.child import Child, one_line
from wbsp.ray.placement import RunError, actor_options, hosts_with
from wbsp.ray.server import IN_ORDER, Ending, Server
from wbsp.ray.worker import Outcome, Worker
from wbsp.runlog.console import say

_LOOK = 0.5  # seconds between two checks of timeouts


@dataclass(frozen=True)
class Result:
    """The result of a run, or of several if `train` has several fits.

    Attributes:
        returned: what `train` returned in each worker, by index; None for a missing worker.
        missing: worker -> why it was missing at the end.
        summary: content of the last run's summary.json.
        folder: path of that run's files on the server's node.
        folders: paths of the files of all runs, one for each fit, in order.
        best: path of the best version there, for `wbsp.load(folder, model, best=True)`; None: no
            process has evaluated versions by the metric that the flags name
            (docs/how-to/evaluation.md).
    """

    returned: list[Any]
    missing: dict[int, str]
    summary: dict[str, Any]
    folder: str
    folders: list[str]
    best: str | None = None


class Limits(NamedTuple):
    """Limits of a run's restarts."""

    restarts: int  # in a row
    placement: float  # seconds


class Supervisor:
    """All processes of one run, which the driver places and restarts.

    Args:
        train: reference to (function, its arguments).
    """

    def __init__(self, group: PlacementGroup, needs: dict[str, dict[str, float]],
                 limits: Limits, folder: str, flags: list[str], train: Any):
        self._group, self._needs, self._limits = group, needs, limits
        self._folder, self._flags, self._train = folder, flags, train
        self._token = secrets.token_hex(32)
        self._addresses: dict[str, str] = {}  # "server", "standby" -> host:port
        self._servers = [self._server(who) for who in ("server", "standby") if who in needs]
        self._workers = [self._worker(index) for index in range(len(needs) - len(self._servers))]

    def run(self) -> Result:
        """Supervise the run from start to end; return its result."""
        for child in self._servers:
            self._begin(child)
        while not (self._left and self._summaries):
            self._step()
            self._judge()
        missing = {index: child.gone for index, child in enumerate(self._workers) if child.gone}
        if missing:
            names = ", ".join(f"worker {index} ({why})" for index, why in missing.items())
            say(f"wbsp.ray: missing at the end: {names}")
        last = max(self._summaries, key=lambda ending: ending.order)
        return Result([child.ended and child.ended.value for child in self._workers], missing,
                      last.summary or {}, last.folders[-1], last.folders, last.best)

    def end(self) -> None:
        """End what still runs, the servers cleanly."""
        with contextlib.suppress(RayError):
            stops = [child.actor.stop.remote(timeouts.PROCESS_STOP) for child in self._servers
                     if child.begun and not child.over]
            if stops:
                ray.wait(stops, num_returns=len(stops), timeout=timeouts.PROCESS_STOP + 5)
        for child in (*self._workers, *self._servers):
            if not child.over:
                child.kill()

    @property
    def _left(self) -> bool:
        """Whether all workers have ended."""
        return all(child.over for child in self._workers)

    @property
    def _summaries(self) -> list[Ending]:
        """Ends of servers that saw the run's end; if there will be none, all ends."""
        ends = [child.ended for child in self._servers if child.ended]
        known = [ending for ending in ends if ending.summary]
        return ends if not known and all(child.over for child in self._servers) else known

    def _server(self, who: str) -> Child:
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

        return Child(who, make, work, self._limits.restarts)

    def _worker(self, index: int) -> Child:
        def make() -> tuple[Any, Any]:
            actor = self._actor(f"worker {index}", Worker).remote(index)
            return actor, actor.ready.remote()

        def work(actor: Any, answer: None) -> Any:
            return actor.train.remote(self._train, self._token, {
                "WBSP_SERVER": self._where(), "WBSP_WORKER_NUM": str(len(self._workers))})

        return Child(f"worker {index}", make, work, self._limits.restarts)

    def _actor(self, who: str, kind: type, **options: Any) -> Any:
        return ray.remote(kind).options(
            **actor_options(self._needs[who]), **options,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._group, list(self._needs).index(who)))

    def _where(self) -> str:
        """Return the servers' addresses, then those of a server restarted on another node, which
        workers in training try in turn."""
        ports = [address.rpartition(":")[2] for address in self._addresses.values()]
        others = (f"{host}:{port}" for host in hosts_with(self._needs["server"]) for port in ports)
        return ",".join(dict.fromkeys([*self._addresses.values(), *others]))

    def _begin(self, child: Child) -> None:
        """Start a server for the first time. Raises RunError if it does not listen."""
        child.start_if_due()
        limit = timeouts.PROCESS_START + self._limits.placement
        if not ray.wait([child.waits], timeout=limit)[0]:
            raise RunError(f"the {child.name} was not started within {limit:g} s")
        try:
            child.read()
        except RayTaskError as error:
            raise RunError(f"the {child.name}: {one_line(error)}") from None
        if not child.begun:
            raise RunError(f"the {child.name}: {child.why}")

    def _step(self) -> None:
        """Wait for news of any process, for a moment, and handle it."""
        children = [child for child in (*self._servers, *self._workers) if not child.over]
        for child in children:
            child.start_if_due()
        waits = {child.waits: child for child in children if child.waits is not None}
        if not waits:
            time.sleep(_LOOK)
            return
        for reference in ray.wait(list(waits), num_returns=1, timeout=_LOOK)[0]:
            child = waits[reference]
            try:
                found = child.read()
            except RayTaskError as error:
                if child in self._workers:
                    raise
                child.died(one_line(error))
                continue
            if isinstance(found, Ending):
                self._server_ended(child, found)
            elif isinstance(found, Outcome):
                self._worker_ended(child, found)

    def _server_ended(self, child: Child, ending: Ending) -> None:
        over = self._left and any(worker.ended for worker in self._workers)
        if ending.code in IN_ORDER or over:
            child.ends(ending)
        elif ending.code < 0 or len(self._servers) > 1:
            killed = f"it was killed by signal {-ending.code}"
            child.died(killed if ending.code < 0 else ending.said)
        else:
            raise RunError(f"the server ended with exit code {ending.code}: {ending.said}; its "
                           f"output is in {self._folder}")

    def _worker_ended(self, child: Child, outcome: Outcome) -> None:
        if outcome.lost is None:
            child.ends(outcome)
        elif any(server.ended for server in self._servers):
            child.give_up(outcome.lost)
        else:
            child.died(outcome.lost)

    def _judge(self) -> None:
        """Give up processes that are overdue. Raises RunError if the run cannot continue."""
        limit = self._limits.placement + timeouts.PROCESS_START
        for child in self._servers:
            if child.waiting > limit:
                child.give_up(f"{child.why}; it did not restart within {limit:g} s")
        if all(child.gone for child in self._servers):
            raise RunError(f"the run has lost its server: {self._servers[0].gone}; the files are "
                           f"in {self._folder}")
        if all(child.gone for child in self._workers):
            raise RunError(f"no worker is left: worker 0: {self._workers[0].gone}; the files are "
                           f"in {self._folder}")
        if any(child.ended for child in self._servers):
            for child in self._workers:
                if not (child.over or child.begun):
                    child.give_up(f"{child.why}; the run ended before it had restarted")
