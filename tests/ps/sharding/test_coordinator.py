"""A server's side of its shards: which it waits for, for how long, and what it prints meanwhile."""

from io import StringIO
from types import SimpleNamespace

import pytest
import zmq
from jobs import free_port

from wbsp import timeouts
from wbsp.process.host import HOST, Clock, Host
from wbsp.process.signals import Interrupts
from wbsp.ps import launch as start
from wbsp.ps.config import Reporter, RunInfo, ServerConfig, ShardPlan
from wbsp.ps.server import Server
from wbsp.ps.sharding.coordinator import ShardLost, Shards
from wbsp.ps.sharding.process import ShardServer
from wbsp.runlog.console import Console
from wbsp.runlog.server import ServerLog
from wbsp.sync import create
from wbsp.wire.loop import Loop
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.sockets import ServerSocket

SECRET, TOKEN = bytes(32), b"a token of the test, long enough"


class There:
    """A process at an address that answers a server's request to be followed.

    answer: after the proof; knows: a key; None: that of a first contact
    """

    def __init__(self, answer=None, knows=None, token=None):
        self.answer, self._knows = answer, knows
        self.asked = 0
        self.socket = ServerSocket("localhost", free_port(), token, 1)

    def step(self):
        while self.socket.socket.poll(0):
            identity, frame = self.socket.socket.recv_multipart()
            self.asked += 1
            lead = m.decode(s.ToShard, frame)
            key, challenges = self._knows or self.socket.contact, self.socket.challenges
            proven = challenges.proven(identity, lead, key)
            self.socket.socket.send_multipart([identity, m.encode(
                self.answer if proven else challenges.challenge(identity, lead.nonce, key))])


class World:
    """A server that waits for shards; time passes as the test wants it.

    turn: called in each turn of its loop
    """

    def __init__(self):
        self.later, self.said, self.there = 0.0, [], []
        self.turn = lambda: None
        on = Host(clock=Clock(monotonic=lambda: HOST.clock.monotonic() + self.later))
        self.on, self.socket = on, ServerSocket("localhost", free_port(), None, 1, on=on)
        self.shards = None

    def shard(self, *arguments, **more):
        self.there.append(There(*arguments, **more))
        return self.there[-1]

    def waits(self, *ports, patience=timeouts.SHARDS_MISSING):
        """For shards at these ports, and those that are there."""
        ports = [one.socket.port for one in self.there] + list(ports)
        config = ServerConfig(1, shards=ShardPlan.parse(
            ",".join(f"localhost:{port}" for port in ports)))
        info = RunInfo(config, create("asp").rule, m.RunSettings("ab12"), 1, secret=SECRET)
        self.shards = Shards(info, self.socket, self.said.append, lambda shard, message: None)
        return self.shards.gather(self, patience)

    @property
    def first(self):
        """Asked for in each turn of the loop, as the signal that has come."""
        for one in self.there:
            one.step()
        self.turn()
        return None

    def hurry(self, reason, also=lambda: None):
        """Time is up as soon as the server knows the reason; `also`: called in each turn."""
        end = HOST.clock.monotonic() + 20

        def turn():
            also()
            assert HOST.clock.monotonic() < end, [link.why for link in self.shards._links]
            if reason in (self.shards._links[0].why or ""):
                self.later = 10_000.0
        self.turn = turn

    def close(self):
        if self.shards is not None:
            self.shards.close()
        for one in self.there:
            if not one.socket.socket.closed:
                one.socket.close()
        self.socket.close()


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr("wbsp.timeouts.SERVER_LINGER", 0.0)
    world = World()
    yield world
    world.close()


@pytest.mark.parametrize(("process", "reason"), [
    ({"knows": bytes([9]) * 32}, "another user or of another run"),
    ({"token": TOKEN}, "it has another token"),
    ({"answer": s.Denied("it is a server, not a shard")},
     "its reason: it is a server, not a shard"),
    ({"answer": s.Denied("forged\n\x1b[2Jlines")}, "its reason: forged??[2Jlines")])
def test_the_line_names_why_a_shard_does_not_follow(world, process, reason):
    world.shard(**process)
    world.hurry(reason)
    assert world.waits() == 1
    assert world.said[-1].startswith(
        f"stopping: the shard at localhost:{world.there[0].socket.port} has not connected within "
        "600 s;")
    assert reason in world.said[-1]


def test_a_server_does_not_wait_for_a_shard_that_follows_a_later_one_of_its_run(world):
    world.shard(answer=s.Denied("the shard follows the server of run ab12, epoch 3", 3))
    with pytest.raises(ShardLost, match="epoch 3") as lost:
        world.waits()
    assert lost.value.later == 3


