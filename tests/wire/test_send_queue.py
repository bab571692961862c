"""Rate limits and the queue of a worker, in virtual time: no test here reads a clock."""

import math

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from wbsp.wire.queues import SendQueue
from wbsp.wire.rate import RateLimitedReceiver, RateLimiter

quick = settings(max_examples=2 * settings.default.max_examples)


class Socket:
    """A socket that accepts every message, or raises `error`."""

    def __init__(self):
        self.sent = []
        self.error = None

    def send_multipart(self, frames, flags, copy):
        assert flags == zmq.NOBLOCK
        if self.error is not None:
            raise self.error
        self.sent.append(b"".join(frames))


def drain(queue, now):
    """Flush whenever the queue can send; return the time of the last message."""
    while queue:
        now += queue.delay(now)
        queue.flush(now)
    return now


@quick
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30), st.sampled_from([10.0, 1e3, 1e6]),
       st.floats(0, 1e6))
def test_n_bytes_take_the_time_of_the_line(sizes, rate, start):
    socket = Socket()
    queue = SendQueue(socket, RateLimiter(rate))
    for size in sizes:
        queue.post(bytes(size), now=start)
    end = drain(queue, start)
    assert end - start == pytest.approx(sum(sizes) / rate, rel=1e-6, abs=1e-6)
    assert [len(data) for data in socket.sent] == sizes


@quick
@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 10)), min_size=1, max_size=30))
def test_silence_saves_no_bandwidth_for_later(posts):
    rate, now, limiter, passed = 1000.0, 0.0, RateLimiter(1000.0), []
    for size, gap in posts:
        now += gap
        passed.append((now, limiter.take(size, now), size))
        assert passed[-1][1] >= now + size / rate - 1e-6
    for i, (start, _, _) in enumerate(passed):
        nbytes = 0
        for _, end, size in passed[i:]:
            nbytes += size
            assert end - start >= nbytes / rate - 1e-6


class Source:
    """A socket at which messages of these sizes (bytes) have come in."""

    def __init__(self, sizes):
        self._sizes = list(sizes)

    def recv_multipart(self, flags, copy):
        if not self._sizes:
            raise zmq.Again
        return [b"to", bytes(self._sizes.pop(0) - 2)]


@quick
@given(st.lists(st.integers(2, 5000), min_size=1, max_size=30), st.sampled_from([10.0, 1e3, 1e6]))
def test_a_received_message_takes_the_time_of_the_line(sizes, rate):
    receiver, now, passed = RateLimitedReceiver(Source(sizes), RateLimiter(rate)), 5.0, 0
    assert receiver.delay(now) is None
    for size in sizes:
        assert receiver.receive(now) is None, "not before it is through"
        now += receiver.delay(now)
        assert sum(map(len, receiver.receive(now))) == size
        passed += size
        assert now == pytest.approx(5.0 + passed / rate)
    assert receiver.receive(now) is None and receiver.delay(now) is None


def test_without_a_rate_a_message_is_received_at_once():
    receiver = RateLimitedReceiver(Source([10, 20]), RateLimiter(None))
    assert [sum(map(len, receiver.receive(1.0))) for _ in range(2)] == [10, 20]
    assert receiver.receive(1.0) is None


def test_without_a_rate_a_message_is_sent_at_once():
    socket = Socket()
    queue = SendQueue(socket, RateLimiter(None))
    for _ in range(100):
        queue.post(bytes(1 << 20), now=0.0)
    assert len(socket.sent) == 100 and queue.delay(0.0) == math.inf


@pytest.mark.parametrize("rate", [0.0, -1e6, math.nan])
def test_a_rate_must_be_positive(rate):
    with pytest.raises(ValueError, match="band_width_limit must be above 0 MB/s, not"):
        RateLimiter(rate)


def test_an_urgent_message_goes_first_and_replaces_an_older_one():
    socket = Socket()
    queue = SendQueue(socket, RateLimiter(1.0))
    for data in (b"a", b"b", b"c"):
        queue.post(data, now=0.0)
    for data in (b"1", b"2"):
        queue.post(data, now=0.0, urgent=True)
    assert len(queue) == 4
    drain(queue, 0.0)
    assert socket.sent == [b"a", b"2", b"b", b"c"]
    assert queue.sent == 3


def test_a_socket_that_is_full_keeps_the_order():
    socket = Socket()
    queue = SendQueue(socket, RateLimiter(None))
    socket.error = zmq.Again()
    queue.post(b"a", b"1", now=0.0)
    queue.post(b"b", now=0.0)
    assert queue.blocked and len(queue) == 2
    socket.error = None
    queue.flush(0.0)
    assert socket.sent == [b"a1", b"b"] and not queue.blocked


def test_a_cleared_queue_sends_no_earlier_message():
    socket = Socket()
    queue = SendQueue(socket, RateLimiter(1.0))
    for data in (b"a", b"b"):
        queue.post(data, now=0.0)
    queue.post(b"!", now=0.0, urgent=True)
    queue.clear()
    assert not queue and queue.delay(0.0) == math.inf
    queue.post(b"new", now=10.0)
    assert drain(queue, 10.0) == 13.0
    assert socket.sent == [b"new"]
