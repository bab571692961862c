"""The indices of a server's workers: which one a process gets that has none.

It gets the lowest index that no process holds. A process holds its index while it has a session.
Without a session it holds it for `INDEX_BACK` seconds where it is expected back: between two runs
of one server, and as the owner of an index in the state that a server resumes from. So no process
gets an index whose owner may still continue with it. A worker that was lost in mid-run holds
nothing: it had `WORKER_GONE` seconds to reconnect.

If all indices are held, a process waits for those whose holder is silent, because it may have
ended. It is refused if all holders live.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from wbsp import timeouts


class Indices:
    """The indices 0 ... workers - 1; times are the server's own, in seconds."""

    def __init__(self, workers: int, patience: float = timeouts.INDEX_BACK):
        """Start; `patience`: seconds for which an index is kept for a process without a session."""
        self._workers = workers
        self._patience = patience
        self._kept: dict[int, float] = {}  # index -> time until which its process may reconnect

    def keep(self, indices: Iterable[int], now: float) -> None:
        """Keep indices for their processes, which have no session now and are expected back."""
        self._kept.update(dict.fromkeys(indices, now + self._patience))

    def kept(self, now: float) -> set[int]:
        """Return the indices of processes that are expected back."""
        return {index for index, until in self._kept.items() if now < until}

    def came(self, index: int) -> None:
        """Note that this index has a session."""
        self._kept.pop(index, None)

    def choose(self, held: Collection[int], wanted: int | None, now: float) -> int | None:
        """Return the index for a process that has none, or whose own may have gone to another.

        Args:
            held: indices with a session of another process.
            wanted: index that this process was given before, and prefers; None: it has had none.
            now: the present time.

        Returns:
            None if each index is held.
        """
        if wanted is not None and wanted < self._workers and wanted not in held:
            return wanted  # if it is kept, then for this process
        taken = self.kept(now).union(held)
        return next((index for index in range(self._workers) if index not in taken), None)
