"""Follow memory that one process lends to another: laws 5 and 12."""

from __future__ import annotations

import gc
import sys
from typing import NamedTuple

from simulated.memory import Segment
from simulated.world import Process
from wbsp.core.messages import Place
from wbsp.wire.messages import codec as m

_UNREAD = 4  # references to a mapping of which its link alone knows, where they are counted here
_MOST_KEPT = 2  # of these, that are noticed when there is traffic again
_MOST_LENT = 5  # a worker: its own, an anchor, one to adopt, one in transit, one to be made
_MOST_OWN = 3  # the newest version, one that is written to the disk, one of an epoch
_A_WHILE = 1.0  # seconds in which all running processes learn which memory is released


class Reading(NamedTuple):
    """`link`: over which it was lent; None: a copy. `number`: of the fetch, or of the copy."""

    reader: Process
    link: object
    number: int
    segment: Segment
    start: int
    floats: bytes


def _viewed(mapping):
    """Whether a view of this mapping is read. This looks through all of the process's memory."""
    return any(type(one).__name__ == "managedbuffer" for one in gc.get_referrers(mapping))


class Lent:
    def __init__(self, laws, world):
        self._laws, self._world = laws, world
        self._reading, self._segments = [], {}  # number -> segment
        self._copies = {}  # number -> of what it was made: as in `Reading`
        self.shares = 0  # times that a process has taken memory
        world.on_local, world.on_share = self.sent, self.shared
        world.on_hand = self._segments.__setitem__

    def sent(self, socket, data):
        """A message goes over a Unix socket; returns what checks it when it is read."""
        if data.startswith(b"\0\0\0\0"):  # word of a segment that is given up
            return None
        process = socket.process
        self._laws.sent(process, [data])
        message = m.decode(m.FromServer if socket.lends else m.FromWorker, data)
        returned = getattr(message, "returned", 0)
        if returned and not socket.lends:
            self._reading = [one for one in self._reading
                             if one.link is not socket.other or one.number >= returned]
        self.unchanged()
        message = getattr(message, "model", None) or message
        place = getattr(message, "place", None)
        if not isinstance(place, Place):
            return None
        segment, start = socket.handed[place.segment], place.offset
        floats = bytes(segment.data[start:start + place.nbytes])
        if socket.lends:
            self._reading.append(Reading(socket.other.process, socket, message.request, segment,
                                         start, floats))
            return None
        return lambda: self._same(segment, start, floats)

    def copied(self, process, message):
        """A server sends a snapshot to its standby, which reports later that it holds it."""
        if isinstance(message, m.Held):
            self._reading = [one for one in self._reading if one.link is not None
                             or one.reader is not process or one.number >= message.number]
            if (made := self._copies.pop(message.number, None)) is not None:
                self._reading.append(Reading(process, None, message.number, *made))
            self.unchanged()
        elif message.segment:
            segment = self._segments[message.segment]
            self._copies[message.number] = segment, 0, bytes(segment.data)

    def alone(self, machine):
        """A server has a new epoch: what earlier copies were made of is of no use to others."""
        self._copies = {}
        self._reading = [one for one in self._reading
                         if one.link is not None or one.segment.lender.machine != machine]

    def unchanged(self):
        """Law 5: lent memory stays unchanged while its reader holds it."""
        kept = []
        for one in self._reading:
            if one.reader.alive and (one.link is None or not one.link.closed
                                     or one.reader.memory.holds(one.segment)):
                self._same(one.segment, one.start, one.floats)
                kept.append(one)
        self._reading = kept

    def _same(self, segment, start, floats):
        if segment.data[start:start + len(floats)] != floats:
            self._laws.broken(5, "shared memory is written to while it is read")

    def shared(self, process):
        """Law 12, each time that a process takes memory of a server."""
        now = self._world.now
        self.shares += 1
        for one in self._world.processes:
            if one.alive and one.asleep_until < now - _A_WHILE:
                mappings = one.memory.mappings
                own = sum(segment.lender is one for _, segment in mappings)
                kept = [mapping for mapping, segment in mappings if segment.lender is not one
                        and segment.given_up is not None and segment.given_up < now - _A_WHILE
                        and sys.getrefcount(mapping) <= _UNREAD]
                if len(kept) > _MOST_KEPT:  # of a closed link one may be a view
                    kept = [mapping for mapping in kept if not _viewed(mapping)]
                if len(kept) > _MOST_KEPT:
                    self._laws.broken(12, f"{one.name} keeps {len(kept)} segments mapped that are "
                                      "given up, and that it does not read")
                if own > _MOST_LENT * len(self._laws.cluster.members) + _MOST_OWN:
                    self._laws.broken(12, f"{one.name} keeps {own} segments of its own")

    def left(self, process):
        """Law 12, of a process that has ended its part in the run, and may live on."""
        if process.memory.open:
            self._laws.broken(12, f"{process.name} has ended its part, and keeps "
                              f"{len(process.memory.open)} segments")
