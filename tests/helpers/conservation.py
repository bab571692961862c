"""Check the law that every run keeps: each push counts exactly once, with one weight, and nothing
else counts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fake_worker import FakeWorker
from integer_replica import UNIT, of_rows, pattern, read_result, recorded
from jobs import ServerJob

from wbsp.core.state import EngineState
from wbsp.ps.checkpoint import format as checkpoint
from wbsp.runlog.reader import read_run
from wbsp.testing.once import Pushes


def steps_of(state: EngineState) -> dict[int, int]:
    """Return worker -> steps of its pushes that the state counts."""
    return {worker: member.steps for worker, member in state.members.items()}


# Models whose weights make no whole numbers of whole ones.
UNEVEN = "auto", "lbbsp", "fedasync", "decoupled"


@dataclass
class IntegerRun:
    """The results of a run of integer workers that has ended.

    Attributes:
        folder: of the server's files.
        cuts: worker -> the k of each of its cuts, or of each row of them, in the order of seq.
        firsts: worker -> the version that it adopted first, float32 [n], of workers that were not
            killed.
        finals: worker -> the version that it ended with, of workers that stayed to the end.
        weights: worker -> seq -> the weight with which a push counts; 0: it was rejected.
    """

    folder: Path
    cuts: dict[int, list]
    firsts: dict[int, np.ndarray]
    finals: dict[int, np.ndarray]
    weights: dict[int, dict[int, float]]

    @classmethod
    def of_threads(cls, server: ServerJob, workers: Sequence[FakeWorker]) -> IntegerRun:
        """Collect a run of threads; the weights are those of the server's log."""
        replicas = {worker.index: worker.replica for worker in workers}
        return cls(server.folder,
                   {worker: replica.cuts for worker, replica in replicas.items()},
                   {worker: np.frombuffer(replica.adopted[0][1], np.float32)
                    for worker, replica in replicas.items()},
                   {worker: replica.x for worker, replica in replicas.items()},
                   logged(server.folder))

    @classmethod
    def of_processes(cls, folder: Path, record: Path, told: bool = False) -> IntegerRun:
        """Collect a run of processes.

        Args:
            folder: of the server's files.
            record: folder in which `integer_worker.py` wrote.
            told: take the weights from the answers that the workers received, because the log of a
                killed server may lack some. Otherwise take them from the log, because killed
                workers may lack some.
        """
        workers = sorted(int(path.stem.partition("-")[2]) for path in record.glob("cuts-*.jsonl"))
        ended = {worker: read_result(record, worker) for worker in workers
                 if (record / f"result-{worker}.json").exists()}
        return cls(folder, {worker: recorded(record, worker) for worker in workers},
                   {worker: np.array(one["first"], np.float32) for worker, one in ended.items()},
                   {worker: np.array(one["final"], np.float32) for worker, one in ended.items()
                    if not one["interrupted"]},
                   {worker: answered_weights(record, worker) for worker in workers} if told
                   else logged(folder))


def assert_conserved(run: IntegerRun) -> checkpoint.Checkpoint:
    """Assert that W = W_0 + the sum of weight * update over all pushes, each of them once, to the
    last bit, and that all workers have this version. Return the final checkpoint.

    The last cut of a killed worker may not have reached the server.
    """
    saved = checkpoint.load(run.folder / "checkpoint.safetensors")
    settings = read_run(run.folder).settings
    total = 0.0
    for worker in run.weights.keys() - run.cuts.keys():  # a peer that no helper records
        assert not any(run.weights[worker].values()), f"worker {worker} has made no push"
    for worker, cuts in run.cuts.items():
        pushes = Pushes(f"worker {worker}", dict(enumerate(cuts)), run.weights.get(worker, {}))
        pushes.check(lost=worker not in run.firsts)
        assert saved.state.next_seq[worker] == len(pushes.weights)
        for part in pushes.parts(UNIT):
            whole = part if settings["sync"] in UNEVEN else np.rint(part)
            assert (np.abs(part - whole) < 1e-9).all()
            total = total + whole
    for worker, final in run.finals.items():
        assert final.tobytes() == saved.vector.tobytes(), f"worker {worker} has another version"
    size = saved.vector.size
    _is_initial(saved.vector.astype(np.float64) - of_rows(total, size) * pattern(size), run,
                0.0 if settings["sync"] not in UNEVEN else 1e-5 * max(
                    # of float32 sums over some hundred pushes, each of thousands
                    np.abs(saved.vector).max(), 5 * UNIT))
    return saved


def _is_initial(vector: np.ndarray, run: IntegerRun, tolerance: float) -> None:
    """Return whether the vector is the W_0 of a worker, from which the first workers began."""
    began = {float(first[0]) for first in run.firsts.values() if len(set(first.tolist())) == 1}
    brought = {worker + 1.0 for worker in run.cuts}
    assert len(began) <= 1 and began <= brought, began
    assert any(np.abs(vector - value).max() <= tolerance for value in began or brought), (
        f"without what was pushed the final version is {vector[:5]}, and W_0 was {began}")


def logged(folder: Path) -> dict[int, dict[int, float]]:
    """Return the weights of all pushes in the server's log, by worker and number."""
    found: dict[int, Pushes] = {}
    for event in read_run(folder).events:
        if event["kind"] in ("accept", "reject"):
            found.setdefault(event["worker"], Pushes(f"worker {event['worker']}")).answer(
                event["seq"], event.get("weight", 0.0))
    return {worker: pushes.weights for worker, pushes in found.items()}


def answered_weights(record: Path, worker: int) -> dict[int, float]:
    """Return the weights of a worker's pushes according to the answers that it received."""
    pushes = Pushes(f"worker {worker}")
    for line in (record / f"acks-{worker}.jsonl").read_text().splitlines():
        pushes.answer(*json.loads(line))
    return pushes.weights
