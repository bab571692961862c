"""Settings of a server, data of its run, and its reporter."""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from wbsp import timeouts
from wbsp.core.engine import Engine
from wbsp.core.goal import Goal
from wbsp.core.messages import LearningRate, Measured, Message, SharedData
from wbsp.core.outer_optimizer import OuterOptimizer
from wbsp.core.results import Goals
from wbsp.limits import SHARDS
from wbsp.process.host import HOST, Host
from wbsp.ps.checkpoint.state import AboveState, IndexOwner, RunState
from wbsp.ps.clock import Clock
from wbsp.ps.series import Series
from wbsp.runlog.console import Console
from wbsp.runlog.server import ServerLog
from wbsp.sync.base import WorkerRule
from wbsp.tensors.codecs import FLOAT32, Codec
from wbsp.tensors.frozen import NOTHING, FrozenValues
from wbsp.tensors.layout import Entry, LayerState, TensorSpec, kept_entries
from wbsp.wire.addresses import split_addresses
from wbsp.wire.loop import Part
from wbsp.wire.messages.from_server import RunSettings
from wbsp.wire.messages.from_worker import Join
from wbsp.wire.messages.requests import AskVersion, VersionAt
from wbsp.wire.proof import SIZE, mac, ticket
from wbsp.wire.rate import RateLimiter


class AboveError(RuntimeError):
    """Error that ends a site's connection to the server above; its message is one line."""


class Above(Part, Protocol):
    """The server above a site, as a part of the site's event loop: see `wbsp.site`.

    Attributes:
        pauses: the site must make no version now.
        stopped: why the run above ends; None: it does not.
        hurries: decisions under this mark of the ledger must be durable before a cut leaves; None:
            no cut waits.
        settled: this site has the last version of the run above, or has left that run.
    """

    @property
    def pauses(self) -> bool: ...

    @property
    def stopped(self) -> str | None: ...

    @property
    def hurries(self) -> int | None: ...

    @property
    def settled(self) -> bool: ...

    def bring(self, model: Model) -> None:
        """Take the model of the first worker, with its W_0 for a server above that has none."""

    def initial(self) -> tuple[np.ndarray, FrozenValues] | None:
        """Return W_0, float32 [size], and the frozen values, once both have arrived from above."""

    def begin(self, engine: Engine, state: RunState | None, model: Model,
              signs: Callable[[], int]) -> None:
        """Begin with the run of this engine, or resume it; the engine's store holds the progress.

        `signs` returns a number that changes while the site's workers train.
        """

    def stirred(self) -> bool:
        """Return whether `poll` is due at once; True only once for each cause."""

    def poll(self) -> None:
        """Send and handle what is due. Raises `AboveError`."""

    def finish(self, interrupted: str | None) -> None:
        """Push the rest, because the site's workers have finished; repeatable.

        `interrupted`: why the site leaves without the last version; None: it waits for it.
        """

    def farewell(self) -> None:
        """Report to the server above that this site holds the last version durably; repeatable."""

    def give_up(self, reason: str) -> None:
        """Leave at once."""

    def tell(self, message: Message) -> None:
        """Forward a worker's message to all workers of the run: results, a rate, the run's end."""

    def told(self) -> list[Measured | LearningRate]:
        """Return the new messages of the server above to all workers, each one once."""

    def ask_version(self, ask: AskVersion) -> None:
        """Ask the server above for an epoch's version, for a worker of this site."""

    def version_at(self) -> VersionAt | None:
        """Return the answer to the newest `ask_version`, one time; None before and after."""

    def read_version(self, at: VersionAt, path: pathlib.Path
                     ) -> Future[str | None]:
        """Read the file of that version into `path`; as `wbsp.wire.line.read_version`."""

    def state(self) -> AboveState:
        """Return the state at this moment, with nothing pending."""

    def close(self) -> None:
        """Leave the run above, if it has not ended, and release the connection; repeatable."""


