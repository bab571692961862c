"""Loops over shared data with every kind of loader, whose workers die and return: all is trained.

`World` plays them in one thread: the server's work, and the participants, shares, epochs, batches
and samplers of real workers. A seed draws who acts next, what is lost, and how late a message
arrives. Only the connection is a stand-in, and the step, which trains a batch and does nothing
else.
"""

from collections import Counter, deque
from random import Random

import numpy as np
import pytest

import wbsp
from wbsp.core.agent import Cut, Expect
from wbsp.core.messages import Ack, AskWork, Fetch, Granted, SharedData, Work
from wbsp.core.participant import Participant
from wbsp.core.shared_work import SharedWork
from wbsp.sync import create
from wbsp.testing.once import assert_each, in_spans

jnp = pytest.importorskip("jax.numpy")


class Loader:
    """Batches of a sampler, as torch's DataLoader has them: `ahead` are requested before one is
    returned, and another one whenever one is returned, if the sampler has not ended."""

    def __init__(self, sampler, ahead=0):
        self.sampler, self.ahead = sampler, ahead

    def __iter__(self):
        indices, made = iter(self.sampler), deque()
        for _ in range(self.ahead):
            made.extend(self.more(indices))
        while True:
            made.extend(self.more(indices))
            if not made:
                return
            yield np.array(made.popleft())

    def more(self, indices):
        return [one] if (one := next(indices, None)) is not None else []


class Connection:
    """Replaces a `loop.Worker` and its runtime: in the run, until the run is over."""

    loop = stop_reason = None

    def begun(self):
        return self

    connected = begun

    def enter(self, phase):
        pass


class Process:
    """One process of a worker."""

    def __init__(self, world, index):
        self.world, self.index = world, index
        self.w = wbsp.Worker({"w": jnp.zeros(1)}, n=world.n, batch_size=world.batch,
                             epochs=world.epochs, address="localhost:1", worker_index=index)
        self.share, self.line = self.w._share, Connection()
        self.w._member, self.line.loop = self.line, self
        place = world.work.open(index, self.share.data, 0, None)
        self.one, self.cut = Participant(index, world.rule, place=place), None
        self.share.begin(place, self.one)
        self.follow(self.one.received(Granted(0), 0.0))
        world.work.granted(index)
        self.inbox, self.seen = deque(), []
        self.loop = self.trains()

    def follow(self, commands):
        for command in commands:
            match command:
                case Cut():
                    self.cut = command
                case Fetch() | Expect():
                    self.follow(self.one.fetched(self.world.version))
                case AskWork():
                    self.world.send(self.world.work.ask(self.index, command.have, False,
                                                        self.world.now, ahead=command.ahead))

    def batches(self):
        w, kind = self.w, self.world.loader
        if kind == "indices":
            return w.indices()
        if kind == "arrays":
            return w.batches(np.arange(self.world.n))
        if kind == "sampler":
            return Loader(w.sampler)
        return w.batches(Loader(w.sampler, kind))

    def trains(self):
        yield from self.examples()
        for epoch in self.w.epochs():
            self.seen.append(epoch)
            for indices in self.batches():
                assert 0 < len(indices) <= self.world.batch
                yield
                oldest = self.share._handed[0]
                expected = self.w._order.examples(oldest.start, oldest.stop, self.world.n, 0)
                assert np.array_equal(indices, expected), "another batch than the step's"
                self.one.step_begins()
                self.follow(self.one.step_done(self.share.step_done(), 0.1))
                self.w._steps += 1
                yield from self.examples()

    def examples(self):
        """Wait for the next step's examples, as `w.step` does."""
        while self.one.agent.waiting or not (self.share.ready or self.line.stop_reason):
            self.follow(self.one.starved())
            yield


