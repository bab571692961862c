"""What each server of a run must know of its workers' processes, with or without a session."""

from __future__ import annotations

from wbsp.ps.checkpoint.state import IndexOwner
from wbsp.ps.config import RunInfo
from wbsp.tensors.layout import LayerState


class Roster:
    """Which process has each worker's index, and under which epoch of the server.

    owners: worker -> its newest process that was a member
    layers: what layers have and no version carries, as the worker that brought W_0, or was first,
            has it; None: not known yet
    began:  number of this start of the run's server, and of its ledger
    epoch:  the same, or a later one, if its standby was lost
    """

    def __init__(self, info: RunInfo):
        self._info = info
        self.owners: dict[int, IndexOwner] = {}
        self.layers: list[LayerState] | None = None
        self.began = self.epoch = info.epoch

    def ticket(self, worker: int) -> bytes:
        """What the process of this member proves itself with from here on."""
        return self._info.ticket(worker, self.owners[worker].owner, self.epoch)
