"""Versions are read where they lie: they stay as they are for as long as the worker holds them."""

import numpy as np
import pytest

from wbsp.process.host import HOST
from wbsp.wire.shm.borrower import SharedMemory
from wbsp.wire.shm.lender import Lending
from wbsp.wire.shm.link import Door

pytestmark = pytest.mark.skipif(not HOST.memory.available(),
                                reason="no shared memory on this system")
SIZE = 1000


class Pair:
    """Both ends of what a server and a worker of one process share."""

    def __init__(self):
        self.lending, self.door = Lending(None), Door(True)
        self.link, how = self.lending.link(b"w", self.door.name, SIZE)
        assert self.link is not None, how
        self.worker = SharedMemory(self.door.link(self.link.inbox), self.link.inbox)
        self.requests = 0

    def version(self, value):
        """A version that is made of a push, as the server makes it."""
        vector = self.lending.pool.take(SIZE)
        vector[:] = value
        return vector

    def fetch(self, value):
        """The worker's view of a new version, after it has reported the returned memory."""
        self.link.returned(self.worker.returned)
        self.requests += 1
        place = self.link.lend(self.requests, self.version(value))
        if place is None:
            return None
        assert self.worker.line.receive(0.0) is None, "a segment at most"
        return np.frombuffer(self.worker.borrow(place, self.requests), np.float32)

    def close(self):
        self.worker.close()
        self.door.close()
        self.lending.close()


@pytest.fixture
def pair():
    made = Pair()
    yield made
    made.close()


def test_a_version_stays_while_its_anchor_is_held_and_is_used_again_afterwards(pair):
    for value in range(20):
        anchor = pair.fetch(value)
        part = anchor[10:20]  # as a layer of it
        del anchor
        inbox, coming = pair.fetch(value + 0.25), pair.fetch(value + 0.5)
        assert pair.worker.returned <= pair.requests - 2, "the first is held"
        assert (part == value).all()
        assert (inbox == value + 0.25).all() and (coming == value + 0.5).all()
        del part
        assert pair.worker.returned == pair.requests - 1, "the second is"
        del inbox, coming
        assert pair.worker.returned == pair.requests + 1
    assert len(pair.worker._link.segments) <= 5, "the inbox, and a few versions in turn"


def test_no_worker_can_write_to_a_version(pair):
    with pytest.raises(ValueError, match="read-only"):
        pair.fetch(1.0)[:] = 2.0


def test_memory_of_an_ended_link_is_never_reused(pair):
    """The worker lives, and its anchor with it: it attaches again, over the network perhaps."""
    anchor = pair.fetch(1.0)
    pair.lending.end(pair.link)
    for value in range(2, 20):
        pair.version(float(value))
    assert (anchor == 1.0).all()


def test_a_worker_that_returns_nothing_is_lent_only_a_few():
    pair = Pair()
    held = []
    while (version := pair.fetch(7.0)) is not None:
        held.append(version)
    assert len(held) == 4
    pair.close()
