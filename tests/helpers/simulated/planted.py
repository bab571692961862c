"""Faults that are put into the code on purpose, each with a plan that finds it.

A checker is worth what it finds: a run that is green under a planted fault shows what the laws, or
the plans, do not see.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from unittest.mock import PropertyMock, patch

import simulated.disk
import wbsp.ps.replication
import wbsp.ps.start
import wbsp.wire.memory
from simulated.plan import Plan
from wbsp.ps.admission import Admission
from wbsp.ps.background import Checkpoints
from wbsp.ps.contest import Ballot
from wbsp.ps.gathering import Gathering
from wbsp.ps.store import Ledger
from wbsp.worker import connection
from wbsp.worker.attachment import Attachment


@dataclass
class Planted:
    """plant: makes what puts the fault into the code, and takes it out again
    law:     that is broken, or one of them
    seeds:   within which it is found, from the seed `first` on
    """

    name: str
    plant: object
    plan: Plan
    laws: set[int]
    seeds: int = 60
    first: int = 0


def _durable_at_once():
    submit = Checkpoints._submit

    def early(self, now):
        submit(self, now)
        if self._alone():
            ledger = self._engine.ledger
            ledger.durable = max(ledger.durable, self._mark)
    return patch.object(Checkpoints, "_submit", early)


def _torn_files():
    def write(path, *parts):
        with path.open("wb") as file:
            for part in parts:
                file.write(part)
                path.disk.sync(file)
        path.disk.machine.on_change(path, bytes(file.inode.data))
    return patch("wbsp.ps.checkpoint.write_whole", write)


def _one_step():
    stack = contextlib.ExitStack()
    for module in (wbsp.ps.start, wbsp.ps.replication):
        stack.enter_context(patch.object(module, "SERVER_STEP", 1))
    return stack


def _fence_is_open():
    stack = contextlib.ExitStack()
    stack.enter_context(patch.object(Attachment, "outdated", lambda self, epoch: None))
    stack.enter_context(patch.object(Admission, "_is_late", lambda *_: False))
    return stack


def _silence_of_a_broken_connection():
    check = connection.ConnectionMonitor.check

    def impatient(self, now):
        check(self, now)
        if self.made and now - self.received_at > connection.SILENT:
            raise connection.TransportError("it hangs")
    return patch.object(connection.ConnectionMonitor, "check", impatient)


PLANTED = [
    Planted("a push that comes again counts again",
            lambda: patch.object(Ledger, "seen", lambda self, worker, seq: False),
            Plan("pcc", storm=0.03), {1}),
    Planted("durable is said before the file is there", _durable_at_once,
            Plan("pcc", kills=3, slow=0.3, steps=20), {10}),
    Planted("the pool hands out vectors that are held",
            lambda: patch.object(wbsp.wire.memory, "is_held", lambda *_: False),
            Plan("pcc", size=300_000, steps=4), {1, 5}, 8),
    Planted("both servers take the same epoch",
            _one_step,
            Plan("pcc", standby=True, kills=1, cuts=6, naps=(7.0, 20.0), steps=40, speeds=(0.3,)),
            {4}, 20, 20),
    Planted("a standby needs no promises",
            lambda: patch.object(Ballot, "won", PropertyMock(return_value=True)),
            Plan("pcc", standby=True, cuts=2, pair=("server", "standby"), naps=(7.0, 9.0), steps=40,
                 speeds=(0.3,)),
            {4, 11}),
    Planted("the farewell does not wait for the disk",
            lambda: patch.object(Checkpoints, "settled", PropertyMock(return_value=True)),
            Plan("pcc", slow=0.3), {10}),
    Planted("an epoch is no fence", _fence_is_open,
            Plan("asp", standby=True, sleeps=1, victims=("server",), breaks=12, naps=(60.0,),
                 steps=40, speeds=(2.0, 3.0)), {1, 2}, 20, 10),
    Planted("a worker takes a server that is away for one that hangs",
            _silence_of_a_broken_connection,
            Plan("pcc", kills=1, outage=(310.0, 500.0)), {9}),
    Planted("names are not synced",
            lambda: patch.object(simulated.disk.Disk, "sync_names", lambda self, folder: None),
            Plan("pcc", kills=3, power=True), {1, 9, 10}),
    Planted("a checkpoint is written in its place", _torn_files,
            Plan("pcc", kills=3, slow=0.3, steps=20), {9, 10}),
    Planted("a restarted server asks for nothing",
            lambda: patch.object(Ledger, "lacks", lambda *_: None),
            Plan("pcc", kills=3, period=1.0), {1, 9}),
    Planted("numbers of versions are used again",
            lambda: patch.object(Gathering, "came_back", _without_floor()),
            Plan("asp", kills=3, period=1.0), {3, 9}),
]


def _without_floor():
    came_back = Gathering.came_back

    def forgetful(self, answer, newest, left):
        came_back(self, answer, newest, left)
        self.floor = 0
    return forgetful
