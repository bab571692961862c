"""The run of an ended fit, in a worker's process that was restarted or is late.

A script's fits and blocks are the runs of its server, one after the other. So this one trains
nothing, and leaves that run's final version. Decisions of the script that depend on the version or
on why the run ended are then the same as on the other workers.
"""

from __future__ import annotations

from wbsp.access import Access
from wbsp.saved import read_at
from wbsp.wire.errors import TransportError
from wbsp.wire.messages import codec as m
from wbsp.worker.comm.transport import Transport


class PassedRun:
    """Such a run, read from the server.

    Attributes:
        number: in the series of runs, from 1 on.
        saved: its final version.
        of: what that is, for messages.
        reason: why it ended.
    """

    def __init__(self, transport: Transport, welcome: m.Welcome, access: Access):
        """Read the final version.

        Raises:
            TransportError: it cannot be read.
            ValueError: it is damaged.
        """
        self.number = welcome.passes
        self.of = f"the final version of fit {self.number}"
        at = transport.past(access.timeout)
        saved = read_at(transport.place, at, access.token, transport.on)
        if isinstance(saved, str):
            raise TransportError(f"cannot read {self.of}, which has ended: {saved}")
        self.saved = saved
        self.reason: str = (self.saved.state.stopped
                            or f"fit {self.number} of this process's server has ended")

    @property
    def steps(self) -> int:
        """Number of steps of all workers in the run."""
        return self.saved.state.totals[0]

    @property
    def examples(self) -> int:
        """Number of examples of these steps."""
        return self.saved.state.totals[1]

    def begins(self, instead: str) -> str:
        """Return the console line; `instead`: what happens in place of training."""
        return (f"fit {self.number} of this process's server has ended: {instead}, and taking the "
                f"final version, {self.saved.state.version:,}")
