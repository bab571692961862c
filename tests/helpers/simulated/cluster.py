"""Run one simulated training: its machines and processes, and the faults of its plan.

The code that runs is the real one: `prepare_server` and what it calls, `prepare_shard`, and a
worker's transport and runtime. This module adds what surrounds it: the command that starts a
process, and starts it again after a death, and the replica, whose sums are exact.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import logging
import mmap
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import count
from pathlib import Path

import numpy as np
import tensorboard.summary.writer.record_writer  # noqa: F401 (it may bring what looks for IPv6)
import zmq
from integer_replica import UNIT, IntegerReplica, TableReplica, of_rows, pattern, row

from simulated.disk import Disk, Machine
from simulated.evaluator import SimulatedEvaluator
from simulated.laws import Broken, Laws
from simulated.memory import Memory
from simulated.mistakes import MISTAKES
from simulated.network import Network
from simulated.plan import PATIENT, PORT, Plan
from simulated.reader import SimulatedReader, Validator
from simulated.strangers import Stranger
from simulated.threads import Scheduler
from simulated.world import World
from wbsp.access import Access
from wbsp.core.messages import Reattached
from wbsp.core.outer_optimizer import create_outer
from wbsp.process.host import HOST, Clock, Host
from wbsp.ps.config import ServerConfig, ShardPlan
from wbsp.ps.launch import prepare_server
from wbsp.ps.sharding.process import prepare_shard
from wbsp.sync import create
from wbsp.sync.base import UNFIT
from wbsp.tensors.codecs import parse
from wbsp.testing.once import Pushes, in_spans
from wbsp.timeouts import NEXT_RUN
from wbsp.wire import assembly, sockets
from wbsp.wire.client import SendUpdate
from wbsp.wire.errors import RunOver, TransportError
from wbsp.wire.liveness import SHARD
from wbsp.wire.loop import POLL, Loop
from wbsp.wire.messages.codec import Goodbye
from wbsp.worker.comm.transport import Transport
from wbsp.worker.runtime import WorkerRuntime
from wbsp.worker.share import Share

ROOT = "/runs"
_CONNECTS = 3.0  # seconds until a worker connects again, or less
_FENCED = 9.0  # seconds for which a server is out of reach, at most
_STEPS = 45  # of a take-over, from its first file until workers are served
_AGAIN = 8.0  # seconds between two deaths where a second one may cost what only one process holds


class Lines:
    """A process's console."""

    def __init__(self, cluster, name):
        self._cluster, self._name = cluster, name

    def isatty(self):
        return False

    def write(self, text):
        if text.strip():
            self._cluster.laws.said(self._name, text.rstrip("\n"))
            self._cluster.say(f"{self._name}: {text.rstrip()}")

    def flush(self):
        pass


class NotingTransport(Transport):
    """A transport whose member records its agent's messages."""

    member = None

    def request(self, request):
        if isinstance(request, SendUpdate) and self.member is not None:
            self.member.samples[request.push.seq] = request.push.samples
        super().request(request)

    def listen(self, listener, layout):
        member = self.member

        class Noting:
            def __getattr__(self, name):
                return getattr(listener, name)

            def received(self, message):
                if isinstance(message, Reattached) and message.joined:
                    member.readmitted(message)
                return listener.received(message)

            def acked(self, ack, seconds):
                member.acked(ack)
                return listener.acked(ack, seconds)

            def fetched(self, version, vector, nbytes, seconds):
                member.fetched(version, vector)
                return listener.fetched(version, vector, nbytes, seconds)
        super().listen(Noting(), layout)


_derive_keys = functools.cache(sockets.derive_keys.__wrapped__)  # slow on purpose


class WildReplica(IntegerReplica):
    """A replica some of whose updates are wrong: huge, or not finite.

    Attributes:
        chance: of such an update.
    """

    def __init__(self, *args, chance, draw, **options):
        super().__init__(*args, **options)
        self._chance, self._wild, self._was_wild = chance, draw, False

    def cut(self):
        update = super().cut()
        if self._wild.random() < self._chance:
            value = self._wild.choice([3e38, -3e38, 2e38, float("nan"), float("inf")])
            self.cuts[-1] = value / (5 * UNIT)
            with np.errstate(invalid="ignore"):  # 0 * inf
                update = (pattern(update.size) / 5 * value).astype(np.float32)
            self._was_wild = True
        return update

    def adopt(self, vector, how):
        if how == "replace" and self._was_wild:  # what such a push was part of is given up
            self.x, self.uncut = self.anchor, 0
        super().adopt(vector, how)