class Model(NamedTuple):
    """A worker's model, as it joins with it, its W_0, and the data that all workers share."""

    vector: np.ndarray  # float32 [size]
    layout: list[TensorSpec]
    frozen: FrozenValues
    layers: list[LayerState] | None
    local: list[str]
    data: SharedData | None = None
    first_epoch: int = 0
    entries: list[Entry] = []


class ShardPlan(NamedTuple):
    """The shards of a server: `count` processes of its own, or those at `addresses`."""

    number: int = 1
    addresses: tuple[tuple[str, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> ShardPlan:
        """Parse '4', or 'host:port,host:port'.

        Raises:
            ValueError: the text has another form; one line.
        """
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
        """Return the entry for run.json."""
        return [f"{host}:{port}" for host, port in self.addresses] or self.number

    @property
    def single(self) -> bool:
        """True if the server keeps the floats itself."""
        return self.number == 1 and not self.addresses


@dataclass
class ServerConfig:
    """A server's settings from its flags; a field is the flag of its name, except for these.

    Attributes:
        stop_samples: number of examples after which the run ends (a launcher's --epochs).
        stop_steps: number of steps of all workers together after which the run ends (--max_steps).
        until: seconds of training after which the run ends.
        epochs: passes over the data that all workers share; None: the workers' loops set them.
        target: the reported metric, and its value, that ends the run.
        best: the reported metric by which the best version is kept; by default that of `target`.
        best_patience: number of evaluations in a row without a better version after which the run
            ends.
        bandwidth: bytes per second in each direction (--band_width_limit); None: no limit.
        share: the server shares memory with processes of its machine (--transport).
        wire: format of updates and versions.
        one_run: the server ends with its run, even if workers call `fit` again.
        port: port to listen on; 0: any free one.
        token: content of --token_file, or None.
        reach: lines for the console about which machines can connect, and how.
        resume: as in `Runs`.
        standby_of: address of the server that a standby follows; when the standby takes over, its
            files are in a folder next to that of `base_dir`.
        above: for a site: makes the line to the server above from the host and the run's outputs;
            None: this server is not a site's.

    Times are in seconds.
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
    reach: Sequence[str] = ()
    base_dir: str = ""
    log_root: str = "runs"
    resume: bool | str = False
    standby_of: str | None = None
    shards: ShardPlan = ShardPlan()
    above: Callable[[Host, Reporter], Above] | None = None

    def __post_init__(self) -> None:
        """Check the settings before the run creates any file.

        Raises:
            ValueError: the bandwidth is bad, or patience has no metric; one line.
        """
        RateLimiter(self.bandwidth)
        self.best = self.best or self.target
        if self.above is not None:
            self._check_site()
        if self.best_patience is not None and self.best is None:
            raise ValueError(f"--best_patience={self.best_patience} needs a metric to compare "
                             "versions by, such as --best=accuracy")

    def _check_site(self) -> None:
        """Raise ValueError, in one line, for what a site does not have yet."""
        if self.epochs:
            raise ValueError("--epochs and --upstream do not go together: the server above sets "
                             "the end of the run")
        if not self.shards.single:
            raise ValueError("--shards and --upstream do not go together: a site's server holds "
                             "its model itself; give --shards to the server above")
        self.one_run = True  # the server above serves one run, too

    @property
    def goals(self) -> Goals:
        """Return what results of evaluations decide."""
        return Goals(self.target, self.best, self.best_patience, self.target_accuracy)

    @property
    def terms(self) -> dict[str, str]:
        """Return further settings, beyond the run's, that a standby must share: name -> text."""
        outer = self.outer.settings().get("outer", {"name": self.outer.name})
        return {"workers": str(self.worker_num), "outer": json.dumps(outer, sort_keys=True),
                "samples": f"{self.stop_samples:g}", "accuracy": f"{self.target_accuracy:g}",
                "steps": f"{self.stop_steps:g}", "until": f"{self.until:g}",
                "epochs": str(self.epochs),
                "target": str(self.target or ""), "best": str(self.best or ""),
                "best_patience": str(self.best_patience)}


@dataclass
class Reporter:
    """The outputs of a run, with its times: a log in its folder, and the console."""

    folder: pathlib.Path
    log: ServerLog
    console: Console
    clock: Clock = field(default_factory=lambda: Clock(HOST.clock.monotonic))

    def say(self, text: str) -> None:
        """Print a line on the console."""
        self.console.line(text, self.clock.run())

    def event(self, kind: str, **facts: Any) -> None:
        """Log an event."""
        self.log.event(self.clock.run(), kind, **facts)

    def close(self) -> None:
        self.log.close()
        self.console.close()


@dataclass
class RunInfo:
    """The identity of a run, and its workers' processes, with or without a session.

    Attributes:
        settings: those that the run's processes receive.
        epoch: number of this start of the run's server; a later one if its standby was lost.
        others_wait: members of another run keep waiting for their server, which may still be
            started; otherwise they are refused, because this server could not resume their run.
        secret: of the run; see `wbsp.wire.proof`.
        began: epoch with which this server, and its ledger, began.
        owners: worker -> its newest process that was a member.
        series: the runs of this server's process.
        rival: as in `wbsp.core.rendezvous.Rendezvous`.
        layers: state of layers that no version carries, from the worker that sent W_0 or was
            first; None: not known yet.
        frozen: variables that no step changes, from the worker that sent W_0.
        local: names of variables that each worker keeps for itself, from the same worker.
        entries: further entries of a file of the model, from a worker that has some.
        data, first_epoch: as in `Join`, of the worker that sent W_0.
    """

    config: ServerConfig
    rule: WorkerRule
    settings: RunSettings
    epoch: int
    others_wait: bool = False
    secret: bytes = field(default_factory=lambda: HOST.scheduler.random(SIZE))
    series: Series = field(default_factory=Series)
    rival: bool = False

    def __post_init__(self) -> None:
        self.began = self.epoch
        self.owners: dict[int, IndexOwner] = {}
        self.layers: list[LayerState] | None = None
        self.frozen = NOTHING
        self.local: list[str] = []
        self.entries: list[Entry] = []
        self.data: SharedData | None = None
        self.first_epoch = 0

    def resume(self, state: RunState) -> None:
        """Continue from the state of a checkpoint or snapshot."""
        self.owners.update(state.places)
        self.layers, self.local, self.entries = state.layers, state.local, state.entries

    def lead(self, epoch: int) -> None:
        """Serve in this epoch from here on."""
        self.epoch = epoch

    def learn(self, join: Join) -> None:
        """Take what versions do not carry from a worker that joins, unless it is known."""
        if self.layers is None:
            self.layers = join.layers
        if not self.entries:
            self.entries = kept_entries(join.entries)

    def unlearn(self) -> None:
        """Forget the worker's model, because it is refused."""
        self.layers, self.entries = None, []

    def begins_with(self, join: Join) -> None:
        """Take what the worker that has sent W_0 joins with."""
        self.learn(join)
        self.local, self.data, self.first_epoch = join.local, join.data, join.first_epoch

    def freeze(self, values: FrozenValues) -> None:
        """Note the values of the run that no step changes."""
        self.frozen = values

    def owned(self, worker: int, owner: IndexOwner) -> IndexOwner:
        """Note the newest process of a worker that is a member, and return it."""
        self.owners[worker] = owner
        return owner

    @property
    def run(self) -> str:
        """Id of the run."""
        return self.settings.id

    def owner(self, identity: bytes) -> str:
        """Return the owner's hash of the process with this socket identity."""
        return mac(self.secret, "place", identity).hex()[:32]

    def ticket(self, worker: int) -> bytes:
        """Return the key of this member's process for later proofs; see `messages.Joined`."""
        return ticket(self.secret, worker, self.owners[worker].owner, self.epoch)
