"""Faults that are put into the code on purpose, each with a plan that finds it.

A checker is worth what it finds: a run that is green under a planted fault shows what the laws, or
the plans, do not see.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from unittest.mock import PropertyMock, patch

import simulated.disk
import wbsp.ps.follower
import wbsp.ps.lending
import wbsp.ps.replication
import wbsp.ps.standby
import wbsp.ps.start
import wbsp.wire.link
import wbsp.wire.memory
import wbsp.wire.segments
from simulated.cluster import Cluster
from simulated.plan import Plan
from wbsp.host import Nap
from wbsp.ps.admission import Admission
from wbsp.ps.background import Checkpoints
from wbsp.ps.candidacy import Candidacy
from wbsp.ps.contest import Beats
from wbsp.ps.gathering import Gathering
from wbsp.ps.replication import Replication
from wbsp.ps.shard_link import ShardLost
from wbsp.ps.shards import Shards
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


def _time_stands_still():
    """As Linux's `time.monotonic` does while a machine is suspended."""
    sleep = Cluster.sleep

    def suspended(self, name=None):
        before = {one: one.asleep_until for one in self.world.processes}
        done = sleep(self, name)
        for process, until in before.items():
            if process.asleep_until > until:
                process.offset -= process.rate * (process.asleep_until - self.world.now)
        return done
    stack = contextlib.ExitStack()
    stack.enter_context(_fence_is_open())
    stack.enter_context(patch.object(Cluster, "sleep", suspended))
    return stack


def _sleep_goes_unnoticed():
    """And the fence, which keeps harm from following, is open."""
    stack = contextlib.ExitStack()
    stack.enter_context(_fence_is_open())
    stack.enter_context(patch.object(Nap, "over", lambda self, now: False))
    stack.enter_context(patch.object(Beats, "doubt", lambda self: None))
    stack.enter_context(patch.object(wbsp.ps.follower, "PROOF", 1e9))
    stack.enter_context(patch.object(wbsp.ps.standby, "PROOF", 1e9))
    return stack


def _first_lost_shard_ends_it():
    gather = Shards.gather

    def impatient(self, *args):
        try:
            return gather(self, *args)
        except ShardLost:
            return 1
    return patch.object(Shards, "gather", impatient)


def _ends_when_one_is_served():
    complete = Gathering.complete

    def early(self, active):
        return complete(self, active) or (
            self.awaited is not None and bool(self.left) and not active)
    return patch.object(Gathering, "complete", early)


def _a_standby_that_lives_is_given_up():
    """Not even late: as soon as a standby is back whose copy was on its way."""
    def follow(self, *args, real=Replication.follow):
        real(self, *args)
        if self._standby is not None:
            self._standby.moved = -1e9
    return patch.multiple(Replication, follow=follow,
                          _stalled=lambda self, standby, now: self._forget(now))


# A standby sleeps; its server goes on alone, dies, and is away when the standby wakes.
_LONG_SLEEP = Plan("asp", standby=True, kills=1, when_alone=True, victims=("server",),
                   outage=(80.0, 90.0), aimed=(("held", "sleep standby"),), naps=(70.0,), steps=50,
                   speeds=(2.0, 3.0))

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
            {4}, 80, 20),
    Planted("a standby needs no promises",
            lambda: patch.object(Candidacy, "won", PropertyMock(return_value=True)),
            Plan("pcc", standby=True, cuts=2, pair=("server", "standby"), naps=(7.0, 9.0), steps=40,
                 speeds=(0.3,)),
            {4, 11}),
    Planted("the farewell does not wait for the disk",
            lambda: patch.object(Checkpoints, "settled", PropertyMock(return_value=True)),
            Plan("pcc", slow=0.3), {10}),
    Planted("an epoch is no fence", _fence_is_open,
            Plan("asp", standby=True, sleeps=1, victims=("server",), breaks=12, naps=(60.0,),
                 steps=40, speeds=(2.0, 3.0)), {1, 2}, 50, 20),
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
    Planted("time stands still while a process sleeps", _time_stands_still,
            _LONG_SLEEP, {1, 2, 11}, 10),
    Planted("what is found after a sleep is proof", _sleep_goes_unnoticed,
            _LONG_SLEEP, {1, 2, 11}, 10),
    Planted("the first shard that is lost while another is waited for ends the server",
            _first_lost_shard_ends_it,
            Plan("pcc", shards=3, kill_shards=6, breaks=8, steps=40, outage=(1.0, 4.0)), {9}),
    Planted("a run that ended is over when one worker has the final version",
            _ends_when_one_is_served,
            Plan("pcc", aimed=(("farewell", "kill"),)), {2, 9}),
    Planted("who holds a copy is not noted",
            lambda: patch.object(Replication, "_record", lambda self, **changes: True),
            Plan("pcc", standby=True, kills=1, steps=20, victims=("server",)), {4}, 10),
    Planted("a standby that lives is given up", _a_standby_that_lives_is_given_up,
            Plan("asp", workers=4, steps=4, standby=True, period=0.1, kills=1, power=True, breaks=2,
                 slow=0.0, drift=0.02), {1, 2}, 10, 104500),
    # Memory of one machine.
    Planted("what is given up stays mapped",
            lambda: patch.object(wbsp.wire.link.Link, "let_go", lambda self: None),
            Plan("asp", memory=True, workers=4, steps=100, speeds=(0.1,), kill_workers=20), {12}),
    Planted("the server keeps what it has lent",
            lambda: patch.object(wbsp.ps.lending.SharedLink, "close", _keeps_its_vectors()),
            Plan("asp", memory=True, workers=4, steps=100, speeds=(0.1,), kill_workers=20), {12}),
    Planted("what a lost worker may read is used again",
            lambda: patch.object(wbsp.wire.segments.SharedPool, "give_up", lambda *_: None),
            Plan("asp", memory=True, breaks=14, steps=40, speeds=(0.1,)), {1, 5}),
    Planted("what is lent is written to while it is read",
            lambda: patch.object(wbsp.ps.lending.SharedLink, "returned",
                                 lambda self, request: self._lent.clear()),
            Plan("pcc", memory=True, breaks=14, steps=40, speeds=(0.1,)), {1, 5}),
]


def _keeps_its_vectors():
    close, kept = wbsp.ps.lending.SharedLink.close, []

    def keeping(self):
        kept.extend(self._lent)
        close(self)
    return keeping


def _without_floor():
    came_back = Gathering.came_back

    def forgetful(self, answer, newest, left):
        came_back(self, answer, newest, left)
        self.floor = 0
    return forgetful
