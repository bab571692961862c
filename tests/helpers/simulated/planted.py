"""Faults that are put into the code on purpose, each with a plan that finds it.

A checker is worth what it finds: a run that is green under a planted fault shows what the laws, or
the plans, do not see.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from unittest.mock import PropertyMock, patch

import msgspec
import numpy as np

import simulated.disk
import wbsp.limits
import wbsp.ps.checkpoint.writer
import wbsp.ps.evaluation
import wbsp.ps.launch
import wbsp.ps.replication.primary
import wbsp.ps.replication.standby
import wbsp.ps.series
import wbsp.ps.server
import wbsp.ps.sessions.registry
import wbsp.ps.sessions.versions
import wbsp.ps.sessions.versions_above
import wbsp.ps.sharding.coordinator
import wbsp.tensors.blocks
import wbsp.tensors.buffers
import wbsp.timeouts
import wbsp.wire.assembly
import wbsp.wire.liveness
import wbsp.wire.shm.lender
import wbsp.wire.shm.link
import wbsp.wire.shm.segments
import wbsp.worker.loop
from simulated.cluster import Cluster
from simulated.plan import TABLE, Plan
from simulated.series_world import Series as SeriesWorld
from simulated.series_world import SeriesPlan
from simulated.site_world import Sites, SitesPlan
from wbsp.core.agent import Progress
from wbsp.core.engine import Engine
from wbsp.core.ledger import Ledger
from wbsp.core.messages import Measured
from wbsp.core.overflow import Reach
from wbsp.core.rendezvous import Rendezvous
from wbsp.core.results import Results
from wbsp.core.site.work import SiteWork
from wbsp.core.stats import Report
from wbsp.core.store import Store
from wbsp.ps.checkpoint.epoch_versions import NAME
from wbsp.ps.checkpoint.resume import Runs
from wbsp.ps.checkpoint.snapshots import Snapshots
from wbsp.ps.checkpoint.writer import Checkpoints
from wbsp.ps.evaluation import EvaluatorWatch
from wbsp.ps.readers import Readers
from wbsp.ps.replication.election import Candidate, Standing, Votes, rank_of
from wbsp.ps.replication.primary import Replication
from wbsp.ps.replication.standby import PrimaryLink
from wbsp.ps.series import STANDBY_STEP, Series
from wbsp.ps.sessions.admission import Admission, Entrance
from wbsp.ps.sessions.indices import Indices
from wbsp.ps.sessions.peer_log import TokenBucket
from wbsp.ps.sessions.requests import Requests
from wbsp.ps.sessions.versions_above import VersionsAbove
from wbsp.ps.sharding.coordinator import ShardLost, Shards
from wbsp.site.upstream import Upstream
from wbsp.tensors.blocks import length
from wbsp.tensors.error_feedback import ErrorFeedback, advanced
from wbsp.wire.assembly import VectorStream
from wbsp.wire.client import Client
from wbsp.wire.errors import TransportError
from wbsp.wire.liveness import Beats, Nap
from wbsp.wire.messages import codec as m
from wbsp.wire.messages.sharding import Lead
from wbsp.wire.proof import Bond, Challenges
from wbsp.wire.server_link import ServerLink
from wbsp.wire.session import Session
from wbsp.wire.sockets import ServerSocket
from wbsp.worker.comm.monitor import Monitor
from wbsp.worker.runtime import WorkerRuntime


@dataclass
class Planted:
    """plant: makes what puts the fault into the code, and takes it out again
    law:     that is broken, or one of them
    seeds:   within which it is found, from the seed `first` on
    """

    name: str
    plant: object
    plan: Plan | SitesPlan | SeriesPlan
    laws: set[int]
    seeds: int = 60
    first: int = 0

    def play(self, seed, folder):
        world = {SitesPlan: Sites, SeriesPlan: SeriesWorld}.get(type(self.plan), Cluster)
        world(self.plan, seed, folder).run()


def _durable_at_once():
    give = Snapshots._give

    def early(self, sinks, now):
        give(self, sinks, now)
        if self._file in sinks:
            self._written(self.engine.ledger.mark)
    return patch.object(Snapshots, "_give", early)


def _tells_once(self, message):
    self.transport.request(message)
    self.transport.wake()


def _knows_no_epoch_by_its_results():
    heard = SiteWork.heard
    return patch.object(SiteWork, "heard", lambda self, message, now: None if isinstance(
        message, Measured) else heard(self, message, now))


def _awaits_none_about_to_join():
    state = Engine.state

    def forgetful(self):
        replaced, self._replaced = self._replaced, set()
        try:
            return state(self)
        finally:
            self._replaced = replaced
    return patch.object(Engine, "state", forgetful)


def _no_file_beside_a_copy():
    wanted = Snapshots._wanted

    def without(self, now):
        sinks = wanted(self, now)
        return [one for one in sinks if self._standby not in sinks or one is not self._file]
    return patch.object(Snapshots, "_wanted", without)


def _torn_files():
    def write(path, *parts):
        with path.open("wb") as file:
            for part in parts:
                file.write(part)
                path.disk.sync(file)
        path.disk.machine.on_change(path, bytes(file.inode.data))
    return patch("wbsp.ps.checkpoint.format.write_whole", write)


def _one_step():
    stack = contextlib.ExitStack()
    for module in (wbsp.ps.launch, wbsp.ps.replication.primary):
        stack.enter_context(patch.object(module, "SERVER_STEP", 1))
    return stack


def _fence_is_open():
    stack = contextlib.ExitStack()
    stack.enter_context(patch.object(Session, "outdated", lambda self, epoch: None))
    stack.enter_context(patch.object(Entrance, "_is_late", lambda *_: False))
    return stack


def _silence_of_a_broken_connection():
    check = Monitor.check

    def impatient(self, now):
        check(self, now)
        if self.made and self.liveness.silent(now):
            raise TransportError("it hangs")
    return patch.object(Monitor, "check", impatient)


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
    stack.enter_context(patch.object(wbsp.timeouts, "PROOF", 1e9))
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
    complete = Rendezvous.complete

    def early(self, active):
        return complete(self, active) or (
            self.awaited is not None and bool(self.left) and not active)
    return patch.object(Rendezvous, "complete", early)


def _a_standby_that_lives_is_given_up():
    """Not even late: as soon as a standby reconnects whose snapshot was in transit."""
    def follow(self, *args, real=Replication.follow):
        real(self, *args)
        if self._standby is not None:
            self._standby.moved = -1e9
    return patch.multiple(Replication, follow=follow,
                          _stalled=lambda self, standby, now: self._forget(now),
                          _look_beside=lambda *_: None)  # or it may give way in time


def _named_before_it_is_whole():
    return patch.multiple(Runs, unfinished=Runs.new, finished=lambda self, folder: folder)


def _believed(*kinds):
    """Who makes such a claim is not asked for its proof."""
    def proven(self, identity, request, *keys, real=Challenges.proven):
        if isinstance(request, kinds):
            return Bond(keys[0], request.nonce, self._nonce(identity))
        return real(self, identity, request, *keys)
    return patch.object(Challenges, "proven", proven)


def _anybody_votes():
    """Nor does the process count that is named by the state."""
    def come(self, peer, request):
        owners = dict(self._state.voters)
        if request.worker not in owners or request.epoch != self.votes.since:
            return False
        self.came[peer.identity] = peer, msgspec.structs.replace(
            request, owner=owners[request.worker])
        return True
    stack = contextlib.ExitStack()
    stack.enter_context(_believed(m.Reattach))
    stack.enter_context(patch.object(Candidate, "come", come))
    return stack


def _first_alone(wire, vector, words, in_blocks=False, real=advanced):
    return real(wire, vector, words[:length(words)] if in_blocks and words.size else words,
                in_blocks)


def _finite_is_enough():
    return patch.object(Reach, "fits", lambda self, weight, most: True)


def _each_step_counts():
    def add(self, steps, samples, *args, real=Progress.add):
        real(self, steps, samples or 1, *args)
    return patch.object(Progress, "add", add)


def _each_step_has_a_loss():
    def count(self, steps, samples, loss, real=Report.count_steps):
        real(self, steps, samples or 1, loss)
        self.samples -= not samples
    return patch.object(Report, "count_steps", count)


def _dropped_counts():
    push = Progress.push
    return patch.object(Progress, "push",
                        lambda self, *args: push(self, *args)._replace(dropped=None))


def _every_cause_is_a_line():
    return patch.object(TokenBucket, "may", lambda self, now: True)


@contextlib.contextmanager
def _texts_as_they_came():
    """Neither where it is decoded nor where it is printed."""
    with (patch.object(wbsp.limits, "printable", lambda text: text),
          patch.object(type(wbsp.limits.Line), "__instancecheck__", lambda *_: True)):
        yield


@contextlib.contextmanager
def _counts_again():
    def record(self, worker, seq, answer):
        self._next[worker], self._answer[worker] = seq + 1, answer
    with (patch.object(Ledger, "seen", lambda self, worker, seq: False),
          patch.object(Ledger, "record", record)):
        yield


def _newest_in_its_place():
    part = wbsp.ps.sessions.versions.read_part
    return patch.object(wbsp.ps.sessions.versions, "read_part", lambda path, offset: part(
        path.with_name("checkpoint.safetensors"), offset))


def _any_is_last():
    at = Readers._at
    return patch.object(Readers, "_at", lambda self, reader, after: msgspec.structs.replace(
        at(self, reader, after), last=True))


def _dead_evaluator_ends_it():
    def stop(self, reason):
        raise RuntimeError(reason)
    return patch.object(EvaluatorWatch, "stop", stop)


def _no_word_of_handshakes():
    strange = property(lambda self: None, lambda self, text: None)
    return patch.object(ServerLink, "_strange", strange, create=True)


def _every_fit_is_this_one():
    return patch.object(Series, "due", lambda self, *_, **__: self.fit)


def _another_series_is_this_one():
    """And the series is forgotten by a server that is killed between two fits."""
    def due(self, series, fit, *args, **options):
        return 1 if series != self.id else self.fit
    stack = contextlib.ExitStack()
    stack.enter_context(patch.object(Series, "continues", staticmethod(lambda run: False)))
    stack.enter_context(patch.object(Series, "due", due))
    return stack


def _a_fit_is_skipped():
    """By a server that is started again between two fits, and goes by what it finds there."""
    def skipping(run, real=wbsp.ps.series.next_run):
        after = real(run)
        return after and real(after | {"ended": True})
    stack = contextlib.ExitStack()
    stack.enter_context(patch.object(wbsp.ps.launch, "next_run", skipping))
    stack.enter_context(patch.object(Series, "due", lambda self, series, fit, *_, **__: fit))
    return stack


def _a_fit_is_served_again():
    """A server that is started again forgets its series, and no worker is there to remember it."""
    return patch.object(Series, "continues", staticmethod(lambda run: False))


class _Never(TransportError):
    """What no refusal is."""


def _whole_without_its_end():
    """A vector of several chunks."""
    def add(self, offset, data, size=None, real=VectorStream.add):
        found = real(self, offset, data, size)
        if found is None and self.filled + wbsp.wire.assembly.CHUNK >= self.size:
            floats, self._floats, self.filled = self._floats, None, 0
            found = np.split(floats, self._ends[:-1])
        return found
    return patch.object(VectorStream, "add", add)


def _dense_version_left_out():
    """Of the differences that lead from one version to a later one."""
    def differences(self, newest, real=Store._differences):
        if self._sending.wire.lossless and newest.where is None:
            return self.latest.differences
        return real(self, newest)
    return patch.object(Store, "_differences", differences)


def _rest_is_dropped():
    def send(self, *args, real=ErrorFeedback.send):
        sent = real(self, *args)
        self.owe(None)
        return sent
    return patch.object(ErrorFeedback, "send", send)


def _ended_is_settled():
    observe = Engine.observe
    return patch.object(Engine, "observe", lambda engine, on_version, settled: observe(
        engine, on_version, lambda: True))


def _push_of_a_lost_worker():
    def go_on(self, real=Requests.go_on):
        kept = {} if self._gate.shut else dict(self._gate._pushes)
        real(self)
        for session, update, arrived in kept.values():
            if not (self.sessions.of(session.worker) is session and session.joined):
                self._push(session, update, arrived)
    return patch.object(Requests, "go_on", go_on)


def _all_are_trained():
    trained = property(lambda self: self.samples, lambda self, value: None)
    return patch.object(Engine, "trained", trained, create=True)


def _early_goodbye():
    def follow(self, real=Upstream.follow):
        real(self)
        self.farewell()
    return patch.object(Upstream, "follow", follow)


def _too_late_for_the_next_server():
    def turns_away(self, identity, worker, hello, real=Admission._turns_away):
        if self._over is not None and isinstance(hello, m.Reattach) and not hello.left:
            self._sessions.refuse(identity, worker, f"worker {worker} is too late: {self._over}")
            return True
        return real(self, identity, worker, hello)
    return patch.object(Admission, "_turns_away", turns_away)


# A standby is suspended; its server continues alone, dies, and is away when the standby wakes.
_LONG_SLEEP = Plan("asp", standby=True, kills=1, when_alone=True, victims=("server",),
                   outage=(80.0, 90.0), aimed=(("held", "sleep standby"),), naps=(70.0,), steps=50,
                   speeds=(2.0, 3.0))

def _each_connection_is_the_first():
    """Of a worker's messages: those that come over a new one before it has introduced itself."""
    def received(self, *args, real=ServerSocket.received):
        real(self, *args)
        return self
    return patch.object(ServerSocket, "received", received)


