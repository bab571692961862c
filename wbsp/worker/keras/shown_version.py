"""The version of a run's epoch in a worker's model, in place of its own training state: for a
validation, and for callbacks that save it."""

from __future__ import annotations

import keras

from wbsp.core.messages import Measured
from wbsp.limits import one_line
from wbsp.saved import assign, read_at
from wbsp.wire.messages.requests import AskVersion
from wbsp.worker.loop import Worker


class ShownVersion:
    """Between `show` and `put_back`, the model holds an epoch's version.

    Attributes:
        epoch: of that version; None: the model holds the worker's training state.
    """

    def __init__(self, worker: Worker, model: keras.Model):
        self._worker = worker
        self._model = model
        self.epoch: int | None = None

    def show(self, ask: AskVersion) -> bool:
        """Show the version that the server names.

        Returns:
            False if the server names no version for this worker, or it cannot be read.

        Raises:
            TransportError: the server is lost.
        """
        runtime = self._worker.begun()
        at = runtime.epoch_version(ask)
        if at is None or at.epoch == self.epoch:
            return at is not None
        saved = read_at(runtime.transport.place, at, self._worker.access.token)
        if not isinstance(saved, str):
            assign(saved, self._model, f"the version of epoch {at.epoch + 1}")
            self.epoch = at.epoch
            return True
        self._worker.say_once(
            f"cannot read the version of an epoch: {one_line(saved)}; not validating it; "
            "callbacks get this worker's own training state")
        if ask.validates:
            runtime.tell(Measured(at.epoch, {}))  # others may wait for its results
        return False

    def put_back(self) -> None:
        """Restore the worker's training state."""
        if self.epoch is not None:
            self._worker.begun().put_back()
            self.epoch = None
