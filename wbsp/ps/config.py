"""A server's settings, what it knows of its run, and where it reports."""

from __future__ import annotations

import json
import math
import pathlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from wbsp import timeouts
from wbsp.core.outer_optimizer import OuterOptimizer
from wbsp.limits import SHARDS
from wbsp.process.host import HOST
from wbsp.ps.checkpoint.state import IndexOwner
from wbsp.ps.clock import Clock
from wbsp.ps.goal import Goal
from wbsp.ps.series import Series
from wbsp.runlog.console import Console
from wbsp.runlog.server import ServerLog
from wbsp.sync.base import WorkerRule
from wbsp.tensors.codecs import FLOAT32, Codec
from wbsp.tensors.frozen import NOTHING
from wbsp.tensors.layout import LayerState
from wbsp.wire.addresses import split_addresses
from wbsp.wire.proof import SIZE, mac, ticket
from wbsp.wire.rate import RateLimiter


class ShardPlan(NamedTuple):
    """How many shards there are to be: processes of this server's, or those at `addresses`."""

    number: int = 1
    addresses: tuple[tuple[str, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> ShardPlan:
        """From '4', or 'host:port,host:port'. Raises ValueError in one line."""
        if text.isascii() and text.isdigit() and 1 <= int(text) <= SHARDS:
            return cls(int(text))
        try:
            addresses = tuple(split_addresses(text))
        except ValueError as error:
            raise ValueError(f"shards={text!r} is neither a number from 1 to {SHARDS} nor a list "
                             f"of addresses: {error}") from None
        if len(set(addresses)) < len(addresses) or len(addresses) > SHARDS:
            raise ValueError(f"shards={text!r} names an address twice, or more than {SHARDS}")
        return cls(len(addresses), addresses)

    @property
    def setting(self) -> int | list[str]:
        """For run.json."""
        return [f"{host}:{port}" for host, port in self.addresses] or self.number

    @property
    def single(self) -> bool:
        """True if the server is to keep the floats itself."""
        return self.number == 1 and not self.addresses


@dataclass
class ServerConfig:
    """What the flags say of a server; each field is the flag of that name, but for these.

    stop_samples: the run ends after so many (a launcher's --epochs)
    stop_steps:   the run ends after so many, of all workers (--max_steps)
    until:        the run ends after so many seconds of training
    epochs:       passes over the data that all workers share; None: their loops say it
    target, best: the metric that ends the run, and the one by which the best version is kept, of
                  what readers report; without --best it is that of --target
    best_patience: the run ends after so many evaluations in a row that found none better
    bandwidth:    bytes a second each way (--band_width_limit); None: no limit
    share:        whether memory is shared with processes of this machine (--transport)
    wire:         format of updates and versions
    one_run:      the server ends with its run, though workers may have another `fit` to come
    port:         0: any free one
    token:        what --token_file holds; None: there is none
    resume:       as in `Runs`
    standby_of:   address of the server that is followed until it is gone; the files of a standby
                  that takes over lie in a folder beside that of `base_dir`
    watch_port:   at which the run's files are handed out; 0: any free one

    Times in seconds.
    """

    worker_num: int
    stop_samples: float = math.inf
    stop_steps: float = math.inf
    until: float = math.inf
    epochs: int | None = None
    target_accuracy: float = math.inf
    target: Goal | None = None
    best: Goal | None = None
    best_patience: int | None = None
    check_period: float = 5.0
    connect_timeout: float = timeouts.CONNECT
    bandwidth: float | None = None
    outer: OuterOptimizer = field(default_factory=OuterOptimizer)
    share: bool = True
    wire: Codec = FLOAT32
    fail_if_lost: bool = False
    one_run: bool = False
    host: str = "localhost"
    port: int = 0
    token: bytes | None = None
    base_dir: str = ""
    log_root: str = "runs"
    resume: bool | str = False
    standby_of: str | None = None
    shards: ShardPlan = ShardPlan()
    watch_port: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for a bad bandwidth, and for patience without a metric, before anything
        of the run is made."""
        RateLimiter(self.bandwidth)
        self.best = self.best or self.target
        if self.best_patience is not None and self.best is None:
            raise ValueError(f"--best_patience={self.best_patience}: say by which metric versions "
                             "are better: --best=accuracy")

    @property
    def terms(self) -> dict[str, str]:
        """What a standby must agree on beside a run's settings: name -> text."""
        outer = self.outer.settings().get("outer", {"name": self.outer.name})
        return {"workers": str(self.worker_num), "outer": json.dumps(outer, sort_keys=True),
                "samples": f"{self.stop_samples:g}", "accuracy": f"{self.target_accuracy:g}",
                "steps": f"{self.stop_steps:g}", "until": f"{self.until:g}",
                "epochs": str(self.epochs),
                "target": str(self.target or ""), "best": str(self.best or ""),
                "best_patience": str(self.best_patience)}


@dataclass
class Reporter:
    """Where a run's story goes, and its times: a folder with its log, and a console for people."""

    folder: pathlib.Path
    log: ServerLog
    console: Console
    clock: Clock = field(default_factory=lambda: Clock(HOST.clock.monotonic))

    def say(self, text: str) -> None:
        """Tell people."""
        self.console.line(text, self.clock.run())

    def event(self, kind: str, **facts: Any) -> None:
        """Tell the log."""
        self.log.event(self.clock.run(), kind, **facts)

    def close(self) -> None:
        self.log.close()
        self.console.close()


@dataclass
class RunInfo:
    """What a worker joins, and what each server of the run must know of its workers' processes,
    with or without a session.

    settings: what joining workers must agree on or take over (name -> text)
    run:      the run's id
    epoch:    number of this start of the run's server, or a later one, if its standby was lost
    others_wait: members of another run are to wait for its server, which may be started yet; else
              they are refused: this server was to go on with their run, and does not have it
    secret:   of the run; see `wbsp.wire.proof`
    began:    epoch with which this server, and its ledger, began
    owners:   worker -> its newest process that was a member
    series:   the runs of this server's process
    layers:   what layers have and no version carries, as the worker that brought W_0, or was first,
              has it; None: not known yet
    frozen:   what no step changes, as the worker that brought W_0 has it
    """

    config: ServerConfig
    rule: WorkerRule
    settings: dict[str, str]
    run: str
    epoch: int
    others_wait: bool = False
    secret: bytes = field(default_factory=lambda: HOST.scheduler.random(SIZE))
    series: Series = field(default_factory=Series)

    def __post_init__(self) -> None:
        self.began = self.epoch
        self.owners: dict[int, IndexOwner] = {}
        self.layers: list[LayerState] | None = None
        self.frozen = NOTHING

    def owner(self, identity: bytes) -> str:
        """What the process whose socket has this identity is called."""
        return mac(self.secret, "place", identity).hex()[:32]

    def ticket(self, worker: int) -> bytes:
        """What the process of this member proves itself with from here on; as in
        `messages.Joined`."""
        return ticket(self.secret, worker, self.owners[worker].owner, self.epoch)
