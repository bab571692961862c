"""Shaping and queueing, in given time: no clock is read here."""

import math

import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from wbsp.wire.rate import RateLimitedReceiver, RateLimiter
from wbsp.wire.send_queue import SendQueue

quick = settings(max_examples=2 * settings.default.max_examples)


class Wire:
    """A socket that takes what it is given, or nothing."""

    def __init__(self):
        self.sent = []
        self.error = None

    def send_multipart(self, frames, flags, copy):
        assert flags == zmq.NOBLOCK
        if self.error is not None:
            raise self.error
        self.sent.append(b"".join(frames))


def drain(outbox, now):
    """Flush whenever the outbox says that it can; return the time of the last message."""
    while outbox:
        now += outbox.delay(now)
        outbox.flush(now)
    return now


@quick
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=30), st.sampled_from([10.0, 1e3, 1e6]),
       st.floats(0, 1e6))
def test_n_bytes_take_the_time_of_the_line(sizes, rate, start):
    wire = Wire()
    outbox = SendQueue(wire, RateLimiter(rate))
    for size in sizes:
        outbox.post(bytes(size), now=start)
    end = drain(outbox, start)
    assert end - start == pytest.approx(sum(sizes) / rate, rel=1e-6, abs=1e-6)
    assert [len(data) for data in wire.sent] == sizes


@quick
@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 10)), min_size=1, max_size=30))
def test_silence_saves_no_bandwidth_for_later(posts):
    rate, now, pace, passed = 1000.0, 0.0, RateLimiter(1000.0), []
    for size, gap in posts:
        now += gap
        passed.append((now, pace.take(size, now), size))
        assert passed[-1][1] >= now + size / rate - 1e-6
    for i, (start, _, _) in enumerate(passed):
        nbytes = 0
        for _, end, size in passed[i:]:
            nbytes += size
            assert end - start >= nbytes / rate - 1e-6


class Source:
    """A socket at which messages of these sizes lie, or came at these times."""

    def __init__(self, sizes):
        self._sizes = list(sizes)

    def recv_multipart(self, flags, copy):
        if not self._sizes:
            raise zmq.Again
        return [b"to", bytes(self._sizes.pop(0) - 2)]


@quick
@given(st.lists(st.integers(2, 5000), min_size=1, max_size=30), st.sampled_from([10.0, 1e3, 1e6]))
def test_what_comes_in_takes_the_time_of_the_line(sizes, rate):
    inlet, now, passed = RateLimitedReceiver(Source(sizes), RateLimiter(rate)), 5.0, 0
    assert inlet.delay(now) is None
    for size in sizes:
        assert inlet.receive(now) is None, "not before it is through"
        now += inlet.delay(now)
        assert sum(map(len, inlet.receive(now))) == size
        passed += size
        assert now == pytest.approx(5.0 + passed / rate)
    assert inlet.receive(now) is None and inlet.delay(now) is None


def test_without_a_rate_what_has_come_in_is_there():
    inlet = RateLimitedReceiver(Source([10, 20]), RateLimiter(None))
    assert [sum(map(len, inlet.receive(1.0))) for _ in range(2)] == [10, 20]
    assert inlet.receive(1.0) is None


def test_without_a_rate_everything_goes_at_once():
    wire = Wire()
    outbox = SendQueue(wire, RateLimiter(None))
    for _ in range(100):
        outbox.post(bytes(1 << 20), now=0.0)
    assert len(wire.sent) == 100 and outbox.delay(0.0) == math.inf


@pytest.mark.parametrize("rate", [0.0, -1e6, math.nan])
def test_a_rate_must_be_positive(rate):
    with pytest.raises(ValueError, match="band_width_limit must be above 0 MB/s, not"):
        RateLimiter(rate)


def test_an_urgent_message_goes_first_and_replaces_an_older_one():
    wire = Wire()
    outbox = SendQueue(wire, RateLimiter(1.0))
    for data in (b"a", b"b", b"c"):
        outbox.post(data, now=0.0)
    for data in (b"1", b"2"):
        outbox.post(data, now=0.0, urgent=True)
    assert len(outbox) == 4
    drain(outbox, 0.0)
    assert wire.sent == [b"a", b"2", b"b", b"c"]
    assert outbox.sent == 3


def test_a_socket_that_is_full_keeps_the_order():
    wire = Wire()
    outbox = SendQueue(wire, RateLimiter(None))
    wire.error = zmq.Again()
    outbox.post(b"a", b"1", now=0.0)
    outbox.post(b"b", now=0.0)
    assert outbox.blocked and len(outbox) == 2
    wire.error = None
    outbox.flush(0.0)
    assert wire.sent == [b"a1", b"b"] and not outbox.blocked


def test_what_was_meant_for_a_broken_connection_is_forgotten():
    wire = Wire()
    outbox = SendQueue(wire, RateLimiter(1.0))
    for data in (b"a", b"b"):
        outbox.post(data, now=0.0)
    outbox.post(b"!", now=0.0, urgent=True)
    outbox.clear()
    assert not outbox and outbox.delay(0.0) == math.inf
    outbox.post(b"new", now=10.0)
    assert drain(outbox, 10.0) == 13.0
    assert wire.sent == [b"new"]
