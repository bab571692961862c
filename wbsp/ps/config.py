"""A server's settings, what a worker joins, and where the server reports."""

from __future__ import annotations

import json
import math
import pathlib
from dataclasses import dataclass, field
from typing import Any

from wbsp import timeouts
from wbsp.core.outer_optimizer import OuterOptimizer
from wbsp.process.host import HOST
from wbsp.ps.clock import Clock
from wbsp.runlog.console import Console
from wbsp.runlog.server import ServerLog
from wbsp.sync.base import WorkerRule
from wbsp.tensors.codecs import FLOAT32, Codec
from wbsp.wire.proof import SIZE, mac, ticket
from wbsp.wire.rate import RateLimiter


@dataclass
class ServerConfig:
    """What ends a run, its rates, its outer step, whether memory is shared with workers, and the
    format of updates and versions.

    fail_if_lost: a run at whose end a worker is missing has failed

    Times in seconds, `bandwidth` in bytes per second.
    """

    worker_num: int
    stop_samples: float = math.inf
    target_accuracy: float = math.inf
    check_period: float = 5.0
    connect_timeout: float = timeouts.CONNECT
    bandwidth: float | None = None
    outer: OuterOptimizer = field(default_factory=OuterOptimizer)
    share: bool = True
    wire: Codec = FLOAT32
    fail_if_lost: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for a bad bandwidth, before anything of the run is made."""
        RateLimiter(self.bandwidth)

    @property
    def terms(self) -> dict[str, str]:
        """What a standby must agree on beside a run's settings: name -> text."""
        outer = self.outer.settings().get("outer", {"name": self.outer.name})
        return {"workers": str(self.worker_num), "outer": json.dumps(outer, sort_keys=True),
                "samples": f"{self.stop_samples:g}", "accuracy": f"{self.target_accuracy:g}"}


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


@dataclass(frozen=True)
class RunInfo:
    """What a worker joins, and a standby stands by.

    settings:   what joining workers must agree on or take over (name -> text)
    run, epoch: the run's id, and the number of this start of its server
    wire:       format of updates and versions
    shared:     what a standby must agree on beside the settings (name -> text)
    alone:      why no memory is shared with workers; None: it is, with those that can
    others_wait: members of another run are to wait for its server, which may be started yet; else
                they are refused: this server was to go on with their run, and does not have it
    secret:     of the run; see `wbsp.wire.proof`
    """

    rule: WorkerRule
    worker_num: int
    settings: dict[str, str]
    run: str
    epoch: int
    wire: Codec = FLOAT32
    alone: str | None = None
    others_wait: bool = False
    shared: dict[str, str] = field(default_factory=dict)
    secret: bytes = field(default_factory=lambda: HOST.scheduler.random(SIZE))

    def owner(self, identity: bytes) -> str:
        """What the process whose socket has this identity is called."""
        return mac(self.secret, "place", identity).hex()[:32]

    def ticket(self, worker: int, owner: str, epoch: int) -> bytes:
        """As in `messages.Joined`."""
        return ticket(self.secret, worker, owner, epoch)