def _durable_when_sent():
    take = Replication.take

    def early(self, snapshot):
        take(self, snapshot)
        self._snapshots.engine.ledger.saved(snapshot.mark)
    return patch.object(Replication, "take", early)


def _numbers_the_last_itself():
    finish = WorkerRuntime.finish

    def numbering(self, *args):
        before = self.agent.version
        finish(self, *args)
        self.agent.version = before + 1
    return patch.object(WorkerRuntime, "finish", numbering)


def _one_vote_elects():
    return patch.object(Votes, "won", property(lambda self: bool(self.promised)))


def _still_presents():
    handle = Client._handle

    def keeps(self, message, chunk, now):
        presents = self._presents
        handle(self, message, chunk, now)
        if isinstance(message, m.Joined):
            self._presents = presents
    return patch.object(Client, "_handle", keeps)


def _leaps_over_absent_workers(self, active):
    """Whoever is here now goes back to no other server."""
    return self.resumed and not self.ended and len(active | self.left) < self.expected


def _no_return():
    objection = Admission._objection_to_return

    def objects(self, request):
        if self._engine.started and not request.left:
            return f"worker {request.worker} is not expected"
        return objection(self, request)
    return patch.object(Admission, "_objection_to_return", objects)


def _promises_both(self, elect, now):
    """A worker votes for each server that follows its own."""
    return m.Elected(elect.epoch) if elect.since == self.epoch else None


