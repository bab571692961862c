"""The server's network interface: transfers that run at the same time share its capacity.

Shares are max-min fair: every transfer gets the same rate, the level, except transfers whose own
link carries less; the capacity that these leave is shared by the rest:

    rate_i = min(cap_i, level),   sum of rates = capacity   (or every rate is its cap)

Transfers at the level all have moved the same number of bytes since any moment, so each ends when
one common counter passes its own mark (the virtual time of fair queueing). A change of the level
therefore touches no transfer but those that cross it, and a thousand transfers cost O(log n) each.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from wbsp.simulate.world.clock import Clock
from wbsp.simulate.world.machine import INF, Machine

_Heap = list[tuple[float, int, "Transfer"]]  # key, stamp


class Transfer:
    """A transfer of some bytes through a fair-share link.

    `mark` is the value at which the transfer ends: of the counter while it `shares` the level, of
    the clock while it is below the level; before its begin, its size. `stamp` tells the transfer's
    valid heap entries from outdated ones.
    """

    __slots__ = ("link", "cap", "done", "args", "mark", "shares", "stamp")

    def __init__(self, link: FairShareLink, size: float, cap: float,
                 done: Callable[..., object], args: tuple[object, ...]):
        self.link, self.cap, self.args = link, cap, args
        self.done: Callable[..., object] | None = done  # None: cancelled
        self.mark, self.shares = size, False
        self.stamp = -1  # on no heap

    def cancel(self) -> None:
        """End the transfer without calling `done`, whether it has begun, is over, or neither."""
        self.done = None
        if self.stamp >= 0:
            self.link._drop(self)

    def limit(self, cap: float) -> None:
        """Let the transfer, which may not have begun, take no more than `cap` bytes/s."""
        if self.stamp >= 0:
            self.link._limit_to(self, cap)
        else:
            self.cap = cap


class FairShareLink:
    """One direction of an interface of `capacity` bytes/s (inf: no transfer slows another)."""

    def __init__(self, clock: Clock, capacity: float = INF):
        if not capacity > 0:
            raise ValueError(f"an interface's capacity must be above 0 bytes/s, not {capacity}")
        self._clock, self._capacity = clock, capacity
        self._level = INF
        self._moved = 0.0  # bytes that a transfer at the level has moved so far
        self._since = 0.0
        self._sharing = 0  # transfers at the level
        self._limited = 0.0  # bytes/s of the transfers below the level
        self._stamps = self._plan = 0
        # Heaps of (key, stamp, transfer); entries whose stamp is outdated are skipped.
        self._marks: _Heap = []  # at the level, by the counter's value at their end
        self._caps: _Heap = []  # at the level, lowest cap first
        self._ends: _Heap = []  # below the level, by the time of their end
        self._high: _Heap = []  # below the level, highest cap first

    def carry(self, size: float, cap: float, lead: float, trail: float,
              done: Callable[..., object], *args: object) -> Transfer | None:
        """Call done(*args) when `size` bytes have been transferred at no more than `cap` bytes/s.

        Args:
            size: bytes.
            cap: bytes/s.
            lead: seconds of latency before this link.
            trail: seconds of latency behind this link.
            done: called at the end.

        Returns:
            The transfer; None if the capacity is infinite, because losing such a transfer does not
            affect others.
        """
        if self._capacity == INF:
            self._clock.after(lead + size / cap + trail, done, *args)
            return None
        if trail:
            done, args = self._clock.after, (trail, done, *args)
        transfer = Transfer(self, size, cap, done, args)
        if lead:
            self._clock.after(lead, self._begin, transfer)
        else:
            self._begin(transfer)
        return transfer

    def _drop(self, transfer: Transfer) -> None:
        self._advance()
        self._remove(transfer)
        self._balance()

    def _limit_to(self, transfer: Transfer, cap: float) -> None:
        self._advance()
        left = self._remove(transfer)
        transfer.cap = cap
        self._share(transfer, left)
        self._balance()

    def _begin(self, transfer: Transfer) -> None:
        if transfer.done is None:
            return
        self._advance()
        self._share(transfer, transfer.mark)
        self._balance()

    def _advance(self) -> None:
        now = self._clock.now
        if self._sharing:
            self._moved += self._level * (now - self._since)
        else:
            self._moved = 0.0  # no transfer's mark refers to the old count
        self._since = now

    def _share(self, transfer: Transfer, left: float) -> None:
        self._stamps = stamp = self._stamps + 1
        transfer.stamp, transfer.shares, transfer.mark = stamp, True, self._moved + left
        self._sharing += 1
        heappush(self._marks, (transfer.mark, stamp, transfer))
        heappush(self._caps, (transfer.cap, stamp, transfer))

    def _limit(self, transfer: Transfer, left: float) -> None:
        self._stamps = stamp = self._stamps + 1
        end = self._clock.now + left / transfer.cap
        transfer.stamp, transfer.shares, transfer.mark = stamp, False, end
        self._limited += transfer.cap
        heappush(self._ends, (end, stamp, transfer))
        heappush(self._high, (-transfer.cap, stamp, transfer))

    def _remove(self, transfer: Transfer) -> float:
        """Remove the transfer from its heaps; return its remaining bytes."""
        transfer.stamp = -1
        if transfer.shares:
            self._sharing -= 1
            return max(transfer.mark - self._moved, 0.0)
        ends = _top(self._ends)
        self._limited = self._limited - transfer.cap if ends else 0.0  # no rounding is kept
        return max(transfer.mark - self._clock.now, 0.0) * transfer.cap

    def _balance(self) -> None:
        """Find the level, and plan the next end.

        Both kinds of crossing raise the level, so the search ends.
        """
        while True:
            self._level = ((self._capacity - self._limited) / self._sharing if self._sharing
                           else INF)
            low, high = _top(self._caps), _top(self._high)
            if low and low.cap <= self._level:
                self._limit(low, self._remove(low))
            elif high and high.cap > self._level:
                self._share(high, self._remove(high))
            else:
                break
        shared, limited = _top(self._marks), _top(self._ends)
        end = INF
        if shared:
            end = self._clock.now + max(shared.mark - self._moved, 0.0) / self._level
        if limited and limited.mark < end:
            shared, end = limited, limited.mark
        self._plan += 1
        if shared:
            self._clock.at(end, self._end, shared, self._plan)

    def _end(self, transfer: Transfer, plan: int) -> None:
        if plan != self._plan:
            return  # the level changed since, and another end was planned
        self._advance()
        if transfer.shares:
            self._moved = transfer.mark  # no rounding is kept: equal marks end at one time
        self._remove(transfer)
        self._balance()
        if transfer.done is not None:
            transfer.done(*transfer.args)


class Interface:
    """The interface of a server that is one process: `ingress` and `egress` bytes/s for updates and
    versions, shared by all workers."""

    def __init__(self, clock: Clock, ingress: float, egress: float):
        self._ingress, self._egress = FairShareLink(clock, ingress), FairShareLink(clock, egress)

    def push(self, machine: Machine, size: float, done: Callable[..., object],
             *args: object) -> Transfer | None:
        """Call done(*args) when an update of `size` bytes has arrived at the server."""
        return self._ingress.carry(size, machine.up, machine.latency, 0.0, done, *args)

    def send(self, machine: Machine, size: float, done: Callable[..., object],
             *args: object) -> Transfer | None:
        """Call done(*args) when a version that is sent now has arrived at the worker."""
        return self._egress.carry(size, machine.down, 0.0, machine.latency, done, *args)


def _top(heap: _Heap) -> Transfer | None:
    while heap and heap[0][1] != heap[0][2].stamp:
        heappop(heap)
    return heap[0][2] if heap else None
