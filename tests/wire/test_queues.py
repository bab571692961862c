"""Queues of many peers: order, turns, and a peer that does not read, which delays no other."""

import math

import pytest
import zmq

from wbsp.wire.queues import PeerQueues
from wbsp.wire.rate import RateLimiter


class Router:
    """A ROUTER socket that takes `room` messages for each peer; None: the peer is gone."""

    def __init__(self):
        self.sent = []
        self.room = {}

    def send_multipart(self, frames, flags, copy):
        assert flags == zmq.NOBLOCK
        identity, *rest = frames
        room = self.room.get(identity, math.inf)
        if room is None:
            raise zmq.ZMQError(zmq.EHOSTUNREACH)
        if room <= 0:
            raise zmq.Again
        self.room[identity] = room - 1
        self.sent.append((identity, b"".join(rest)))

    def to(self, identity):
        return [data for one, data in self.sent if one == identity]


def chunks(*names):
    return ((name, b"") for name in names)


def drain(queues, now):
    """Flush whenever the queues can send; return the time of the last message."""
    while (wait := queues.delay(now)) < math.inf:
        now += wait
        queues.flush(now)
    return now


@pytest.fixture
def router():
    return Router()


def test_messages_to_a_peer_keep_their_order_and_go_ahead_of_its_transfer(router):
    queues = PeerQueues(router, RateLimiter(1.0))
    queues.transfer(b"a", chunks(b"1", b"2", b"3"), now=0.0)
    for data in (b"x", b"y"):
        assert queues.post(b"a", data, now=0.5)
    assert drain(queues, 0.5) == 5.0
    assert router.to(b"a") == [b"1", b"x", b"y", b"2", b"3"]


def test_peers_take_turns_on_the_line(router):
    queues = PeerQueues(router, RateLimiter(1.0))
    for identity in (b"a", b"b"):
        queues.transfer(identity, chunks(b"1", b"2", b"3"), now=0.0)
    assert drain(queues, 0.0) == 6.0
    assert [identity for identity, _ in router.sent] == [b"a", b"b"] * 3


@pytest.mark.parametrize("rate", [None, 1e6])
def test_a_peer_that_does_not_read_delays_no_other(router, rate):
    queues = PeerQueues(router, RateLimiter(rate))
    made = []

    def endless():
        for number in range(1_000_000):
            made.append(number)
            yield b"%d" % number, b""
    router.room[b"deaf"] = 3
    queues.transfer(b"deaf", endless(), now=0.0)
    queues.transfer(b"other", chunks(*[b"x"] * 50), now=0.0)
    now = 0.0
    for _ in range(200):
        now += queues.delay(now)
        queues.flush(now)
    assert router.to(b"other") == [b"x"] * 50
    assert router.to(b"deaf") == [b"0", b"1", b"2"]
    assert len(made) <= 4, "chunks were made that the socket has no room for"
    assert 0.01 < queues.delay(now) < 0.051, "it is tried again, but not all the time"
    router.room[b"deaf"] = 2
    for _ in range(10):
        now += queues.delay(now)
        queues.flush(now)
    assert router.to(b"deaf") == [b"0", b"1", b"2", b"3", b"4"], "nothing is lost or sent twice"


def test_a_new_transfer_replaces_the_rest_of_an_earlier_one(router):
    queues = PeerQueues(router, RateLimiter(1.0))
    queues.transfer(b"a", chunks(b"1", b"2", b"3"), now=0.0)
    queues.flush(1.0)
    queues.transfer(b"a", chunks(b"I", b"II"), now=1.0)
    drain(queues, 1.0)
    assert router.to(b"a") == [b"1", b"2", b"I", b"II"], "the one on the line arrives"
    queues.transfer(b"a", chunks(b"1", b"2"), now=9.0)
    queues.drop_transfer(b"a")
    drain(queues, 9.0)
    assert router.to(b"a")[4:] == [b"1"]


def test_a_bounded_number_of_messages_waits_for_a_peer(router):
    queues = PeerQueues(router, RateLimiter(None))
    router.room[b"a"] = 0
    taken = [queues.post(b"a", b"x", now=0.0) for _ in range(1000)]
    assert taken == [True] * sum(taken) + [False] * (1000 - sum(taken)) and sum(taken) < 300
    assert queues.waiting(b"a") and queues.post(b"b", b"x", now=0.0)
    assert router.to(b"b") == [b"x"] and not queues.waiting(b"b")


def test_messages_to_a_disconnected_peer_are_dropped(router):
    queues = PeerQueues(router, RateLimiter(None))
    router.room[b"a"] = None
    queues.transfer(b"a", chunks(*[b"1"] * 10), now=0.0)
    queues.post(b"a", b"x", now=0.0)
    assert not queues.waiting(b"a") and queues.delay(0.0) == math.inf and not router.sent


def test_an_error_of_the_socket_itself_is_not_hidden(router):
    class Broken:
        def send_multipart(self, *_, **__):
            raise zmq.ZMQError(zmq.ENOTSOCK)
    with pytest.raises(zmq.ZMQError):
        PeerQueues(Broken(), RateLimiter(None)).post(b"a", b"a bug", now=0.0)
