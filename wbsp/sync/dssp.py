"""DSSP: dynamic stale synchronous parallel (Zhao et al., ICDCS 2019)."""

from wbsp.sync.base import About, Action, Option
from wbsp.sync.ssp import SSP


def extra_steps(fast: float, fast_interval: float, slow: float, slow_interval: float,
                most: int) -> int:
    """Return how many more steps the fastest worker makes so that it waits least.

    This is the r of the pair (r, k) with the least

        |fast + r fast_interval - (slow + k slow_interval)|,  0 <= r <= most, 1 <= k <= most + 1

    (ties: the smallest r [ours]). Both rows ascend, so one walk along them meets the best pair:
    O(most).

    Args:
        fast: time of the fastest worker's newest push, in seconds.
        fast_interval: seconds between its pushes, taken as constant.
        slow: time of the slowest worker's newest push, in seconds.
        slow_interval: seconds between its pushes, taken as constant.
        most: the most steps, 0 or more.
    """
    best, answer, r, k = float("inf"), 0, 0, 1
    while r <= most and k <= most + 1:
        mine, its = fast + r * fast_interval, slow + k * slow_interval
        if abs(mine - its) < best:
            best, answer = abs(mine - its), r
        if mine <= its:
            r += 1
        else:
            k += 1
    return answer


class DSSP(SSP):
    """SSP with a bound between `s_l` and `s_u`, chosen so that the fastest worker waits least.

        worker: step; push; wait for the newest version; x = W
        server: accept(p, 1/N), commit; clock_p += 1; lead = clock_p - min clock
                credit_p > 0?         credit_p -= 1; grant p
                lead <= s_l?          grant p
                no worker is ahead of p? r = extra_steps(p, slowest), at most s_u + 1 - lead
                                      r > 0? credit_p = r - 1; grant p
                else                  hold p until lead <= s_l

    Differs from SSP in the credit: a worker at the bound continues if waiting after r more steps is
    predicted to be shorter than waiting now. s_l = s_u is SSP(s_l). The prediction takes the
    time between a worker's two newest pushes for its interval, waiting included [paper]; without
    two pushes of both there is no prediction, and the worker is held [ours].

    Source: Zhao, An, Liu, Chen, "Dynamic stale synchronous parallel distributed training for deep
    learning", ICDCS 2019, arXiv 1908.11848, algorithms 1 and 2 [paper]. The printed algorithm gives
    one step too many (the grant itself is not taken from the credit), and credit upon credit, so
    that s_u does not bound the lead: here it does [ours].
    """

    name = "dssp"
    about = About(
        bound="lead at most s_l to s_u, as a prediction says",
        waits="a worker at its bound, for the slowest",
        traffic="a push and a fetch a step",
        source="Zhao et al., ICDCS 2019",
        certainty="exact but for two mended slips of the printed algorithm; ties and the weight "
                  "1/N: ours")
    refresh = "push"
    OPTIONS = {
        "s_l": Option(3, "steps a worker may always be ahead of the slowest", low=0),
        "s_u": Option(15, "steps a worker may be ahead at most", low=0),
    }

    s_l: int
    s_u: int

    def __init__(self, **options: object):
        super().__init__(**options)
        if self.s_l > self.s_u:
            raise ValueError(f"dssp: option s_l={self.s_l} is above s_u={self.s_u}; s_l is the "
                             "lower bound of the lead, s_u the upper")
        self.s = self.s_l  # the bound at which SSP holds
        self._credit: dict[int, int] = {}  # worker -> steps it may make beyond the lower bound
        self._stamps: dict[int, list[float]] = {}  # worker -> times of its two newest pushes
        self._there: dict[int, dict[int, None]] = {}  # clock -> workers there, longest there first
        self._max = 0

    def join(self, worker: int, now: float) -> list[Action]:
        actions = super().join(worker, now)
        self._stamps[worker] = []
        self._arrive(worker)
        return actions

    def leave(self, worker: int, now: float) -> list[Action]:
        del self._stamps[worker]
        self._credit.pop(worker, None)
        self._depart(worker, self.clock[worker])
        actions = super().leave(worker, now)
        while self._max > self._min and self._max not in self._there:
            self._max -= 1
        return actions

    def _advance(self, worker: int, now: float) -> None:
        self._stamps[worker] = [*self._stamps[worker][-1:], now]
        self._depart(worker, self.clock[worker])
        super()._advance(worker, now)
        self._arrive(worker)

    def _may_continue(self, worker: int) -> bool:
        within = super()._may_continue(worker)
        credit = self._credit.pop(worker, 0)
        if not (within or credit):
            credit = self._extra(worker)
        if credit > 1:
            self._credit[worker] = credit - 1
        return within or credit > 0

    def _extra(self, worker: int) -> int:
        """Return how many steps a worker at the lower bound may make beyond it."""
        clock = self.clock[worker]
        slowest = next(iter(self._there[self._min]))
        fast, slow = self._stamps[worker], self._stamps[slowest]
        if clock < self._max or len(fast) < 2 or len(slow) < 2:
            return 0
        wanted = extra_steps(fast[1], fast[1] - fast[0], slow[1], slow[1] - slow[0],
                             self.s_u - self.s_l)
        return max(0, min(wanted, self.s_u + 1 - (clock - self._min)))

    def _arrive(self, worker: int) -> None:
        clock = self.clock[worker]
        self._there.setdefault(clock, {})[worker] = None
        self._max = max(self._max, clock)

    def _depart(self, worker: int, clock: int) -> None:
        there = self._there[clock]
        del there[worker]
        if not there:
            del self._there[clock]
