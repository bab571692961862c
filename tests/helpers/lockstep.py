"""A whole run in one thread: the server's conversation, and the workers' agents and communication.

No sockets and no clock: a random draw says which message arrives next, who computes, when a
checkpoint begins and ends, and when the server dies. Only sockets, threads and files are stand-ins.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import zmq
from lockstep_worker import LAYOUT, SIZE, Worker

from wbsp.core.engine import Engine
from wbsp.core.store import UNSENT, Store
from wbsp.process.host import HOST
from wbsp.ps.checkpoint.state import RunState
from wbsp.ps.clock import Clock
from wbsp.ps.config import RunInfo, ServerConfig
from wbsp.ps.dispatcher import Dispatcher
from wbsp.ps.sharding.coordinator import Shards
from wbsp.sync import create
from wbsp.tensors.codecs import parse
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import Challenges

RUN, SECRET = "ab12", bytes(32)


class Life:
    """One server process: what it holds, and what dies with it."""

    def __init__(self, world, saved, epoch):
        self.world = world
        self.engine = None
        self.writing = None  # a checkpoint under way
        wire = parse(world.wire)
        info = RunInfo(ServerConfig(world.workers_num, wire=wire), world.model().rule,
                       m.RunSettings(RUN, wire=wire.name), epoch, secret=SECRET)
        self.challenges = Challenges(os.urandom)
        reporter = SimpleNamespace(
            folder=Path("."), clock=Clock(lambda: world.now), say=world.said.append,
            event=partial(self.event, world.now))
        no_shards = Shards(info, self, reporter.say, lambda shard, message: None)
        self.dispatcher = Dispatcher(self, info, reporter, no_shards, dict, None)
        model = world.model()
        store = Store(saved["vector"], saved["state"].version, wire=wire,
                      unsent=saved["outer"].get(UNSENT))
        self.engine = Engine(model, store, world.workers_num, log=self.event)
        if epoch > 1:
            self.engine.restore(saved["state"])
            self.dispatcher.info.owners.update(saved["state"].places)
        self.requests = self.dispatcher.begin(self.engine, LAYOUT)

    def event(self, now, kind, **fields):
        self.world.events.append({"kind": kind, **fields})
        assert kind != "malformed", fields

    # What the dispatcher takes for sockets.

    on = HOST
    socket = property(lambda self: self)

    guard = SimpleNamespace(allow=lambda size: None)

    def received(self, frame, from_member, more=()):
        pass

    def watch(self):
        return Counter()

    def reaches(self, identity, message):
        return True

    def send_multipart(self, frames, flags=0, copy=True):
        identity, header, *body = frames
        worker = self.world.by_identity[bytes(identity)]
        worker.line.down.append((bytes(header), bytes(body[0]) if body else None))

    # What time brings about.

    def begin_checkpoint(self):
        def act(now):
            self.engine.ledger.mark += 1
            state = RunState(**vars(self.engine.state()), elapsed=now,
                             places=self.dispatcher.info.owners)
            self.writing = {"vector": self.engine.store.latest.vector,
                            "outer": self.engine.store.state(),
                            "state": RunState.from_json(json.loads(json.dumps(state.to_json())))}

        if self.writing is None:
            self.engine.at_rest(act, self.world.now)

    def end_checkpoint(self, fails):
        """The file is there, or could not be written."""
        if self.writing is not None:
            if not fails:
                self.world.disk = self.writing
                self.engine.ledger.durable = self.engine.ledger.mark
                for session in self.dispatcher.sessions:  # as in answer to their heartbeats
                    self.dispatcher.sessions.tell_progress(session)
            self.writing = None

    def timers(self):
        engine, now = self.engine, self.world.now
        if engine.started and engine.model.alarm is not None and now >= engine.model.alarm:
            self.requests.replies.send(engine.tick(now))
        if engine.done:
            self.end_checkpoint(fails=False)
            self.begin_checkpoint()
            self.end_checkpoint(fails=False)
            self.dispatcher.entrance.dismiss("the run has ended")
            self.requests.replies.farewell()

    def start_without_the_rest(self):
        """The patience with those who are not here is over."""
        here = [*self.engine.active, *self.engine.rendezvous.left]
        if here and not self.engine.started:
            self.requests.replies.send(self.engine.start(self.world.now))


class World:
    """A run and its faults, as a seed draws them.

    kills:  how often the server dies; each is followed by a restart from the disk
    breaks: how often a worker's connection breaks
    brief:  it is there again before the server gives the worker up
    late:   a restarted server does not always wait until all workers are there
    wire:   format of updates and versions
    """

    def __init__(self, sync, seed, options=None, workers=3, steps=12, kills=3, breaks=3,
                 late=False, wire="float32", brief=False):
        self.draw = random.Random(f"{sync} {seed}")
        self._sync, self._options, self.late, self.wire = sync, options or {}, late, wire
        self.brief = brief
        self.differences = 0  # versions that came as such
        self.now, self.said, self.events = 0.0, [], []
        self.workers_num, self.kills, self.breaks, self.epoch = workers, kills, breaks, 1
        vector = np.full(SIZE, 7, np.float32)
        self.disk = {"vector": vector, "outer": {}, "state": RunState(
            version=0, next_seq={}, totals=(0, 0), elapsed=0.0)}
        self.by_identity = {}
        self.life = Life(self, self.disk, 1)
        self.life.begin_checkpoint()
        self.life.end_checkpoint(fails=False)
        self.workers = [Worker(self, index, self.draw.randint(1, steps))
                        for index in range(workers)]
        self.planned = [worker.steps for worker in self.workers]
        self.by_identity = {worker.identity: worker for worker in self.workers}

    def model(self):
        return create(self._sync, **self._options)

    def run(self, most=20_000):
        """Until every worker has the final version."""
        idle = 0
        for _ in range(most):
            if all(worker.ended for worker in self.workers):
                return self
            self.now += self.draw.uniform(0, 0.2)
            self.life.timers()
            faults = list(self._faults())
            acts = list(self._possible())
            if faults or acts:
                self.draw.choice([*faults, *acts])()
            if acts:
                idle = 0
            else:  # time alone helps: an alarm, a patience
                idle += 1
                self.now += 1.0
                assert idle < 300, ("the run stands still", self.said[-5:], [
                    (w.index, w.agent and w.agent.waiting, w.client.pending)
                    for w in self.workers])
                if idle > 100:
                    self.life.start_without_the_rest()
        raise AssertionError("the run does not end")

    def _possible(self):
        for worker in self.workers:
            if worker.ended:
                continue
            if worker.line.broken:
                yield worker.reconnect
                continue
            if worker.line.up:
                yield lambda w=worker: self.deliver(w)
            if worker.line.down:
                yield worker.hear
            if worker.shared is not None and worker.shared.commands:
                yield worker.carry_out
            elif worker.may_compute:
                yield worker.compute

    def _faults(self):
        chance = self.draw.random()
        if chance < 0.1:
            yield self.life.begin_checkpoint
        elif chance < 0.2:
            yield lambda: self.life.end_checkpoint(self.draw.random() < 0.3)
        elif chance < 0.22 and self.kills:
            yield self.kill
        elif chance < 0.24 and self.late:
            yield self.life.start_without_the_rest
        elif chance < 0.26 and self.breaks:
            yield self.break_connection

    def deliver(self, worker):
        """The next message of a worker arrives."""
        header, body = worker.line.up.popleft()
        frames = [zmq.Frame(header), *([] if body is None else [zmq.Frame(body)])]
        self.life.dispatcher._handle(worker.identity, frames)

    def break_connection(self):
        """A worker's connection breaks; perhaps for so long that the server gives it up."""
        self.breaks -= 1
        worker = self.draw.choice(self.workers)
        worker.line.break_off()
        session = self.life.dispatcher.sessions.get(worker.identity)
        if session is not None and not self.brief and self.draw.random() < 0.5:
            self.life.dispatcher.lose(session, "no connection")

    def kill(self):
        """kill -9 the server, and restart it from its disk."""
        self.kills -= 1
        self.epoch += 1
        if self.draw.random() < 0.3:  # the file was complete, and no other process knew yet
            self.life.end_checkpoint(fails=False)
        for worker in self.workers:
            worker.line.break_off()
        self.life = Life(self, self.disk, self.epoch)
