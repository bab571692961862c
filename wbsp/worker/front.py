"""What `wbsp.Worker` and `SyncCallback` have in common for the user's loop.

A further request that a loop may make of the server is a method here:

    answer = self._member.begun().ask(AskThat(), That, "that")
    return None if answer is None else answer.value  # None: a signal has ended the wait

Its messages are in `wbsp.wire.messages.requests`, its handler in `wbsp.ps.sessions.requests`.
"""

from __future__ import annotations

from typing import Any, ClassVar

from wbsp.worker import loop
from wbsp.worker.errors import in_one_line


class FrontEnd:
    """The run of one worker, as its loop sees it."""

    _name: ClassVar[str]  # of a variable with this object, for errors
    _shares: ClassVar[str]  # how its loop trains data that the workers share
    _member: loop.Worker

    @property
    def worker(self) -> int:
        """Index of this worker. If the server chooses it, the first read connects.

        Raises:
            TransportError: no server answers, or it refuses this worker.
        """
        with in_one_line():
            return self._member.index

    @property
    def stop_reason(self) -> str | None:
        """Why training ends before the loop is done; None if it does not."""
        return self._member.stop_reason

    @property
    def run_steps(self) -> int:
        """Number of steps of all workers in the run, as far as this worker knows; 0 before it.

        It counts the examples that the workers have trained, those in the answer to this worker's
        newest push and its own since then, in steps of the batch_size that was given, rounded up.
        Without one, or with a dataset of its own in `fit`, it counts the steps themselves.
        """
        return self._member.run_steps(self._step_size)

    @property
    def total_steps(self) -> int:
        """Number of steps of all workers in the whole run: epochs * n / batch_size, rounded up.

        Raises:
            ValueError: the workers do not share their data.
        """
        share = self._whole("total_steps")
        return int(-(-share.total // share.data.batch))

    @property
    def done(self) -> float:
        """Part of the run's examples that all workers have trained: 0 before it, 1 at its end.

        A learning rate schedule follows it, so that all workers end with the same rate. It may fall
        if examples must be trained again, such as those of a lost worker.

        Raises:
            ValueError: the workers do not share their data.
        """
        share = self._whole("done")
        return float(self._run_examples / share.total)

    def stop_run(self, reason: str) -> None:
        """End the training of all workers, after their current steps. Any callback may call this.

        Args:
            reason: for the console of all workers, in one line, of which 400 characters are shown.

        Raises:
            ValueError: it is no text.
        """
        self._member.stop_run(reason)

    def progress(self) -> str:
        """Return steps, loss, version and share of computing time, in one line."""
        return self._member.progress()

    @property
    def _step_size(self) -> int | None:
        """Examples of a step in `run_steps`; None: of any step."""
        return self._data.data.batch if self._data else self._member.batch

    @property
    def _run_examples(self) -> int:
        """Examples that all workers have trained, as far as this worker knows."""
        return self._member.run_examples

    @property
    def _data(self) -> Any:
        """The run's shared data; None: there are none."""
        return self._member.share

    def _whole(self, what: str) -> Any:
        """Return the run's shared data. Raises ValueError if each worker has its own."""
        if self._data is None:
            with in_one_line():
                raise ValueError(f"{self._name}.{what} needs data that all workers share, because "
                                 f"the end of other data is not known: {self._shares}")
        return self._data
