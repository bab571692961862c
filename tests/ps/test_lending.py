"""Messages to workers of its machine: what one does not take yet waits, and nothing else."""

import zmq

from wbsp.ps.lending import Lending
from wbsp.wire.link import Link, accept, listen


def test_what_a_worker_does_not_take_waits_and_comes_in_order():
    lending, ends = Lending(None), []
    slow, other = (_linked(lending, ends, name) for name in (b"slow", b"other"))
    sent = 0
    while not lending.post(slow, b"%d" % sent, 0.0):
        sent += 1
    assert lending.post(slow, b"%d" % (sent + 1), 0.0) == 2, "two wait"
    assert lending.post(other, b"at once", 0.0) == 0, "nobody else's message does"
    assert _read(ends[1]) == [b"at once"]
    assert _read(ends[0]) == [b"%d" % i for i in range(sent)]
    lending.flush(0.0)
    assert _read(ends[0]) == [b"%d" % sent, b"%d" % (sent + 1)]
    lending.flush(0.0)
    assert _read(ends[0]) == []
    lending.close()


def test_what_waits_for_a_worker_ends_with_its_link():
    lending, ends = Lending(None), []
    slow = _linked(lending, ends, b"slow")
    while not lending.post(slow, b"lost", 0.0):
        pass
    lending.end(slow)
    lending.flush(0.0)  # touches no socket that is closed
    assert len(slow.queue) == 1, "it was not sent"
    lending.close()


def _linked(lending: Lending, ends: list[Link], identity: bytes):
    """The server's end of a new link; the worker's is appended to `ends`."""
    name, listener = listen()
    link, how = lending.link(identity, name, 1)
    assert link is not None, how
    end = accept(listener)
    assert end is not None and end.has(link.inbox)
    listener.close()
    ends.append(end)
    return link


def _read(end: Link) -> list[bytes]:
    """All messages that are there."""
    messages = []
    while True:
        try:
            (frame,) = end.recv_multipart()
        except zmq.Again:
            return messages
        messages.append(bytes(frame.buffer))