def _one_vote_keeps():
    """A server that has lost its standby, where half of the votes are needed."""
    won = Votes.won.fget
    return patch.object(Votes, "won", property(
        lambda self: won(self) if self._strict else bool(self.promised)))


def _later_process_votes():
    """In the place of the one that the state names."""
    def come(self, peer, request, real=Candidate.come):
        owner = dict(self._state.voters).get(request.worker, request.owner)
        return real(self, peer, msgspec.structs.replace(request, owner=owner))
    return patch.object(Candidate, "come", come)


@contextlib.contextmanager
def _ends_in_silence():
    """A standby that is refused at the end of a fit, as it proves itself by a first contact."""
    with patch.object(PrimaryLink, "_of_run", PropertyMock(return_value=True)), patch.object(
            wbsp.ps.replication.standby, "say", lambda line: None):
        yield


PLANTED = [
    Planted("a push that comes again counts again", _counts_again,
            Plan("pcc", storm=0.03), {1}),
    Planted("durable is said before the file is there", _durable_at_once,
            Plan("pcc", kills=3, slow=0.3, steps=20), {10}),
    Planted("the pool hands out vectors that are held",
            lambda: patch.object(wbsp.tensors.buffers, "is_held", lambda *_: False),
            Plan("pcc", size=300_000, steps=4), {1, 5}, 8),
    Planted("both servers take the same epoch",
            _one_step,
            Plan("pcc", standby=True, kills=1, victims=("server",), naps=(40.0,), steps=40,
                 speeds=(0.3,), aimed=(("take-over", "isolate"),)), {4}, 3),
    Planted("a standby needs no promises",
            lambda: patch.object(Candidate, "won", PropertyMock(return_value=True)),
            Plan("pcc", standby=True, cuts=2, pair=("server", "standby"), naps=(7.0, 9.0), steps=40,
                 speeds=(0.3,)),
            {4, 11}),
    Planted("the farewell does not wait for the disk",
            lambda: patch.object(Checkpoints, "settled", PropertyMock(return_value=True)),
            Plan("pcc", slow=0.3), {10}),
    Planted("an epoch is no fence", _fence_is_open,
            Plan("asp", standby=True, sleeps=1, victims=("server",), breaks=12, naps=(60.0,),
                 steps=40, speeds=(2.0, 3.0)), {1, 2, 9}, 50, 30),
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
            lambda: patch.object(Rendezvous, "came_back", _without_floor()),
            Plan("asp", kills=3, period=1.0), {3, 9}),
    Planted("time stands still while a process sleeps", _time_stands_still,
            _LONG_SLEEP, {1, 2, 9, 11}, 10),
    Planted("what is found after a sleep is proof", _sleep_goes_unnoticed,
            _LONG_SLEEP, {1, 2, 9, 11}, 10),
    Planted("the first shard that is lost while another is waited for ends the server",
            _first_lost_shard_ends_it,
            Plan("pcc", shards=3, kill_shards=6, breaks=8, steps=40, outage=(1.0, 4.0)), {9}),
    Planted("a run that ended is over when one worker has the final version",
            _ends_when_one_is_served,
            Plan("pcc", aimed=(("farewell", "kill"),)), {2, 9}),
    Planted("who holds a copy is not noted",
            lambda: patch.object(Replication, "_record", lambda self, **changes: True),
            Plan("pcc", standby=True, kills=1, steps=60, victims=("server",), breaks=12,
                 speeds=(0.1, 0.3)), {4, 11}, 10),
    Planted("a standby that lives is given up", _a_standby_that_lives_is_given_up,
            Plan("asp", workers=4, steps=40, standby=True, period=5.0, kills=1, power=True,
                 victims=("server",), storm=0.03, slow=0.3, drift=0.02, speeds=(0.1, 0.3)),
            {1, 2}, 40),
    Planted("a take-over has its name before it is whole", _named_before_it_is_whole,
            Plan("pcc", standby=True, kills=1, victims=("server",), steps=40,
                 aimed=(("take-over", "kill"),)), {9}, 20, 5),
    # Memory of one machine.
    Planted("what is given up stays mapped",
            lambda: patch.object(wbsp.wire.shm.link.Link, "let_go", lambda self: None),
            Plan("asp", memory=True, workers=4, steps=100, speeds=(0.1,), kill_workers=20), {12},
            first=3),
    Planted("the server keeps what it has lent",
            lambda: patch.object(wbsp.wire.shm.lender.SharedLink, "close", _keeps_its_vectors()),
            Plan("asp", memory=True, workers=4, steps=100, speeds=(0.1,), kill_workers=40), {12},
            first=6),
    Planted("what a lost worker may read is used again",
            lambda: patch.object(wbsp.wire.shm.segments.SharedPool, "give_up", lambda *_: None),
            Plan("asp", memory=True, breaks=14, steps=40, speeds=(0.1,)), {1, 5}),
    Planted("what is lent is written to while it is read",
            lambda: patch.object(wbsp.wire.shm.lender.SharedLink, "returned",
                                 lambda self, request: self._lent.clear()),
            Plan("pcc", memory=True, breaks=14, steps=40, speeds=(0.1,)), {1, 5}),
    # Updates and versions that go as blocks.
    Planted("a version has the blocks of the last difference alone",
            lambda: patch.object(wbsp.tensors.blocks, "union", lambda several: several[-1]),
            Plan("asp", sparse=True, size=TABLE, speeds=(0.1,)), {1, 2, 3}, 10),
    Planted("of two updates the blocks of the first one count",
            lambda: patch.object(wbsp.tensors.blocks.Blocks, "plus", lambda self, other: self),
            Plan("bsp", sparse=True, size=TABLE), {1}, 10),
    Planted("of two differences' words the first one's are added",
            lambda: patch.object(wbsp.wire.assembly, "advanced", _first_alone),
            Plan("asp", sparse=True, size=TABLE, wire="int8", speeds=(0.03, 0.3)), {2, 3}, 10),
    # Series of fits.
    Planted("a server that is started again knows of no next fit",
            lambda: patch.object(Series, "continues", staticmethod(lambda run: False)),
            SeriesPlan(struck=(("t4", 1, "kill", "server"),)), {21, 22, 24}, 10),
    Planted("whatever fit a worker begins, it is the present one", _every_fit_is_this_one,
            SeriesPlan(kill_workers=2), {22}, 10),
    Planted("a fit of another series is the present one", _another_series_is_this_one,
            SeriesPlan(workers=2, struck=(("t4", 1, "kill", "server worker"),)), {22}, 20),
    Planted("a run of one fit is begun by those who had the one before",
            lambda: patch.object(Runs, "_look_back", lambda self, run: None),
            SeriesPlan(one_run=True, struck=(("t4", 1, "kill", "server"),)), {22}, 20),
    Planted("a fit that was never trained is passed", _a_fit_is_skipped,
            SeriesPlan(struck=(("t4", 1, "kill", "server"),)), {23}, 20),
    Planted("a fit that has ended is trained again", _a_fit_is_served_again,
            SeriesPlan(struck=(("t4", 1, "kill", "server workers"),)), {21}, 20),
    Planted("each fit begins with the first epoch",
            lambda: patch.object(Series, "exceeds", lambda self, epoch: None),
            SeriesPlan(standby=True, workers=2, struck=(("t1", 1, "kill", "server"),
                                                        ("t5", 1, "kill", "standby"))),
            {4, 24}, 60, 8),
    Planted("the higher epoch counts, with a version or without",
            lambda: patch.object(Standing, "rank", property(
                lambda self: rank_of(self.epoch, True, self.step == STANDBY_STEP))),
            SeriesPlan(standby=True, workers=2, struck=(("t0", 2, "kill", "server standby"),)),
            {24}, 20, 61),
    Planted("a worker that comes in the farewell gives up",
            lambda: patch.object(wbsp.worker.loop, "RunOver", _Never),
            SeriesPlan(evaluator="works", lasts=4.0, struck=(("t1", 1, "kill", "worker"),)), {24}),
    Planted("a worker that was admitted waits on for the answer to its introduction",
            _still_presents, SeriesPlan("asp", {}, workers=1, breaks=12, slow=0.3, fits=4), {24},
            10),
    # Strangers, mistakes, wild values and evaluators.
    Planted("a standby is not asked for its proof", lambda: _believed(m.Follow),
            Plan("pcc", standby=True, strangers=1, speeds=(0.1,)), {8, 9}, 10),
    Planted("a server is not asked for its proof by a shard", lambda: _believed(Lead),
            Plan("pcc", shards=2, strangers=1, speeds=(0.1,)), {8, 9}, 10),
    Planted("a worker that is back is not asked for its proof", lambda: _believed(m.Reattach),
            Plan("pcc", strangers=1, kills=1, speeds=(0.1,), hours=0.1), {1, 3, 8, 9}, 10),
    Planted("anybody votes", _anybody_votes,
            Plan("pcc", workers=1, standby=True, strangers=2, cuts=3, pair=("server", "standby"),
                 naps=(15.0,), steps=100, speeds=(0.3,)), {1, 4, 9, 11}, 20, 29),
    Planted("finite updates make a version that is not", _finite_is_enough,
            Plan("asp", wild=0.3), {8, 13}, 5),
    Planted("what was dropped with a model that is not finite counts as trained", _dropped_counts,
            Plan("pcc", data=(60, 4, 2), wild=0.2), {17}, 10),
    Planted("each thing that a peer causes is a line", _every_cause_is_a_line,
            Plan("pcc", strangers=2, speeds=(0.1,)), {15}, 60, 70),
    Planted("what a peer says is printed as it came", _texts_as_they_came,
            Plan("pcc", strangers=2, speeds=(0.1,)), {15}, 30, 4),
    Planted("a standby is not told that its settings are others",
            lambda: patch.object(wbsp.ps.replication.primary, "objection", lambda *_: None),
            Plan("pcc", mistakes=1, mistake="a standby of fewer workers", steps=40, speeds=(0.3,)),
            {10, 14}, 3),
    Planted("a token that is another one is not said", _no_word_of_handshakes,
            Plan("pcc", mistakes=1, mistake="a standby with another token", steps=40,
                 speeds=(0.3,)), {14}, 3),
    Planted("a shard's refusal is not said",
            lambda: patch.object(wbsp.ps.sharding.coordinator.ShardLink, "why", ""),
            Plan("pcc", shards=2, mistakes=1, mistake="a server of another run's shards", steps=40,
                 speeds=(0.3,)), {14}, 3),
    Planted("a process in waiting waits for ever",
            lambda: patch.object(wbsp.ps.replication.standby.Standby, "_wait_on",
                                 lambda self, now: None),
            Plan("pcc", mistakes=1, mistake="a standby of a shard", shards=2,
                 hours=0.2), {14}, 3),
    Planted("a server waits for ever for its evaluator",
            lambda: patch.object(wbsp.timeouts, "EVALUATOR_HANGS", 1e9),
            Plan("pcc", evaluator="hangs", hours=0.1), {9}, 3),
    Planted("the index of a process that may come back is given to another",
            lambda: patch.object(Indices, "kept", lambda self, now: set()),
            Plan("asp", chosen=True, kills=1, kill_workers=2, steps=40), {18}),
    # Votes, absences, and deaths within seconds.
    Planted("one vote elects", _one_vote_elects,
            Plan("asp", workers=4, standby=True, absences=1, hows=("cut",), away=(40.0,), steps=40,
                 speeds=(1.0, 3.0)), {1, 2, 4, 11}, 40),
    Planted("a server acts on a proof that is older than an election",
            lambda: patch.object(wbsp.timeouts, "PROOF", wbsp.timeouts.ELECTION + 1),
            Plan("asp", standby=True, fences=3, rates=(0.9, 1.1), steps=60, speeds=(0.1, 0.3)),
            {1, 2, 3, 4, 10}, 40, 2),
    Planted("a vote is for both", lambda: patch.object(Session, "_promise", _promises_both),
            Plan("asp", workers=4, standby=True, absences=1, hows=("cut",), away=(40.0,), steps=40,
                 breaks=12, speeds=(1.0, 3.0)), {1, 2, 4, 11}, 40),
    Planted("one vote keeps a server", _one_vote_keeps,
            Plan("asp", workers=4, standby=True, absences=2, hows=("cut",), away=(40.0,), steps=40,
                 speeds=(1.0, 3.0)), {11}, 30, 10),
    Planted("a worker's later process votes as the one before it", _later_process_votes,
            Plan("asp", standby=True, kill_workers=4, absences=2, hows=("cut",), away=(40.0,),
                 steps=40, breaks=12, speeds=(1.0, 3.0)), {11}, 20, 33),
    Planted("who is elected gives the numbers that its silent server may give",
            lambda: patch.object(Rendezvous, "leaps", _leaps_over_absent_workers),
            Plan("asp", workers=4, standby=True, fences=2, steps=60, breaks=12, speeds=(0.3, 1.0),
                 aimed=(("take-over", "break"),) * 3), {3}, 10),
    Planted("who was away while the others went on does not return", _no_return,
            Plan("asp", worker_absences=1, steps=60, speeds=(2.0, 3.0)), {9}, 20),
    Planted("there is no file beside a standby's copy",
            _no_file_beside_a_copy,
            Plan("asp", standby=True, kills=1, soon=3, steps=40, speeds=(0.3,), hours=0.03),
            {1, 3, 9, 10}, 20),
    Planted("a copy counts when it is sent", _durable_when_sent,
            Plan("pcc", standby=True, steps=20), {10}, 10),
    Planted("a worker numbers the last version itself", _numbers_the_last_itself,
            Plan("asp"), {2}, 10),
    Planted("an evaluator that dies takes the run with it", _dead_evaluator_ends_it,
            Plan("pcc", evaluator="dies"), {8, 9}, 3),
    Planted("a reader is sent the newest file in place of its version", _newest_in_its_place,
            Plan("pcc", readers=2, steps=80, speeds=(0.1,)), {8, 20}, 10),
    Planted("any version is the last one", _any_is_last,
            Plan("pcc", readers=2, steps=40, speeds=(0.1,)), {20}, 10),
    Planted("each report counts, of a version that was evaluated, too",
            lambda: patch.object(Results, "has", lambda self, version: False),
            Plan("pcc", readers=2, steps=40, speeds=(0.1,)), {21}, 10),
    Planted("all workers validate an epoch",
            lambda: patch.object(Readers, "_is_validated", lambda *_: False),
            Plan("pcc", data=(60, 4, 3), validates=True, validate="wait"), {20}, 10),
    Planted("a server waits for ever for a reader",
            lambda: patch.object(wbsp.timeouts, "EVALUATOR_HANGS", 1e9),
            Plan("pcc", readers=2, hours=0.2), {9}, 30),
    Planted("a message over a new connection is taken as of the one before",
            _each_connection_is_the_first,
            Plan("asp", data=(60, 4, 3), size=60, chunk=2, breaks=40, sleeps=10, steps=40,
                 speeds=(0.1,)), {7}, 10),
    Planted("a step without an example counts as one", _each_step_counts,
            Plan("asp", uncounted=0.4), {19}, 5),
    Planted("a step without an example has a loss", _each_step_has_a_loss,
            Plan("asp", uncounted=0.4, steps=20, speeds=(0.1, 0.3)), {19}, 10),
    Planted("a vector is whole before its last chunk", _whole_without_its_end,
            Plan("pcc", chunk=5), {1, 2, 3, 7, 8, 9}, 5),
    Planted("a dense version is left out between sparse ones", _dense_version_left_out,
            Plan("pcc", sparse=True, size=TABLE, dense=0.3, steps=20), {1, 2, 3}, 10),
    Planted("a resumed server forgets what its format has not sent",
            lambda: patch.object(wbsp.ps.server, "UNSENT", "another name"),
            Plan("pcc", wire="int8", kills=2, steps=20), {1}, 20),
    Planted("a format drops the rest of what it sends", _rest_is_dropped,
            Plan("pcc", wire="topk:0.1"), {1}, 5),
    Planted("a site takes the kept push of a worker that it has lost", _push_of_a_lost_worker,
            SitesPlan("bsp", "asp", kill_waiting=2, steps=25), {1, 8, 9}, 10),
    Planted("a site counts the examples of pushes that it has rejected", _all_are_trained,
            SitesPlan("asp", "ksync", steps=25), {1}, 5),
    Planted("a site that returns in the farewell is too late",
            lambda: patch.object(Engine, "owes", lambda self, worker: False),
            SitesPlan("asp", "asp", ends=(("final", "site"),)), {9}, 30),
    Planted("a site that has returned in the farewell is too late for the next server",
            _too_late_for_the_next_server,
            SitesPlan("bsp", "bsp", top_standby=True,
                      ends=(("final", "site"), ("returned", "top"))), {9}, 40),
    Planted("the last version of a site's workers is the run's last one",
            _ended_is_settled,
            SitesPlan("pcc", "ssp", sites=3, workers=1, readers=2, period=0.1), {20}, 30),
    Planted("a site keeps a version from above as its own of that number",
            lambda: patch.object(wbsp.ps.sessions.versions_above, "ABOVE", NAME),
            SitesPlan("asp", "dssp", workers=1, data=(24, 7, 3), validates=True, readers=1,
                      kills=1, kill_top=2, breaks=1, period=0.1, slow=0.3,
                      ends=(("left", "site top"), ("farewell", "top"))), {20}, 1, 118),
    Planted("workers of all sites validate an epoch",
            lambda: patch.object(Readers, "_is_validated", lambda *_: False),
            SitesPlan("pcc", "asp", data=(60, 4, 3), validates=True, validate="wait"), {20}, 30),
    Planted("a worker tells its results once",
            lambda: patch.object(WorkerRuntime, "tell", _tells_once),
            Plan("asp", data=(60, 4, 3), validates=True, validate="wait", storm=0.03, hours=0.2),
            {9}, 10, 10),
    Planted("a worker's next process validates at a site what the one before it did",
            lambda: patch.object(VersionsAbove, "joined", lambda self, worker: None),
            SitesPlan("asp", "asp", sites=1, data=(24, 4, 3), validate="wait", validates=True,
                      kill_validators=2, patience=300.0), {9}, 5),
    Planted("a site keeps to itself that no worker of it validates",
            lambda: patch.object(VersionsAbove, "_tell_of_none", lambda *_: None),
            SitesPlan("asp", "asp", workers=1, data=(24, 4, 2), validate="wait", validates=True,
                      kill_asking=1, patience=300.0), {9}, 5),
    Planted("a site knows no epoch by its results", _knows_no_epoch_by_its_results,
            SitesPlan("asp", "asp", sites=3, workers=1, data=(60, 4, 6), validates=True), {26}, 4),
    Planted("a checkpoint names no worker whose next process is about to join",
            _awaits_none_about_to_join,
            SitesPlan("esync", "nbsync", steps=4, standby=True, kills=3, kill_top=1, cuts=2,
                      isolations=2, slow=0.3, data=(60, 1, 2),
                      ends=(("left", "site top"), ("left", "site"))), {2}, 1, 13001886),
    Planted("a site says goodbye before the final version is safe", _early_goodbye,
            SitesPlan("asp", "asp", slow=0.3, ends=(("goodbye", "site"),)),
            {9}, 60),
    Planted("workers join before the first version is saved",
            lambda: patch.object(Admission, "_is_certain",
                                 property(lambda self: self._other.cleared)),
            Plan("pcc", kills=2, full=0.5, steps=20), {9, 10}, 20),
    Planted("a standby is refused, and ends without a line", _ends_in_silence,
            SeriesPlan(workers=1, standby=True, fits=2, struck=(("t3", 1, "full", "server"),)),
            {25}, 20),
    Planted("a standby that may begin the next fit is in no run.json",
            lambda: patch.object(Replication, "named", lambda self: True),
            SeriesPlan("ringmaster", {"r": 1000}, workers=2, standby=True, period=0.1, kills=2,
                       evaluator="works", fits=4, lasts=2.0,
                       struck=(("t4", 2, "kill", "server"),)), {24}, 30),
]


def _keeps_its_vectors():
    close, kept = wbsp.wire.shm.lender.SharedLink.close, []

    def keeping(self):
        kept.extend(self._lent)
        close(self)
    return keeping


def _without_floor():
    came_back = Rendezvous.came_back

    def forgetful(self, answer, newest, left):
        came_back(self, answer, newest, left)
        self.floor = 0
    return forgetful
