"""Pushes that were handled, of each worker, and which of them are durable."""

from __future__ import annotations

from wbsp.core.messages import Ack


class Ledger:
    """Exactly once: the `seq` of each worker that were handled, and the answers to the newest.

    Attributes:
        mark: number of checkpoints that were begun, over all starts of the run's server. Of the
            pushes decided under one mark, the next checkpoint holds all or none, because
            checkpoints begin between two decisions.
        durable: decisions under a lower mark are in a complete checkpoint.
    """

    def __init__(self, next_seq: dict[int, int] | None = None,
                 answers: dict[int, Ack] | None = None, mark: int = 0):
        self._next: dict[int, int] = dict(next_seq or {})
        self._answer: dict[int, Ack] = dict(answers or {})  # worker -> answer to its newest push
        self.mark = self.durable = mark
        self._loaded = dict(self._next)
        self._replayed: dict[int, int] = {}  # worker -> mark under which it was

    def next_mark(self) -> int:
        """Begin a checkpoint or a snapshot; return the mark that bounds the decisions in it."""
        self.mark += 1
        return self.mark

    def saved(self, mark: int) -> None:
        """Note that the checkpoint of this mark is written, or replicated to a standby."""
        self.durable = max(self.durable, mark)

    def next_seq(self, worker: int) -> int:
        return self._next.get(worker, 0)

    def seen(self, worker: int, seq: int) -> bool:
        """Return whether a push was handled before.

        Raises:
            ValueError: the push is ahead: one between was lost.
        """
        due = self.next_seq(worker)
        if seq > due:
            raise ValueError(f"worker {worker} pushed seq {seq}, but seq {due} was never received")
        return seq < due

    def record(self, worker: int, seq: int, answer: Ack) -> None:
        """Note the answer to the push that is due. Raises ValueError for another one."""
        if seq != self.next_seq(worker):
            raise ValueError(f"push {seq} of worker {worker} was decided, but "
                             f"{self.next_seq(worker)} is due")
        self._next[worker] = seq + 1
        self._answer[worker] = answer

    def answer(self, worker: int) -> Ack | None:
        """Return the answer to the newest push of `worker`, for a sender that missed it."""
        return self._answer.get(worker)

    def state(self) -> dict[int, int]:
        """Return worker -> the seq it must use next; a checkpoint keeps it."""
        return dict(self._next)

    def lacks(self, worker: int, first: int, answered: int) -> int | None:
        """Return the first push of which this ledger lacks an earlier ledger's decision, or None.

        Args:
            worker: index of the worker.
            first: number of the first push of the process that reconnects.
            answered: number after its newest answered push.

        Raises:
            ValueError: no member could have these numbers.
        """
        due = max(first, self.next_seq(worker))
        if not (0 <= first <= answered and due <= answered + 1):
            raise ValueError(f"worker {worker} has answers up to push {answered - 1}, but push "
                             f"{due} is due")
        return due if due < answered else None

    def replay(self, worker: int, last: int) -> None:
        """Adopt an earlier ledger's decisions up to push `last` of `worker`."""
        self._next[worker] = last + 1
        self._replayed[worker] = self.mark

    def skip_to(self, worker: int, seq: int) -> None:
        """Skip the pushes before `seq`, which are lost with the process that made them."""
        self._next[worker] = seq

    def safe(self, worker: int) -> tuple[int, int]:
        """Return (number, mark) of a worker's pushes from earlier ledgers.

        Pushes below the number were durable when this ledger began; later ones were replayed under
        the mark.
        """
        return self._loaded.get(worker, 0), self._replayed.get(worker, self.mark)

    def answers(self) -> dict[int, Ack]:
        """Return worker -> the answer to its newest push."""
        return dict(self._answer)