def test_a_reason_is_of_the_process_that_has_given_it(world):
    """Another one is there since, which follows."""
    other = world.shard(knows=bytes([9]) * 32)
    port = other.socket.port

    def turn():
        if world.shards._links[0].why and len(world.there) == 1:
            other.socket.close()
            world.there[:] = [There(answer=s.Led(1))]
            world.there[0].socket.close()
            world.there[0].socket = ServerSocket("localhost", port, None, 1)
    world.turn = turn
    assert world.waits() is None
    assert world.shards._links[0].why is None


def test_a_shard_that_is_lost_while_another_is_waited_for_is_no_end(world):
    shard, gone = world.shard(answer=s.Led(1)), []

    def turn():
        if not gone and world.shards._links[0].led:
            gone.append(world.there.pop())
            shard.socket.close()
    world.turn = turn
    with pytest.raises(ShardLost, match="lost the connection to the shard at"):
        world.waits(free_port())


@pytest.mark.parametrize(("patience", "waited"), [
    (timeouts.SHARDS_MISSING, 600), (30.0, 30), (0.0, 2)])
def test_the_wait_for_a_server_ends_with_a_line(world, patience, waited):
    moments = iter([waited - 1, waited + 1])
    world.turn = lambda: setattr(world, "later", next(moments))
    assert world.waits(free_port(), patience=patience) == 1
    assert f"has not connected within {waited:g} s" in world.said[-1]


def test_a_process_that_searches_for_a_server_learns_its_address(world):
    port, asks = free_port(), world.socket.context.socket(zmq.DEALER)
    asks.connect(f"tcp://127.0.0.1:{world.socket.port}")
    asks.send(m.encode(m.Ask("ab12", bytes(32))))
    end = HOST.clock.monotonic() + 20

    def turn():
        world.later += 2.5 if not world.later else 0
        assert HOST.clock.monotonic() < end
        if asks.poll(0):
            world.later = 10_000.0
    world.turn = turn
    assert world.waits(port) == 1
    answer = m.decode(m.FromServer, asks.recv())
    assert answer == m.NotServing(f"the server is waiting for the shard at localhost:{port}")
    asks.close(0)


class Plan:
    """What a process serves again by, once a shard is lost."""

    def __init__(self, lost, checkpoints=()):
        self.lost, self.began = lost, 0
        self.checkpoints = set(checkpoints)  # there is a newer one after so many deaths
        self.runs = SimpleNamespace(current=None)
        self.interrupts, self.on = Interrupts(), HOST
        self.config = SimpleNamespace(log_root="runs")

    def listen(self):
        return None

    def prepare(self, socket, other, lost=None):
        return self.serve

    def serve(self):
        self.began += 1
        if self.began <= self.lost:
            raise ShardLost("the shard at a:1 is gone")
        return 0


def test_lost_shards_are_counted_and_end_nothing_before_there_are_many(monkeypatch, caplog):
    caplog.set_level("INFO")
    plan = Plan(lost=19)
    assert start._serve_on(plan, plan.serve) == 0 and plan.began == 20
    plan = Plan(lost=100)
    assert start._serve_on(plan, plan.serve) == 1 and plan.began == 20
    assert caplog.messages[-1] == ("stopping: lost 20 shards in a row without a checkpoint "
                                   "between; the last: the shard at a:1 is gone")
    plan = Plan(lost=100)
    monkeypatch.setattr(start, "_newest", lambda plan: float(plan.began // 10))
    plan.lost = 50
    assert start._serve_on(plan, plan.serve) == 0, "there was progress between"


@pytest.mark.parametrize("message", [m.Hello(m.PROTOCOL, 0, {}), m.Ask("ab12", bytes(32)),
                                     m.Follow(m.PROTOCOL, {}, 1, "", 0)])
def test_a_shard_answers_a_worker_that_it_is_not_the_server(message):
    socket = ServerSocket("localhost", free_port(), None, 1)
    shard = ShardServer(socket, None, Interrupts())
    asks = socket.context.socket(zmq.DEALER)
    asks.connect(f"tcp://127.0.0.1:{socket.port}")
    asks.send(m.encode(message))
    loop = Loop(socket, socket.watch)
    end = HOST.clock.monotonic() + 20
    while not asks.poll(0):
        assert HOST.clock.monotonic() < end
        shard._step(loop)
    assert m.decode(m.FromServer, asks.recv()) == m.NotServing(
        f"the process at port {socket.port} is a shard, not a server")
    asks.close(0)
    socket.close()


def test_a_server_answers_that_it_is_not_a_shard(world, tmp_path):
    log, console = ServerLog(tmp_path, "asp", tensorboard=False), Console("", StringIO())
    model = create("asp")
    server = Server(model, ServerSocket("localhost", 0),
                    RunInfo(ServerConfig(1), model.rule, m.RunSettings(), 1),
                    Reporter(tmp_path, log, console), Interrupts())
    world.hurry("it is a server, not a shard", server.dispatcher.receive)
    assert world.waits(server._socket.port) == 1
    assert world.said[-1].endswith("; its reason: it is a server, not a shard")
    server.close()
