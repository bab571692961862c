"""Which pushes of which worker count, and which of them a death can no longer undo."""

from __future__ import annotations

from wbsp.core.messages import Ack


class Ledger:
    """Exactly once: which `seq` of each worker was handled, and what the answer to it was.

    mark:    number of checkpoints that were begun, over all starts of the run's server. All pushes
             that were decided under one mark are in the next checkpoint, or none is: checkpoints
             are begun between two decisions.
    durable: what was decided under a mark below is in a checkpoint that is written
    """

    def __init__(self, next_seq: dict[int, int] | None = None,
                 answers: dict[int, Ack] | None = None, mark: int = 0):
        self._next: dict[int, int] = dict(next_seq or {})
        self._answer: dict[int, Ack] = dict(answers or {})  # worker -> answer to its newest push
        self.mark = self.durable = mark
        self._loaded = dict(self._next)
        self._replayed: dict[int, int] = {}  # worker -> mark under which it was

    def next_mark(self) -> int:
        """A checkpoint or a copy begins: the mark behind all that is in it; what is decided from
        here on is not."""
        self.mark += 1
        return self.mark

    def saved(self, mark: int) -> None:
        """What was begun with this mark is written, or held by a standby."""
        self.durable = max(self.durable, mark)

    def next_seq(self, worker: int) -> int:
        return self._next.get(worker, 0)

    def seen(self, worker: int, seq: int) -> bool:
        """True for a push that was handled before.

        Raises ValueError for one that is ahead: something between was lost.
        """
        due = self.next_seq(worker)
        if seq > due:
            raise ValueError(f"worker {worker} pushed seq {seq}, but seq {due} was never received")
        return seq < due

    def record(self, worker: int, seq: int, answer: Ack) -> None:
        self._next[worker] = seq + 1
        self._answer[worker] = answer

    def answer(self, worker: int) -> Ack | None:
        """The answer to the newest push of `worker`, for a sender that missed it."""
        return self._answer.get(worker)

    def state(self) -> dict[int, int]:
        """worker -> the seq it must use next; what a checkpoint keeps."""
        return dict(self._next)

    def lacks(self, worker: int, first: int, answered: int) -> int | None:
        """The push from which on this ledger lacks decisions that an earlier one held; None: none.

        first:    number of the first push of the process that attaches again
        answered: number behind the newest push that was answered

        Raises ValueError for numbers that no member could have.
        """
        due = max(first, self.next_seq(worker))
        if not (0 <= first <= answered and due <= answered + 1):
            raise ValueError(f"worker {worker} has answers up to push {answered - 1}, but push "
                             f"{due} is due")
        return due if due < answered else None

    def replay(self, worker: int, last: int) -> None:
        """The decisions up to push `last` of `worker` are those of an earlier ledger."""
        self._next[worker] = last + 1
        self._replayed[worker] = self.mark

    def skip_to(self, worker: int, seq: int) -> None:
        """The pushes before `seq` are lost with the process that made them."""
        self._next[worker] = seq

    def safe(self, worker: int) -> tuple[int, int]:
        """Pushes below the first number were durable when this ledger began; those behind it, of
        earlier ledgers, were replayed under the mark that is the second."""
        return self._loaded.get(worker, 0), self._replayed.get(worker, self.mark)

    def answers(self) -> dict[int, Ack]:
        """worker -> the answer to its newest push."""
        return dict(self._answer)
