"""Messages of a server to its workers about joining and the connection, in addition to those of
`wbsp.core.messages`. `wbsp.wire.messages.codec` has their encoding."""

from __future__ import annotations

from typing import NamedTuple

from wbsp.core.messages import Message, ShardGroup, WorkPlace
from wbsp.limits import Count, Id, Line, Mac, Random, Seconds, Settings, Worker
from wbsp.sync.base import WorkerRule


class RunSettings(NamedTuple):
    """What a run is, for each of its processes.

    Attributes:
        id: of the run.
        sync: name of its synchronization model.
        wire: name of the format of updates and versions.
        workers: expected number of workers.
        folder: the run's, as in its files: below the folder of all runs.
        path: the same, absolute, on the server's machine.
        series: id of the server's runs, one for each fit of its workers.
        fit: number of the run among these, from 1 on.
        single: no other run follows.
        terms: what all processes of the run must have in common (name -> text); those of
            `prepare_server`.
    """

    id: Id = ""
    sync: Line = ""
    wire: Id = "float32"
    workers: Count = 1
    folder: Line = ""
    path: Line = ""
    series: Id = ""
    fit: Count = 1
    single: bool = True
    terms: Settings = {}

    def texts(self) -> dict[str, str]:
        """Return all of them as texts, by name, for users and comparisons."""
        return {**self.terms, "sync": self.sync, "wire": self.wire, "workers": str(self.workers),
                "folder": self.folder, "path": self.path, "id": self.id, "series": self.series,
                "fit": str(self.fit)}


class Welcome(Message, frozen=True):
    """Answer to Hello: the run's settings, which a worker adopts if it was given none.

    The rule is all that workers know of the synchronization model.
    """

    run: RunSettings
    now: Seconds  # since the run's time zero
    rule: WorkerRule
    epoch: Count = 0  # number of this start of the run's server
    worker: Worker | None = None  # the index that the server has chosen; None: that of Hello
    key: Mac = b""  # proves in a later run that it is this process: see `wbsp.wire.proof`
    passes: Count = 0  # the fit of an ended run that the process passes by; 0: none

    @property
    def settings(self) -> dict[str, str]:
        """The run's settings as texts, by name, for users."""
        passes = {"passes": str(self.passes)} if self.passes else {}
        return self.run.texts() | passes


class Joined(Message, frozen=True):
    """Answer to Join: the worker is a member, or must send W_0 first."""

    seq: Count  # number of the worker's next push
    steps: Count  # of this worker's earlier processes
    send_initial: bool  # W_0 is expected of this worker; another Joined follows
    now: Seconds  # since the run's time zero
    epoch: Count  # number of this start of the run's server
    group: ShardGroup | None = None  # of shards, if the run has some
    memory: Random = 0  # number of the shared segment for the worker's messages; 0: none
    run_steps: Count = 0  # of all workers in the run so far
    owner: Id = ""  # names this process in the server's records of the worker
    ticket: Mac = b""  # proves that it is this process: see `wbsp.wire.proof`
    work: WorkPlace | None = None  # in the run's shared data, if it has some
    frozen: bool = False  # the run has other frozen values: the worker requests them
    run_examples: Count = 0  # of all workers so far; of shared data, those that need no training


class Refused(Message, frozen=True):
    """Refusal of a worker, with the reason in one line.

    Attributes:
        over: the run has ended, so that the next run may welcome the worker.
        follows: another run of this server follows: the worker waits for it.
    """

    reason: Line
    over: bool = False
    proof: Mac = b""  # without the run's secret: by the key of a first contact
    ends: bool = False  # the server has ended: no other run follows
    follows: bool = False


class Resend(Message, frozen=True):
    """Answer to Reattach: an earlier server lost the pushes from `seq` on; send their sum."""

    seq: Count
    group: ShardGroup | None = None
    memory: Random = 0  # as in Joined


class Unknown(Message, frozen=True):
    """The server does not know this session: introduce yourself."""


class Elect(Message, frozen=True):
    """Request for a worker's vote, of a server that cannot reach the other server."""

    epoch: Count  # of this server, once enough workers have voted for it
    since: Count  # epoch of its state; a worker of another epoch does not answer
    due: Count = 0  # this worker's pushes below are in that state; a worker with more durable waits


class Leading(Message, frozen=True):
    """This server serves with this epoch; a vote for the other server is void."""

    epoch: Count
    ticket: Mac = b""  # as in Joined, of this epoch
    proof: Mac = b""  # in answer to Ask: by the run's secret, over the nonce of Ask


class NotServing(Message, frozen=True):
    """This process does not serve the run, or no longer does: try the next address."""

    reason: Line
    released: Count = 0  # the vote for this process with that epoch is void
    rank: Count = 0  # as in Follow, of a process that also waits for that run


class Alive(Message, frozen=True):
    """Heartbeat of the server."""

    # Received of the vector that the worker sends or awaits; to a standby: the answered heartbeat.
    chunks: Count = 0
    durable: Count = 0  # decisions below this checkpoint number are in a checkpoint
