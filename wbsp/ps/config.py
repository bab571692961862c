"""What a worker joins, and what is remembered of one that has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wbsp.core.stats import Report
from wbsp.process.host import HOST
from wbsp.ps.checkpoint.state import report_of
from wbsp.ps.files import RunFiles
from wbsp.ps.sharding.coordinator import Shards
from wbsp.sync.base import WorkerRule
from wbsp.tensors.codecs import FLOAT32, Format
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.proof import SIZE, mac, ticket


@dataclass(frozen=True)
class Terms:
    """What a worker joins.

    settings:   what joining workers must agree on or take over (name -> text)
    on_initial: takes W_0 and its layout from the first worker; None: no worker is asked
    run, epoch: the run's id, and the number of this start of its server
    record:     notes changes of the run's settings in its folder, and returns them all; raises
                OSError where they cannot be written
    shards:     None: the server keeps the floats itself
    files:      of the run, for watchers; None: it cannot be watched
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
    on_initial: Callable[[np.ndarray, list[TensorSpec]], None] | None
    run: str
    epoch: int
    record: Callable[..., dict[str, Any]] = dict
    shards: Shards | None = None
    files: RunFiles | None = None
    wire: Format = FLOAT32
    alone: str | None = None
    others_wait: bool = False
    shared: dict[str, str] = field(default_factory=dict)
    secret: bytes = field(default_factory=lambda: HOST.scheduler.random(SIZE))

    def place(self, identity: bytes) -> str:
        """What the process whose socket has this identity is called."""
        return mac(self.secret, "place", identity).hex()[:32]

    def ticket(self, worker: int, place: str, epoch: int) -> bytes:
        """As in `messages.Joined`."""
        return ticket(self.secret, worker, place, epoch)


@dataclass
class Place:
    """The process that owns a worker's index; only it may reattach."""

    owner: str  # as in `messages.Joined`; a hash, which opens nothing
    earlier: Report | None  # totals of the worker's earlier incarnations

    @classmethod
    def load(cls, state: dict[str, Any]) -> Place:
        """From what `asdict` made, and JSON."""
        earlier = state["earlier"]
        return cls(state["owner"], None if earlier is None else report_of(earlier))