class World:
    def __init__(self, seed, sync, loader):
        self.random = random = Random(f"{seed} {sync} {loader}")
        self.n, self.batch, self.loader = random.randint(1, 60), random.randint(1, 9), loader
        self.epochs = random.randint(1, 4)
        self.rule = create(sync).rule
        self.work = SharedWork(SharedData(self.n, self.batch, self.epochs), self.rule)
        self.trained, self.now, self.deaths, self.version = Counter(), 0.0, 0, 0
        self.living = {}
        for index in range(random.randint(2, 4)):
            self.living[index] = Process(self, index)

    def send(self, outgoing):
        for one in outgoing:
            assert isinstance(one.message, Work)
            if one.worker in self.living:
                self.living[one.worker].inbox.append(one.message)

    def act(self, me):
        match self.random.randrange(4):
            case 0:
                if me.inbox:
                    me.follow(me.one.received(me.inbox.popleft(), self.now))
            case 1:
                me.follow(me.one.due(self.now))
            case 2:
                self.push(me)
            case _:
                next(me.loop, None)

    def push(self, me):
        if me.cut is None:
            return
        (push, _, spans), me.cut = me.cut, None
        accepted = self.work.owns(push) and self.random.random() < 0.9
        self.work.pushed(push, accepted, None, False, self.now)
        self.work.granted(me.index)
        self.version += 1
        if accepted:
            self.trained += in_spans(spans)
        me.follow(me.one.received(Ack(push.seq, accepted, granted=self.version), self.now))

    def play(self, faulty):
        for event in range(40_000):
            self.now += 0.01
            if self.work.ledger.over:
                return self.ends()
            if event < faulty and self.random.random() < 0.01 and len(self.living) > 1:
                index = self.random.choice([*self.living])
                self.work.left(index)
                del self.living[index]
                self.deaths += 1
            dead = {*range(4)} - {*self.living}
            if event < faulty and self.random.random() < 0.003 and dead:
                index = self.random.choice([*dead])
                self.living[index] = Process(self, index)
            self.act(self.random.choice([*self.living.values()]))
            self.send(self.work.feed(self.now))
        raise AssertionError("the run does not end")

    def ends(self):
        for me in self.living.values():
            me.line.stop_reason = "all is trained"
            me.share.stop()
            for _ in me.loop:
                pass
            assert me.seen == sorted({*me.seen}), "each epoch at most once, in order"
        assert_each(self.trained, self.n * self.epochs)


@pytest.mark.parametrize("sync", ["pcc", "bsp"])
@pytest.mark.parametrize("loader", ["indices", "arrays", "sampler", 0, 1, 2, 5])
def test_with_every_loader_the_survivors_train_all_examples(loader, sync):
    deaths = 0
    for seed in range(15):
        world = World(seed, sync, loader)
        world.play(faulty=1500)
        deaths += world.deaths
    assert deaths > 10


@pytest.mark.parametrize("loader", [0, 1, 4])
def test_examples_that_return_are_trained_in_the_epoch_that_this_worker_has_reached(loader):
    """A worker dies with examples of an epoch that the other one has left."""
    world = World(0, "pcc", loader)
    world.n, world.batch, world.epochs = 20, 4, 3
    world.work = SharedWork(SharedData(20, 4, 3), world.rule)
    lost, me = (Process(world, index) for index in range(2))
    world.living = {0: lost, 1: me}
    world.work.ledger.give(0, 4)
    share = me.share
    for size in (16, 20):
        given = world.work.ledger.give(1, size)
        me.one.received(Work(given.at, given.start, given.stop, 0), 0.0)
    seen = []
    for epoch in me.w.epochs():
        for indices in me.batches():
            seen.append((epoch, len(indices)))
            me.one.step_begins()
            me.one.step_done(share.step_done(), 0.1)
            me.w._steps += 1
            if len(seen) == 9:  # epoch 1 is trained, too, and then comes the rest of epoch 0
                world.work.left(0)
                given = world.work.ledger.give(1, 4)
                assert given.start == 0
                me.one.received(Work(given.at, given.start, given.stop, 0), 0.0)
            if len(seen) == 10:
                me.line.stop_reason = "enough"
                share.stop()
    assert seen == [(0, 4)] * 4 + [(1, 4)] * 6


def test_a_loader_that_prefetches_outside_of_batches_is_refused_with_a_remedy():
    world = World(0, "pcc", "sampler")
    world.n, world.batch, world.epochs = 20, 4, 1
    world.work = SharedWork(SharedData(20, 4, 1), world.rule)
    me = Process(world, 0)
    given = world.work.ledger.give(0, 20)
    me.one.received(Work(given.at, given.start, given.stop, 0), 0.0)
    with pytest.raises(ValueError, match="^a batch was requested before the last one was trained: "
                       "call w.step.*reads ahead, give its loader a __len__ .*accumulate gradients "
                       r"inside one step.*w.batches\(loader\)$"):
        list(Loader(me.w.sampler, 1))
    assert len(me.w.sampler) == me.share.total, "at least: trainers end an epoch by it"