class DenseTable(TableReplica):
    """A table some of whose steps move all rows, so that a dense version follows and precedes
    sparse ones.

    Attributes:
        chance: of such a step.
    """

    def __init__(self, *args, chance, draw, **options):
        super().__init__(*args, **options)
        self._chance, self._dense = chance, draw

    def step(self):
        super().step()
        if self._dense.random() < self._chance:
            moved = np.ones(-(-self.x.size // row(self.x.size)), np.int64)
            self.x = self.x + (of_rows(moved, self.x.size) * self._pattern).astype(np.float32)
            self.uncut = self.uncut + moved


class WildTable(WildReplica, TableReplica):
    """A table with wrong updates."""


class Member:
    """One worker, over all its processes.

    Attributes:
        cuts, weights: of each push: what was cut; the weight with which it counts, according to its
            answer.
        spans: of each push: the positions of shared data in it.
        unfit: how often each position was in a push that was rejected as not finite, or too large.
    """

    def __init__(self, cluster, index, steps):
        self.cluster, self.index, self.steps = cluster, index, steps
        self.cuts, self.weights = [], {}
        self.samples = {}  # of each push
        self.examples = 0  # of all its steps, where the data is its own
        self.sent = []  # of each cut: what the run's format made of it, float32 [size]
        self.spans, self.uncut = [], []  # positions of shared data in each cut, and since the last
        self.unfit = Counter()
        # cuts, spans, sent and weights, while a process is outdated, and the epoch that it lacks
        self._counts, self._later = None, 0
        self.joined = None  # number of this process's first push
        self.runtime = self.replica = self.transport = self.process = None
        self.sessions = []  # of all its processes
        self.final = self.final_version = self.first = self.given_up = None
        self.left_at, self.lives, self.deaths = float("inf"), 0, []
        self.leaving = self.holds = False  # a signal has ended it; another process has its index
        self.speed = cluster.rng.choice(cluster.plan.speeds)
        self._uncounted = random.Random(f"uncounted {cluster.number} {index}")

    @property
    def session(self):
        return None if self.transport is None else self.transport.client.session

    @property
    def late(self):
        """Return whether the others finished without this worker, as they may."""
        if self.cluster.harsh:
            return self.given_up is not None
        ended_well = any(0 in codes for name, codes in self.cluster.codes.items()
                         if name in ("server", "standby"))
        # A server that waits for this worker's next fit, in vain, does not end well itself.
        return (self.lives > 1 or self.deaths) and self.given_up is not None and (
            ended_well or "too late" in self.given_up or "the run has ended" in self.given_up)

    @property
    def ended(self):
        return self.final is not None or self.given_up is not None

    def gone(self, life):
        """Return when a process of this worker had finished its steps, or died."""
        return self.deaths[life - 1] if life <= len(self.deaths) else self.left_at

    def start(self, name=None):
        process = self.cluster.process(name or f"w{self.index}")
        if not self.cluster.plan.chosen:
            self._is(process)
        process.start(lambda: self.run(process))

    def _is(self, process):
        """Note that this process is this worker from now on."""
        self.process, self.runtime, self.holds = process, None, True
        self.lives += 1

    def run(self, process):
        """Run this worker, or the one whose index the server chooses."""
        cluster = self.cluster
        me = None if cluster.plan.chosen else self

        def connection():
            made = NotingTransport(
                Access(cluster.address, token=cluster.token, share=cluster.plan.memory),
                None if me is None else self.index, cluster.say,
                lambda: me is not None and me.leaving, on=process.host)
            if me is not None:
                me.transport = made
            return made

        transport, own = connection(), process.host.scheduler.random(16)
        try:
            while (welcome := self._welcome(transport, own)) is None:
                transport.close()
                process.sleep(NEXT_RUN)
                transport = connection()
            if welcome.passes:
                transport.request(Goodbye())
                raise TransportError("it comes too late: its fit has ended")
            if cluster.run_id not in (None, welcome.run.id):
                raise TransportError("it comes too late: that run has ended, and another begins")
            cluster.run_id = welcome.run.id
            if me is None:
                me = cluster.members[transport.worker]
                if me.holds and me.process.alive:
                    raise Broken(18, f"two processes are w{me.index}")
                me._is(process)
                me.transport = transport
            me.train(transport, welcome)
        except TransportError as error:
            me = me or next(member for member in [self, *cluster.members] if not member.ended
                            and not (member.process and member.process.alive))
            # let go as sick, or for work that was lost: it is started again
            if "were not finite" in str(error) or "were lost with ended processes" in str(error):
                me.leaving = True
                cluster.notes["sick" if "finite" in str(error) else "work was lost"] += 1
            if not me.leaving:
                me.given_up = str(error)
            cluster.say(f"w{me.index}: {error}")
        finally:
            if me is not None:
                me.holds = False
            if process.alive:
                transport.close()
                if cluster.laws.lent is not None:
                    cluster.laws.lent.left(process)
                if me is not None and me.leaving and not me.ended:
                    me.comes_again()

    @staticmethod
    def _welcome(transport, own):
        """Return the server's answer; None: it serves the next run soon."""
        try:
            return transport.hello({}, 600.0, fit=1, own=own)
        except RunOver as error:
            if not error.follows:
                raise
            return None

    def train(self, transport, welcome):
        """Join the run, and train until its end, or a signal."""
        cluster, process = self.cluster, self.process
        transport.member = self
        self.sessions.append(transport.client.session)
        self.replica = replica = cluster.replica(self.index, self.lives)
        share = self._share(process)
        joined = transport.join(replica.layout, replica.read, 600.0, share=share)
        self.goes_on(joined)
        replica.cuts = self.cuts
        self._notes_what_is_sent(transport.client.session)
        self.runtime = runtime = WorkerRuntime(transport, replica, welcome.rule, joined, None,
                                               cluster.say, lambda: self.leaving, share=share)
        runtime.start()
        validator = Validator(self, transport, share) if cluster.plan.validates else None
        if validator is not None:
            validator.announce(runtime)
        for _ in range(max(0, self.steps - joined.steps)) if share is None else count():
            if runtime.stopped:
                break
            if self.leaving:
                runtime.finish("interrupted by a signal")
                return
            if share is not None:
                batch = share.take()
                self.uncut.append((batch.start, batch.stop))
            runtime.step_begins()
            process.sleep(self.speed * cluster.rng.lognormvariate(0, 0.3))
            replica.step()
            counts = share is not None or self._uncounted.random() >= cluster.plan.uncounted
            self.examples += counts
            runtime.step_done(samples=int(counts), loss=0.0 if counts else 1e3)
            if validator is not None and share.next_epoch > share.epoch:
                validator.epoch_ends(runtime)
        if validator is not None:
            validator.epoch_ends(runtime)
        self.left_at, self.leaving = cluster.world.now, False
        cluster.phase("last push", process)
        runtime.finish()
        self.final, self.final_version = np.array(replica.x), runtime.agent.version

    def _notes_what_is_sent(self, session):
        """Record what is sent, and check that the format keeps the rest: update + unsent = sent +
        unsent afterwards.
        """
        def encode(update, encode=session.encode):
            before = 0.0 if session.sending.unsent is None else session.sending.unsent.copy()
            due = update.astype(np.float64) + before
            sent = encode(update)
            after = 0.0 if session.sending.unsent is None else session.sending.unsent
            self.sent.append(sent.vector.copy())
            if np.isfinite(due).all() and np.isfinite(sent.vector).all() and (
                    np.abs(due - sent.vector - after) > 1e-6 * np.abs(due).max() + 1e-6).any():
                self.cluster.laws.broken(1, f"worker {self.index} sends {sent.vector[:4]} of "
                                         f"{due[:4]}, and keeps {np.ravel(after)[:4]}")
            return sent
        session.encode = encode

    def comes_again(self):
        """Start a new process of this worker after a while."""
        self.leaving = False
        self.deaths.append(self.cluster.world.now)
        self.joined = None
        name = self.process.name
        self.cluster.world.after(self.cluster.rng.uniform(0.05, 2.0), lambda: self.start(name))

    def _share(self, process):
        """Return this process's share of the data, whose use is recorded; None: it has its own
        data.
        """
        if self.cluster.plan.data is None:
            return None
        n, batch, epochs = self.cluster.plan.data
        share = Share(n, batch, on=process.host, validate=self.cluster.plan.validate)
        share.wants(epochs)
        replica, self.uncut = self.replica, []
        cut, adopt = replica.cut, replica.adopt

        def noting():
            update = cut()
            self.spans.append(self.uncut)
            self.uncut = []
            return update

        def replacing(vector, how):
            if how == "replace":  # what it was then is in no push
                self.uncut = []
            adopt(vector, how)
        replica.cut, replica.adopt = noting, replacing
        return share

    def readmitted(self, answer):
        """Note that another server has admitted this worker. What was sent again may be missing in
        the model, because others had done a part of its work.
        """
        if self._counts is not None and answer.epoch >= self._later:
            self._counts = None  # this process continues from there, in place of the earlier one
        if answer.void:
            self.cluster.notes["void"] += 1
            self.weights |= dict.fromkeys(
                (seq for seq in self.weights if seq >= max(answer.safe, self.joined)), 0.0)

    def goes_on(self, joined):
        """Continue in a new process from push `joined.seq`: what an earlier process cut after it is
        void. A process that joins a server of an earlier epoch changes nothing of what counts,
        until a server of a later epoch admits it.
        """
        self.forget_outdated()
        self.joined = seq = joined.seq
        newest = self.cluster.laws.settings.get("epoch", 0)
        if joined.epoch < newest and any(push >= seq for push in self.weights):
            self._later = newest
            self._counts = [*self.cuts], [*self.spans], [*self.sent], self.weights
        del self.cuts[seq:], self.spans[seq:], self.sent[seq:]
        self.weights = {push: weight for push, weight in self.weights.items() if push < seq}

    def forget_outdated(self):
        """Restore what counts after a process was connected to a server of an earlier epoch."""
        if self._counts is not None:
            self.cuts, self.spans, self.sent, self.weights = self._counts
            self._counts = None

    def acked(self, ack):
        assert ack.seq not in self.weights, f"worker {self.index} heard of push {ack.seq} twice"
        if ack.reason in UNFIT and self.cluster.plan.data is not None:
            self.unfit += in_spans(self.spans[ack.seq])
        self.weights[ack.seq] = ack.weight

    def pushes(self, weights=None):
        """Return its pushes with these weights; None: those of its answers."""
        return Pushes(f"worker {self.index}", dict(enumerate(self.cuts)),
                      self.weights if weights is None else weights, dict(enumerate(self.spans)))

    def fetched(self, version, vector):
        if self.first is None and version == 0:
            self.first = vector.copy()
        self.cluster.laws.fetched(self, version, vector)


class Cluster:
    """A run of `plan`, with the faults at the times that `seed` draws.

    Attributes:
        number: of the seed.
        said: all console lines.
        notes: counts of what happened: faults by kind, phases in which a fault struck.
    """

    _judged_by, _member = Laws, Member
    _flags = {}  # of its servers, beside those of each plan

    def __init__(self, plan: Plan, seed: int, folder: Path, loud: bool = False):
        self.plan, self.number, self.loud, self.folder = plan, seed, loud, folder
        self.world = World(f"{plan.sync} {seed}", plan.drift)
        self.rng = random.Random(f"faults {plan.sync} {seed}")
        self.said, self.notes = [], Counter()
        self.run_id = None  # of the run that is judged
        self.token = b"no secret at all, here"
        self.curve = _derive_keys(self.token).server_public
        world = self.world
        world.latency = plan.latency
        world.storm, world.storms = plan.storm, 8 if plan.storm else 0
        world.on_end, world.may_break = self._ended, self._may_break
        world.on_doom = self._dies_taking_over
        boxes = self._boxes()
        world.together = lambda one, two: boxes.get(one, one) == boxes.get(two, two)
        self.machines, self.processes, self.codes = {}, {}, {}
        self.wrong = {}  # process's name -> its mistake, and when it was started
        self.ends = {}  # process's name -> when it ended by itself
        self.wire = parse(plan.wire)
        self.last_death = -1e9
        self._deaths, self._soon = [], plan.soon  # time and name of each; how many may follow soon
        # A fault has lasted longer than a server is patient with a worker: the run may continue,
        # and end, without it.
        self.harsh = False
        self._away_since = self._back_at = -1e9
        self._aimed = [*plan.aimed]
        self.struck = {}  # name of a server -> by what it was struck last: nap, cut, off
        self._soon_draw = random.Random(f"soon {plan.sync} {seed}")
        self._fence_draw = random.Random(f"fence {plan.sync} {seed}")
        self._fenced = None  # a server that is out of reach until the other one acts alone
        self.laws = self._judged_by(self)
        for index in range(plan.shards):
            self.start_shard(index)
        self.start_server("server", resume=False)
        if plan.standby:
            self.start_server("standby", resume=False)
        self.readers = [SimulatedReader(self, number) for number in range(plan.readers)]
        steps = [self.rng.randint(1, plan.steps) for _ in range(plan.workers)]
        self.members = [self._member(self, index, steps[index]) for index in range(plan.workers)]
        for member in self.members:
            world.after(self.rng.uniform(0, 0.2), member.start)
        horizon = max(0.4, 0.9 * max(m.speed for m in self.members) * max(steps))
        self._draw_faults(horizon)
        self._draw_others(horizon)

    @property
    def address(self):
        return f"server:{PORT},standby:{PORT}" if self.plan.standby else f"server:{PORT}"

    @property
    def over(self):
        """Return whether all workers and the server that served them have ended."""
        return all(member.ended for member in self.members)

    @property
    def ended_at(self):
        """Return when the last server ended."""
        return max((time for name, time in self.ends.items() if name in ("server", "standby")),
                   default=self.world.now)

    @property
    def servers(self):
        return [self.processes[name] for name in ("server", "standby")[:1 + self.plan.standby]]

    def _boxes(self):
        """Return the name of a machine on the network -> the machine that it is the same as."""
        plan, draw = self.plan, random.Random(f"boxes {self.plan.sync} {self.number}")
        names = [*["standby"] * plan.standby, *(f"w{index}" for index in range(plan.workers))]
        return {name: draw.choice(["server", "server", "server", "standby"][:3 + plan.standby])
                for name in names if plan.memory and (name == "w0" or draw.random() < 0.7)}

    def _victim(self):
        return self.rng.choice(self.plan.victims or [one.name for one in self.servers])

    def say(self, text):
        self.said.append(f"{self.world.now:9.3f} {text}")
        if self.loud:
            print(self.said[-1])

    # Processes.

    def machine(self, name):
        if name not in self.machines:
            self.machines[name] = Machine(self.world, self.plan.slow, self.plan.full)
            self.machines[name].on_change = lambda path, data: self.laws.written(name, path, data)
        return self.machines[name]

    def process(self, name, machine=None):
        process = self.processes[name] = self.world.process(name, machine or name)
        if self.plan.rates is not None and name in ("server", "standby"):
            process.rate = self.plan.rates[name == "standby"]
        process.host = Host(Clock(process.monotonic, process.sleep, lambda: "one day",
                                  process.monotonic),
                            Scheduler(process),
                            Network(process), Disk(process, self.machine(process.machine),
                                                   self.folder / "scratch"),
                            Memory(process), Lines(self, name))
        return process

    def start_server(self, name, resume=True):
        """Run the command of the server or of the standby."""
        plan, process = self.plan, self.process(name)
        options = dict(plan.options)
        if plan.sync == "lbbsp" and plan.data is not None:
            options["batch"] = plan.data[1]
        model = create(plan.sync, **options)
        shards = ",".join(f"s{index}:{PORT}" for index in range(plan.shards)) or "1"

        def main():
            settings = {"sync": model.name, "sync_option": json.dumps(options, sort_keys=True)}
            try:
                config = ServerConfig(
                    plan.workers, check_period=plan.period, share=plan.memory, wire=self.wire,
                    outer=create_outer(plan.outer),
                    host=name, port=PORT, token=self.token, base_dir=plan.sync,
                    log_root=ROOT, resume=resume, shards=ShardPlan.parse(shards),
                    standby_of=f"server:{PORT}" if name == "standby" else None, **self._flags)
                serve = prepare_server(
                    settings, model, config,
                    (lambda at: self.start_evaluator(process, at)) if plan.evaluator else None,
                    process.host)
            except (ValueError, OSError) as error:
                self.say(f"{name}: {error}")
                self.laws.does_not_begin(name, error)
                return 1
            return serve()
        process.start(main)

    def start_shard(self, index):
        process = self.process(f"s{index}")
        process.start(lambda: prepare_shard(process.machine, PORT, self.token, None,
                                            process.host)())

    @property
    def all_sick(self):
        """Return whether all workers' updates were, by chance, wrong so often that the run has
        ended by that.
        """
        return bool(self.plan.wild) and any("pushes of all workers were not finite" in line
                                            for line in self.said[-200:])

    def _ended(self, process, code):
        name = process.name
        if self.laws.lent is not None and not code:
            self.laws.lent.left(process)
        self.ends[name] = self.world.now
        if name[0] != "w":
            self.say(f"{name}: ended with exit code {code}")
            self.codes.setdefault(name, []).append(code)
            if name in ("server", "standby"):
                self.laws.ended(name, code)
            if code and name == "server" and not (self.over or self.all_sick):
                self.laws.gave_up(code)
            if code and not self.over and name in ("server", "standby"):
                # as a supervisor of processes does
                self.world.after(2.0, lambda: self.start_server(name))
            if name[0] == "s" and name[1:].isdigit() and not self.over:
                self.world.after(1.0, lambda: self.start_shard(int(name[1:])))

    def replica(self, index, life):
        plan, seed = self.plan, self.number + 1000 * life
        if plan.wild:
            kind = WildTable if plan.sparse else WildReplica
            return kind(index, plan.size, seed=seed, chance=plan.wild,
                        draw=random.Random(f"wild {seed} {index}"))
        if plan.dense:
            return DenseTable(index, plan.size, seed=seed, chance=plan.dense,
                              draw=random.Random(f"dense {seed} {index}"))
        return (TableReplica if plan.sparse else IntegerReplica)(index, plan.size, seed=seed)

    def start_evaluator(self, process, at):
        self.notes["evaluator"] = 1
        return SimulatedEvaluator(self, process, random.Random(f"evaluator {self.number}"), at)

    # Others who are there.

    def _draw_others(self, horizon):
        """Draw strangers, readers and mistakes from a separate generator, so that what else happens
        is the same without them.
        """
        plan, draw = self.plan, random.Random(f"others {self.plan.sync} {self.number}")
        for number in range(plan.strangers):
            process = self.process(f"x{number}")
            stranger = Stranger(self, process, random.Random(draw.getrandbits(64)))
            self.notes["strangers"] += 1
            self.world.after(draw.uniform(0.0, horizon / 2),
                             lambda p=process, s=stranger: p.start(s.run))
        for reader in self.readers:
            self.notes["readers"] += 1
            self.world.after(draw.uniform(0.0, horizon / 2), reader.start)
        for _ in range(plan.kill_readers if self.readers else 0):
            self.world.after(draw.uniform(horizon / 2, horizon), draw.choice(self.readers).dies)
        fitting = [one for one in MISTAKES
                   if one.fits(plan) and plan.mistake in ("", one.name)]
        for number in range(plan.mistakes):
            begins = functools.partial(self._go_wrong, number, draw.choice(fitting))
            self.world.after(draw.uniform(0.2, horizon / 2), begins)

    def _go_wrong(self, number, mistake):
        if self.over:
            return
        name = f"m{number}"
        self.say(f"--- {mistake.name}: {name}")
        self.notes["mistakes"] += 1
        process = self.process(name)
        self.wrong[name] = mistake, self.world.now
        process.start(mistake.main(self, process))

    # Faults.

    def _draw_faults(self, horizon):
        plan, draw = self.plan, self.rng
        kinds = [(plan.kills, lambda: self.kill(self._victim())),
                 (plan.kill_shards, lambda: self.kill_shard()),
                 (plan.kill_workers, lambda: self.kill_worker()), (plan.leaves, self.leave),
                 (plan.cuts, self.cut), (plan.isolations, self.isolate),
                 (plan.breaks, self.break_connection), (plan.sleeps, self.sleep)]
        for number, act in kinds:
            for _ in range(number):
                self.world.after(draw.uniform(0.02, horizon), act)
        for number, act in ((plan.absences, self.is_away),
                            (plan.worker_absences, self.worker_is_away)):
            for _ in range(number):  # early: they last
                self.world.after(draw.uniform(0.02, horizon / 2), act)
        for _ in range(plan.fences):
            self.world.after(self._fence_draw.uniform(0.02, horizon / 2), self.fence)

    def phase(self, name, process):
        """Note that the run has reached a phase: faults that are planned for it strike, now or
        soon.
        """
        if name == "farewell" and self.plan.full and self.plan.shards:
            self.world.storms = 0  # as in `_may_die`: a connection to a shard is a life
        for aim in [*self._aimed]:
            if aim[0] == name:
                self._aimed.remove(aim)
                if aim == ("take-over", "kill"):
                    self.world.doomed[process] = self.rng.randrange(_STEPS)
                    continue
                fault, _, victim = aim[1].partition(" ")
                victim = victim or (process.name if process.name in ("server", "standby")
                                    else self._victim())
                self.world.after(self.rng.choice([0.0, 1e-5, 0.002, 0.05]),
                                 lambda f=fault, v=victim: self._strike(name, f, v))

    def _strike(self, phase, fault, victim):
        act = {"kill": lambda: self.kill(victim, waits=False), "cut": self.cut,
               "break": self.break_connection, "isolate": lambda: self.isolate(victim),
               "sleep": lambda: self.sleep(victim)}[fault]
        if act():
            self.notes[f"phase {phase}"] += 1

    def kill(self, name, waits=True):
        """Kill (kill -9), and run the command again after a while; return whether it was done."""
        if self.over or not self.processes[name].alive:
            return False
        if not self._may_die(name):
            if waits:
                self.world.after(0.5, lambda: self.kill(name))
            return False
        self.dies(name)
        return True

    def dies(self, name, power=False, outage=None):
        self.last_death = self.world.now
        power = power or self.plan.power
        self.say(f"--- kill {name}{' and its power' if power else ''}")
        self.notes["kills"] += 1
        self.processes[name].kill()
        if power:
            self.notes["power"] += 1
            self.machines[name].lose_power()
        self.laws.died(name)
        self._another_dies(name)
        self.world.after(self.rng.uniform(*self.plan.outage) if outage is None else outage,
                         lambda: self.starts_again(name))

    def _another_dies(self, name):
        """Kill another process within seconds of a death, perhaps: two deaths, by which what both
        held is lost.
        """
        now = self.world.now
        if any(other != name and now - time < _AGAIN for time, other in self._deaths):
            self.notes["deaths within 8 s of another"] += 1
        self._deaths.append((now, name))
        if self._soon:
            self._soon -= 1
            draw = self._soon_draw
            self.world.after(draw.choice([0.0, 0.001, draw.uniform(0.0, 1.0),
                                          draw.uniform(0.0, _AGAIN)]),
                             lambda: self._dies_soon(name, draw))

    def _dies_soon(self, other, draw):
        """Kill a worker, or a server that may die, but not `other`, which has just died."""
        members = [member for member in self.members if f"w{member.index}" != other
                   and not member.ended and member.runtime is not None
                   and member.process.alive and not member.leaving]
        servers = [one.name for one in self.servers if one.name != other and one.alive]
        if self.over or not self.laws.begun or not (members or servers):
            return
        if servers and (draw.random() < 0.3 or not members):
            name = draw.choice(servers)
            self.laws.two_deaths = True
            self.dies(name)
        else:
            self._worker_dies(draw.choice(members))

    # Absences.

    def is_away(self):
        """Let the machine of a server or its standby sleep for long."""
        name = self.rng.choice([self._victim(), self.laws.serving, self.laws.serving])
        how = self.rng.choice(self.plan.hows)
        if self.over or not self.processes[name].alive:
            return
        held = self._may_die(name) and self.laws.held_by_standby
        if not held or self.world.now < self._back_at:
            self.world.after(0.5, self.is_away)
            return
        self.take_away(name, how, self.rng.choice(self.plan.away))

    def worker_is_away(self):
        """Let a worker's machine sleep for longer than a server waits for it."""
        member = self.rng.choice(self.members)
        if self.over or member.ended or member.runtime is None or not member.process.alive:
            return
        seconds = 2 * self.rng.choice(self.plan.away)
        self.take_away(member.process.name, self.rng.choice(["nap", "cut"]), seconds)
        self.laws.is_away(member, seconds)

    def take_away(self, name, how, seconds):
        process = self.processes[name]
        self.say(f"--- {name} is away for {seconds:g} s: {how}")
        self.notes["absences"] += 1
        self._out_of_touch(seconds)
        self.struck[name] = how
        if how == "nap":
            process.asleep_until = max(process.asleep_until, self.world.now + seconds)
        else:
            pairs = self._around(name) if how == "off" else self._some_around(name)
            self.world.part(pairs)
            self.world.after(seconds, lambda: self._heal(pairs))
        if how == "off":
            self.dies(name, True, seconds + self.rng.uniform(0.05, 1.0))
        self.world.after(self.rng.uniform(1.0, 12.0), lambda: self._given_up(name, how))

    def fence(self):
        """Make the server unreachable until its standby, which dies then, serves alone."""
        draw, name = self._fence_draw, "server"
        if self.over:
            return
        if self._fenced or not (self._may_die(name) and self.laws.held_by_standby):
            self.world.after(0.5, self.fence)
            return
        pairs = self._around(name)
        self.say(f"--- {name} is out of reach")
        self._fenced, self.struck[name] = (name, pairs), "cut"
        self._out_of_touch(_FENCED)
        self.world.part(pairs)
        self.world.after(draw.uniform(0.05, 0.6), lambda: self._given_up(name, "cut"))
        self.world.after(_FENCED, lambda: self._in_reach(name))

    def _in_reach(self, name):
        if self._fenced and self._fenced[0] == name:
            self._heal(self._fenced[1])
            self._fenced = None

    def acts_alone(self, name):
        """Note that a process was elected in place of the other one."""
        if self._fenced and self._fenced[0] != name:
            draw = self._fence_draw
            self.world.after(draw.uniform(0.0, 0.7),
                             lambda: self._dies_alone(name))

    def _dies_alone(self, name):
        """Kill it once the durable state is on its disk."""
        if self.over or not self._fenced or not self.processes[name].alive:
            return
        if not (self._none_is_new() and self.laws.alone(name)):
            self.world.after(0.02, lambda: self._dies_alone(name))
            return
        fenced, draw = self._fenced[0], self._fence_draw
        self.notes["fences"] += 1
        self.dies(name, outage=draw.uniform(2.0, 6.0))
        self.world.after(draw.uniform(0.0, 0.1), lambda: self._in_reach(fenced))

    def _some_around(self, name):
        """Cut a server off from all others; or from the other server and from some workers: then
        both may ask workers for their votes.
        """
        pairs = self._around(name)
        if name in ("server", "standby") and self.rng.random() < 0.5:
            reached = {f"w{member.index}" for member in self.members if self.rng.random() < 0.5}
            pairs = {pair for pair in pairs if not reached & {*pair}}
        return pairs

    def _around(self, name):
        others = [one for one in self.machines if not self.world.together(one, name)]
        return {(name, one) for one in others} | {(one, name) for one in others}

    def _given_up(self, name, how):
        """Let a router drop the connections to this machine, and report it."""
        for connection in self.world.connections():
            if (self.processes[name].machine in connection.route(connection.up)
                    and (connection.parted or how == "nap") and not self._to_shard(connection)):
                connection.lapse()

    def _dies_taking_over(self, process):
        """Kill a process between two of its steps."""
        if self.over or not self._none_is_new():
            return
        self.notes["phase take-over"] += 1
        self.dies(process.name)
        self.laws.died_taking_over(process.name)

    def starts_again(self, name):
        if not self.processes[name].alive:
            self.start_server(name)

    def _may_die(self, name):
        """Return whether nothing is lost by this death: with one death at a time the other process
        holds what this one does, and no worker has died whose decisions are not durable.
        """
        if self.world.now - self.last_death < (_AGAIN if self.plan.standby else 0.0):
            return False
        if not self._none_is_new():
            return False
        if self.plan.full and self.laws.farewell:
            return False  # a final version that no disk took is with the workers alone
        if self.plan.standby and self.laws.begun:
            return self.laws.alone(name) or (not self.plan.when_alone and
                all(process.alive for process in self.servers) and self.laws.held_by_standby)
        return True

    def _none_is_new(self):
        """Return whether a checkpoint has all that the workers which have died had pushed."""
        return all(member.ended or (member.process.alive and not member.leaving
                                    and self.laws.has(member))
                   for member in self.members
                   if member.lives > 1 or member.deaths or member.leaving)

    def kill_shard(self):
        name = f"s{self.rng.randrange(self.plan.shards)}"
        if self.over or not self.processes[name].alive:
            return
        if not self._may_die(name):
            self.world.after(0.5, self.kill_shard)
            return
        self.last_death = self.world.now
        self.say(f"--- kill {name}")
        self.notes["kill_shards"] += 1
        self.processes[name].kill()
        self._another_dies(name)
        self.world.after(self.rng.uniform(0.05, 2.0),
                         lambda: self.start_shard(int(name[1:])))

    def kill_worker(self):
        if (member := self._goes()) is not None:
            self._worker_dies(member)

    def _worker_dies(self, member):
        self.say(f"--- kill w{member.index}")
        self.notes["kill_workers"] += 1
        member.process.kill()
        member.comes_again()
        self._another_dies(f"w{member.index}")

    def leave(self):
        """Interrupt a worker, as Ctrl-C or a scheduler does."""
        if (member := self._goes()) is not None and member.left_at > self.world.now:
            self.say(f"--- w{member.index} is to leave")
            self.notes["leaves"] += 1
            member.leaving = True

    def _goes(self):
        """Return a worker that may end now, with all that it alone holds; or None."""
        member = self.rng.choice(self.members)
        if member.ended or member.runtime is None or not member.process.alive or member.leaving or (
                self.world.now - self.last_death < _AGAIN and self.plan.kills):
            return None
        if not all(process.alive for process in self.servers):
            return None
        self.last_death = self.world.now
        return member

    def cut(self):
        names = sorted({process.machine for process in self.world.processes}
                       | {f"w{member.index}" for member in self.members})
        one, two = self.plan.pair or self.rng.sample(names, 2)
        if self.world.together(one, two):
            apart = [(a, b) for a in names for b in names if not self.world.together(a, b)]
            if not apart:
                return False
            one, two = self.rng.choice(apart)
        pairs = {(one, two)} if self.rng.random() < 0.3 else {(one, two), (two, one)}
        self.struck.update({one: "cut", two: "cut"})
        self.say(f"--- cut {sorted(pairs)}")
        self.notes["cuts"] += 1
        self.world.part(pairs)
        seconds = self.rng.choice(self.plan.naps)
        if any(self._shard(name) for name in (one, two)):
            seconds = self._silence_of_a_shard(
                seconds, [name for name in (one, two) if name in ("server", "standby")])
        self._out_of_touch(seconds)
        self.world.after(seconds, lambda: self._heal(pairs))
        return True

    @staticmethod
    def _shard(name):
        return name[0] == "s" and name[1:].isdigit()

    def _silence_of_a_shard(self, seconds, servers):
        """Return for how long a shard may be silent to these. A server takes a longer silence for
        the shard's end, and dies with it and with what it holds; so not where that would be a
        second death.
        """
        if not (self.plan.standby and servers and seconds > SHARD.silent):
            return seconds
        if not all(self._may_die(server) for server in servers):
            return min(self.plan.naps)
        self.last_death = self.world.now + SHARD.silent
        return seconds

    def isolate(self, name=None):
        """Make a server unreachable for all others, and them for it."""
        name = name or self._victim()
        pairs = self._around(name)
        self.struck[name] = "cut"
        self.say(f"--- isolate {name}")
        self.notes["isolations"] += 1
        self.world.part(pairs)
        seconds = self.rng.choice(self.plan.naps)
        self._out_of_touch(seconds)
        self.world.after(seconds, lambda: self._heal(pairs))
        return True

    def _heal(self, pairs):
        self.say(f"--- healed {sorted(pairs)}")
        self.world.heal(pairs)

    def break_connection(self):
        found = [one for one in self.world.connections() if one.open and not (
            (self.plan.standby or (self.plan.full and self.laws.farewell))
            and self._to_shard(one))]  # that is a death of the server
        if found and not self.over:
            self.notes["breaks"] += 1
            self.rng.choice(found).close()
            return True
        return False

    def _to_shard(self, connection):
        """Return whether the connection is a server's to its shard: the server dies with it."""
        return (connection.dealer.process.name in ("server", "standby")
                and connection.router.process.name[1:].isdigit())

    def _may_break(self, connection):
        """Let a storm break a server's connection to a shard only if the server may die."""
        if not (self.plan.standby and self._to_shard(connection)):
            return True
        if not self._may_die(connection.dealer.process.name):
            return False
        self.last_death = self.world.now
        return True

    def _out_of_touch(self, seconds):
        """Cut some off from others for this long. A worker that is back for less time than it may
        take to connect again counts as away all the time.
        """
        now = self.world.now
        if now > self._back_at + _CONNECTS:
            self._away_since = now
        self._back_at = max(self._back_at, now + seconds)
        self.harsh = self.harsh or self._back_at - self._away_since > PATIENT

    def sleep(self, name=None):
        alive = sorted((process for process in self.world.processes if process.alive),
                       key=lambda process: process.name)
        if self.over or not alive:
            return False
        if self.plan.victims:
            name = name or self._victim()
        process = self.processes[name] if name else self.rng.choice(alive)
        seconds = self.rng.choice(self.plan.naps)
        if self._shard(process.name):
            seconds = self._silence_of_a_shard(seconds, [one.name for one in self.servers])
        self.struck[process.name] = "nap"
        self.say(f"--- {process.name} sleeps for {seconds:g} s")
        self.notes["sleeps"] += 1
        self._out_of_touch(seconds)
        process.asleep_until = max(process.asleep_until, self.world.now + seconds)
        return True

    # The run.

    def run(self):
        """Play the run. Raise AssertionError if a law is broken."""
        kinds = self.plan.faults
        self.notes["chosen"] += self.plan.chosen
        self.notes.update({kind: 1 for kind in ("chunk", "dense", "uncounted")
                           if getattr(self.plan, kind)})
        self.notes.update({kind: 1 for kind in ("storm", "full", "drift", "slow disk", "wild")
                           if kind in kinds})
        with alone(self), small_chunks(self.plan.chunk):
            try:
                done = self.world.run(
                    lambda: self.all_sick or (
                        self.over and not any(one.alive for one in self.servers) and not any(
                            self.processes[name].alive for name in self.wrong)),
                    3600 * self.plan.hours)
                for member in self.members:
                    member.forget_outdated()
                if not self.all_sick:
                    self.laws.check(done)
                self.notes["all sick"] += self.all_sick
                if self.laws.lent is not None and self.laws.lent.shares:
                    self.notes["memory"] += 1
            finally:
                self.world.close()
        return self


@contextlib.contextmanager
def small_chunks(most):
    """Limit a message to this many floats; 0: no limit but the usual one."""
    usual, split = assembly.CHUNK, assembly.split.__defaults__
    if most:
        assembly.CHUNK, assembly.split.__defaults__ = most, (most,)
    try:
        yield
    finally:
        assembly.CHUNK, assembly.split.__defaults__ = usual, split


class _Handler(logging.Handler):
    def __init__(self, cluster):
        super().__init__()
        self._cluster = cluster

    def emit(self, record):
        current = self._cluster.world.current
        name, text = current.process.name if current else "-", record.getMessage()
        self._cluster.laws.said(name, text)
        self._cluster.say(f"{name}: {text}")


class _Real:
    """A stand-in for the real world."""

    def __init__(self, what):
        self._what = what

    def __getattr__(self, name):
        raise AssertionError(f"a simulated run uses the real {self._what}: {name}")


@contextlib.contextmanager
def alone(cluster):
    """Within this context nothing that a simulated thread does reaches the real clock, threads,
    sockets or disk.

    Lines of the library's logger go to the run; garbage is collected after it.
    """
    world, here = cluster.world, threading.get_ident()
    logger, collecting = logging.getLogger("wbsp"), gc.isenabled()
    handlers, logger.handlers = logger.handlers, [_Handler(cluster)]
    # A library that has configured logging in this process may have switched others' loggers off.
    quiet = logger.disabled, logger.level, logging.root.manager.disable
    logger.disabled, logging.root.manager.disable = False, 0
    logger.setLevel(logging.INFO)
    parts = {name: getattr(HOST, name) for name in ("clock", "scheduler", "network", "disk",
                                                "memory")}
    for name in parts:
        object.__setattr__(HOST, name, _Real(name))
    real = [(owner, name, getattr(owner, name)) for owner, name in (
        (time, "monotonic"), (time, "clock_gettime"), (time, "sleep"), (threading.Thread, "start"),
        (socket.socket, "__init__"), (zmq.Context, "__init__"), (os, "urandom"), (os, "fsync"),
        (subprocess.Popen, "__init__"), (os, "memfd_create"), (mmap, "mmap"))]

    def guarded(name, function):
        def guard(*args, **options):
            if world.current is not None and threading.get_ident() == here:
                error = AssertionError(f"a simulated run uses the real {name}")
                world.failures.append(error)
                raise error
            return function(*args, **options)
        return guard
    for owner, name, function in real:
        setattr(owner, name, guarded(f"{owner.__name__}.{name}", function))
    sockets.derive_keys, derive_keys = _derive_keys, sockets.derive_keys
    # No bytes pile up unread here, so that a look for them every few milliseconds finds nothing.
    looks, Loop.__init__.__defaults__ = Loop.__init__.__defaults__, (POLL,)
    gc.disable()
    argv, sys.argv = sys.argv, ["wbsp"]  # which run.json shows
    try:
        yield
    finally:
        sys.argv = argv
        sockets.derive_keys, Loop.__init__.__defaults__ = derive_keys, looks
        for owner, name, function in real:
            setattr(owner, name, function)
        for name, part in parts.items():
            object.__setattr__(HOST, name, part)
        logger.handlers = handlers
        logger.disabled, level, logging.root.manager.disable = quiet
        logger.setLevel(level)
        if collecting:
            gc.enable()
