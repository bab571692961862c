"""A worker of a run in one thread: its agent and its communication, without sockets and threads."""

from __future__ import annotations

from collections import deque

import numpy as np

from wbsp.core.agent import Adopt, Cut, Leave
from wbsp.core.participant import Participant
from wbsp.process.host import HOST
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.client import Client, SendUpdate
from wbsp.wire.errors import TransportError
from wbsp.wire.messages import codec as m
from wbsp.worker.comm.communication import Communication
from wbsp.worker.comm.data_plane import DataPlane
from wbsp.worker.metrics import Recorder
from wbsp.worker.shared_participant import SharedParticipant

SIZE = 12  # floats; what a step adds is a whole multiple of this vector
PATTERN = np.array([1, -1, 0, 2, 0, 0, 0, 0, 7, 0, 0, -3], np.float32)
LAYOUT = [TensorSpec("x", (SIZE,))]


class Calls(deque):
    """A queue of calls without sockets."""

    wakes = None

    def make(self):
        while self:
            call, arguments = self.popleft()
            call(*arguments)

    def append(self, call, *arguments):
        super().append((call, arguments))


class Line(DataPlane):
    """A worker's connection and its data plane, and the messages in transit."""

    on = HOST
    made, broken, all_sent, sent = True, False, True, 0
    host = door = ""

    def __init__(self):
        self.monitor = self.plane = self
        self.up, self.down = deque(), deque()

    def served(self):
        pass

    def arrange(self, answer):
        assert answer.group is None and not answer.memory

    def detach(self):
        pass

    def break_off(self):
        """Lose the messages in transit."""
        self.up.clear()
        self.down.clear()
        self.broken = True

    def post(self, message, chunk=None, urgent=False):
        self.up.append((m.encode(message), None if chunk is None else bytes(chunk)))


class Worker:
    """One worker process: its compute thread is `compute` and `carry_out`."""

    on = HOST

    def __init__(self, world, index, steps):
        self.world, self.index, self.steps = world, index, steps
        self.identity = bytes([index + 1]) * 16
        self.line, self.calls = Line(), Calls()
        self.client = Client(self.line, "localhost:1", HOST.scheduler.random)
        self.communication = Communication(self.client, self.line, self.calls)
        self.shared = None
        self.x = self.anchor = np.zeros(SIZE, np.float32)
        self.made = np.zeros(SIZE)  # all that was cut
        self.cuts, self.weights = [], {}  # seq -> the sent update, its answer
        self.adopted = []  # versions
        self.final = self.refused = None
        self.most_kept = 0
        self.communication.request(m.Hello(m.PROTOCOL, index, {}))

    @property
    def agent(self):
        return None if self.shared is None else self.shared.agent

    @property
    def ended(self):
        return self.final is not None or self.refused is not None

    # The compute thread.

    @property
    def may_compute(self):
        agent = self.agent
        return (agent is not None and agent.version is not None and agent.waiting is None
                and not self.shared.commands and not agent.finished and self.final is None)

    def compute(self):
        agent = self.agent
        if self.steps == 0 or agent.stopped:
            self.carry_out(self.shared.act(Participant.finish))
            return
        self.steps -= 1
        self.x = self.x + self.world.draw.randint(1, 500) * PATTERN
        self.shared.act(Participant.step_begins)
        seconds = self.world.draw.uniform(0.1, 2.0)
        self.carry_out(self.shared.act(lambda one: one.step_done(1, seconds, loss=1.0)))

    def carry_out(self, commands=None):
        if commands is None:
            commands, self.shared.commands = self.shared.commands, []
        for command in commands:
            match command:
                case Cut():
                    update, self.anchor = self.x - self.anchor, self.x
                    self.calls.append(self.push, command, update)
                case Adopt():
                    vector = self.shared.take_version(command.version)
                    assert not self.adopted or command.version >= self.adopted[-1]
                    self.adopted.append(command.version)
                    rest = self.x - self.anchor if command.how == "rebase" else 0
                    self.x, self.anchor = vector + rest, vector
                    if self.agent.finished:
                        self.final = vector
                case Leave():
                    self.calls.append(self.communication.request,
                                      m.Leaving("finished", True, None))
                case _:
                    self.calls.append(self.communication.request, command)
        self.calls.make()

    # The communication thread.

    def push(self, command, update):
        self.made += update
        self.communication.request(SendUpdate(command.push, update, command.fetch))
        assert command.push.seq == len(self.cuts)
        self.cuts.append(np.array(self.client.pending.sent))

    @property
    def unsent(self):
        """The cuts that were not sent."""
        unsent = self.client.session.sending.unsent
        return np.zeros(SIZE) if unsent is None else unsent

    def hear(self):
        """The next message from the server arrives."""
        header, body = self.line.down.popleft()
        message = m.decode(m.FromServer, header)
        if isinstance(message, m.Model):
            self.world.differences += message.base != m.NONE
        try:
            self.communication.carry_out(self.client.receive(
                message, None if body is None else memoryview(body), self.world.now))
        except TransportError as error:
            self.refused = str(error)
            return
        self.calls.make()
        if isinstance(message, m.Welcome) and self.shared is None:
            self.communication.request(m.Join(LAYOUT))
        if isinstance(message, m.Joined) and self.shared is None:
            participant = Participant(self.index, self.world.model().rule, message.seq)
            self.shared = SharedParticipant(participant, Recorder(0.0), self.world.said.append,
                                            None)
            self.communication.listen(Noting(self), SIZE)
        self.most_kept = max(self.most_kept, self.client.session.kept.vectors)

    def reconnect(self):
        """Connect to a new server; messages in transit are lost."""
        self.line.broken = False
        self.communication.carry_out(self.client.connected(self.world.now))


class Noting:
    """A worker's listener, which also records the answers to its pushes."""

    def __init__(self, worker):
        self._worker = worker

    def __getattr__(self, name):
        return getattr(self._worker.shared, name)

    def acked(self, ack, seconds):
        assert ack.seq not in self._worker.weights, "the agent heard of a push twice"
        self._worker.weights[ack.seq] = ack.weight
        return self._worker.shared.acked(ack, seconds)
