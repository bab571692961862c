"""The communication thread without a socket: requests, answers, and a broken connection."""

from collections import deque

import numpy as np
import pytest

from wbsp.sync.base import Push, WorkerRule
from wbsp.wire import messages as m
from wbsp.worker import communication
from wbsp.worker.channel import Ready
from wbsp.worker.communication import Communication
from wbsp.worker.pending import PendingRequest

PUSH = Push(0, 4, 0, 1, 1, 1.0)
ACK = m.Ack(4, True, None, None, False)
BREAK = object()  # among the events of a channel: the connection is a new one


class Channel:
    """A channel to a server that sends what `events` says, one at a poll, and then nothing."""

    sent, all_sent, made = 0, True, True

    def __init__(self, events):
        self.connection = self
        self.events, self.posted = deque(events), []
        self._messages = deque()

    def poll(self, wakes, seconds):
        if not self.events:
            raise EOFError  # ends the thread
        event = self.events.popleft()
        if event is BREAK:
            return Ready(False, True, False)
        if callable(event):
            event()
        else:
            self._messages.append(event)
        return Ready(bool(self._messages), False, False)

    def read_event(self):
        return True

    def receive(self):
        if not self._messages:
            return None
        message = self._messages.popleft()
        return message if isinstance(message, tuple) else (message, None)

    def post(self, message, chunk=None, urgent=False):
        if not urgent:
            self.posted.append(message)

    def transferring(self, now):
        return False

    def check(self, now):
        pass

    def flush(self):
        pass

    def close(self):
        pass


class Calls(deque):
    """A queue of calls without sockets."""

    wakes = None

    def make(self):
        while self:
            self.popleft()()


class Listener:
    """Notes all it receives."""

    def __init__(self):
        self.log = []

    def acked(self, ack, seconds):
        self.log.append(ack)

    def fetched(self, version, vector, seconds):
        self.log.append((version, vector.tolist()))

    def received(self, message):
        self.log.append(message)

    def failed(self):
        pass

    def report(self):
        return None


def communicate(events):
    """Run a communication thread in this one; return it and its channel.

    events: of the channel; a pair (name, arguments) is a call of that method of Communication
    """
    made = []
    for event in events:
        if isinstance(event, list):
            name, *arguments = event
            made.append(lambda name=name, arguments=arguments:
                        getattr(thread, name)(*arguments))
        else:
            made.append(event)
    channel = Channel(made)
    thread = Communication(channel, Calls(), "localhost:1")
    thread.run()
    assert "EOFError" in str(thread.error)
    return thread, channel


@pytest.fixture
def listener():
    return Listener()


@pytest.fixture
def sent():
    """Requests that were sent."""
    return []


def test_an_answer_counts_once_and_only_for_its_request(listener, sent):
    request = ["request", m.Ack, lambda: sent.append("push"), PUSH.seq]
    old = m.Ack(3, True, None, None, False)
    communicate([["listen", listener, 1], request, old, ACK, ACK])
    assert sent == ["push"] and listener.log == [ACK]


def test_a_pending_request_is_repeated_after_a_break(listener, sent):
    request = ["request", m.Ack, lambda: sent.append("push"), PUSH.seq]
    _, channel = communicate([["listen", listener, 1], request, BREAK, ACK, BREAK])
    assert sent == ["push", "push"], "answered at the second break"
    assert channel.posted == [m.Resync(), m.Resync()]


def test_the_server_hears_nothing_but_hello_before_its_welcome(sent):
    hello = ["request", m.Welcome, lambda: sent.append("hello")]
    _, channel = communicate([hello, BREAK])
    assert sent == ["hello", "hello"] and channel.posted == []


def test_a_carried_fetch_is_sent_only_after_a_break(listener, sent):
    fetch = ["request", m.Model, lambda: sent.append("fetch"), 7, True]
    communicate([["listen", listener, 1], fetch])
    assert sent == []
    communicate([["listen", listener, 1], fetch, BREAK])
    assert sent == ["fetch"]


def test_messages_to_a_member_wait_for_its_listener(listener):
    communicate([m.Granted(3), ["listen", listener, 1], m.Stop("enough")])
    assert listener.log == [m.Granted(3), m.Stop("enough")]


def test_a_model_of_an_older_fetch_is_ignored(listener):
    fetch = ["request", m.Model, lambda: None, 7]
    values = memoryview(np.array([1.5, 2.5], "<f4")).cast("B")
    communicate([["listen", listener, 2], fetch, (m.Model(6, 3, 0, 2), values),
                 (m.Model(7, 4, 0, 2), values)])
    assert listener.log == [(4, [1.5, 2.5])]


def test_the_handshake_ends_with_the_reason_of_a_refusal():
    thread = Communication(Channel([m.Refused("no such worker")]), Calls(), "localhost:1")
    thread.run()
    assert str(thread.error) == "the server refused: no such worker"
    assert thread.handshake.get_nowait() is thread.error


def test_the_answers_to_hello_and_join_come_out_in_order():
    welcome = m.Welcome({}, 0.0, WorkerRule("every_step", "model", "replace"))
    joined = m.Joined(0, 0, False, 0.0)
    thread, _ = communicate([["request", m.Welcome, lambda: None], welcome, welcome,
                             ["request", m.Joined, lambda: None], joined])
    answers = [thread.handshake.get_nowait() for _ in range(2)]
    assert answers == [welcome, joined]


def test_a_request_without_progress_is_sent_again(listener, sent, monkeypatch):
    monkeypatch.setattr(communication, "RESEND", -1.0)
    request = ["request", m.Ack, lambda: sent.append("push"), PUSH.seq]
    communicate([["listen", listener, 1], request])
    assert sent == ["push", "push"]


def test_progress_puts_off_the_repetition():
    request = PendingRequest(m.Ack, 4, lambda: None, (0, 0), 10.0, 10.0, 10.0)
    request.observe((0, 0), 20.0)
    assert request.idle(25.0) == 15.0
    request.observe((1, 0), 30.0)
    assert request.idle(35.0) == 5.0
    request.sent_at = 33.0
    assert request.idle(35.0) == 2.0
