"""A site's share of the run's shared data, between its communication thread and its event loop.

To the connection it is what `wbsp.worker.share.Share` is for a worker. It knows what the site may
claim when it connects again: all positions that it was given, and that are in no answered push.
The ledger of these is `wbsp.core.site.work.SiteWork`, of the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from wbsp.core.messages import (
    Reattached,
    SharedData,
    Span,
    Withdrawn,
    Work,
    WorkHeld,
    WorkPlace,
    spans_of,
)
from wbsp.core.work.positions import Positions
from wbsp.limits import Offset
from wbsp.process.host import Host
from wbsp.sync.base import Push


class SiteShare:
    """The share of one site; any thread may call.

    Attributes:
        data: of the run; before the site has joined, of its first worker.
        first_epoch: epochs that the loop of the first worker had completed.
        resumed: this site held `own` and `sent` when it ended.
    """

    def __init__(self, data: SharedData, first_epoch: int, on: Host, resumed: bool = False,
                 own: Sequence[Span] = (), sent: Sequence[Span] = (), pushes: int = 0):
        """Set up; `own`, `sent`, `pushes`: as in `WorkHeld`, of the process before."""
        self.data, self.first_epoch, self.resumed = data, first_epoch, resumed
        self._lock = on.scheduler.condition()
        self._own, self._sent = Positions(own), list(sent)
        self._pushes, self._end = pushes, Offset(0)

    @property
    def claim(self) -> WorkHeld | None:
        return self.held() if self.resumed else None

    def begin(self, place: WorkPlace, seq: int, own: Sequence[Span]) -> None:
        """Begin as a member that holds `own`, and whose next push is number `seq`."""
        with self._lock:
            self.data, self._end = place.data, place.at
            self._own, self._sent, self._pushes = Positions(own), [], seq

    def sends(self, push: Push) -> None:
        """Note a push that is about to be sent."""
        with self._lock:
            self._sent, self._pushes = spans_of(push), push.seq + 1
            self._own = self._own.without(self._sent)

    def heard(self, message: Work | Withdrawn | Reattached) -> None:
        """Note what the server above has given, or taken back."""
        with self._lock:
            match message:
                case Work(at, start, stop) if at == self._end and start < stop:
                    self._end = Offset(self._end + stop - start)
                    self._own = self._own.with_all([(start, stop)]).without(self._sent)
                case Withdrawn(at) if at == self._end:
                    self._own = Positions()
                case Reattached() if message.joined:
                    self._own = Positions(message.own).without(self._sent)

    def answered(self) -> None:
        """Note the answer to the newest push."""
        with self._lock:
            self._sent = []

    def held(self) -> WorkHeld:
        """Return what this site claims from a server that it attaches to."""
        with self._lock:
            return WorkHeld(self.data, self._end, [], True, list(self._own.spans),
                            list(self._sent), self._pushes)
