"""Workers whose sums are exact: a replica without Keras that moves by whole numbers.

Every step moves x by k * UNIT * pattern with a random whole k. UNIT is a multiple of all numbers up
to 8, so that an update's share among so many workers is a whole number too, and float32 sums have
one value in whatever order they are made. A worker writes down the sum of the k of each cut,
counted apart from x: with the server's list of what it accepted, that says what the model must be.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from wbsp.tensors.layout import TensorSpec

UNIT = 840


def pattern(size: int) -> np.ndarray:
    """float32 [size], whole and different between neighbours."""
    return (np.arange(size) % 11 - 5).astype(np.float32)


class IntegerReplica:
    """See `wbsp.replica.base.Replica`. Worker w begins with an x of its own, w + 1 everywhere."""

    def __init__(self, worker: int, size: int = 5, record: Path | None = None, seed: int = 0):
        self.layout = [TensorSpec("kernel", (size - 1,)), TensorSpec("bias", ())]
        self._record = None if record is None else open(record / f"cuts-{worker}.jsonl", "a")
        self._pattern = UNIT * pattern(size)
        self._draw = np.random.default_rng([seed, worker])
        self.x = self.anchor = np.full(size, worker + 1, np.float32)
        self.uncut = 0  # sum of k
        self.cuts: list[int] = []
        self.adopted: list[tuple[str, bytes]] = []  # what was done, and with which bytes

    def step(self) -> None:
        k = int(self._draw.integers(-4, 5))
        self.x = self.x + k * self._pattern
        self.uncut += k

    def read(self) -> np.ndarray:
        return self.x

    def cut(self) -> np.ndarray:
        # written before it is handed over: a worker that is killed may have sent it
        if self._record:
            print(self.uncut, file=self._record, flush=True)
        self.cuts.append(self.uncut)
        self.uncut = 0
        update = self.x - self.anchor
        self.anchor = self.x
        return update

    def adopt(self, vector: np.ndarray, how: str) -> None:
        assert how == "rebase" or np.array_equal(self.x, self.anchor), "progress was thrown away"
        self.adopted.append((how, vector.tobytes()))
        self.x = vector if how == "replace" else vector + (self.x - self.anchor)
        self.anchor = vector

    def stepped(self) -> None:
        pass

    def hold(self) -> None:
        pass

    def put_back(self) -> bool:
        return False

    def bring(self, vector: np.ndarray) -> np.ndarray:
        return vector


def recorded(folder: Path, worker: int) -> list[int]:
    """The k of each cut of a worker, in the order of seq, over all its incarnations."""
    return [int(line) for line in (folder / f"cuts-{worker}.jsonl").read_text().split()]


def forget_cuts(folder: Path, worker: int, seq: int) -> None:
    """Forget what an earlier life of a worker cut and the server never got: its cuts from `seq`."""
    path = folder / f"cuts-{worker}.jsonl"
    with open(path, "r+") as file:
        kept = file.readlines()[:seq]
        file.truncate(len("".join(kept)))


def conserved(initial: np.ndarray, accepts: Iterable[dict], cuts: dict[int, list[int]],
              final: np.ndarray) -> None:
    """W_v = W_0 + the sum of weight * update over the accepted pushes, each once, exactly.

    accepts: the run's "accept" events; cuts: worker -> the k of each of its cuts
    """
    total = 0
    seen = set()
    for event in accepts:
        worker, seq = event["worker"], event["seq"]
        assert (worker, seq) not in seen, f"push {seq} of worker {worker} was accepted twice"
        seen.add((worker, seq))
        total += _whole(UNIT * event["weight"] * cuts[worker][seq])
    expected = initial.astype(np.float64) + total * pattern(initial.size)
    assert np.array_equal(final, expected), (final[:5], expected[:5])


def weights(folder: Path, worker: int) -> dict[int, float]:
    """seq -> the weight with which a worker's push was accepted, as the worker was told; 0: it was
    rejected. A push that was answered twice counts once."""
    lines = (folder / f"acks-{worker}.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    assert len({seq for seq, _ in told}) == len(told), "the agent heard of a push twice"
    return dict(told)


def answered(folder: Path, worker: int, pushes: int, exact: bool = True) -> float:
    """What a worker's pushes have moved the model by, in units of `pattern`: each of its cuts was
    answered, once, and counts with the weight that the worker was told; `exact`: which makes whole
    numbers of them.

    pushes: how many there were, as the server counts
    """
    cuts, told = recorded(folder, worker), weights(folder, worker)
    assert sorted(told) == list(range(len(cuts))), "each push was answered, once"
    assert pushes == len(cuts)
    shares = [UNIT * told[seq] * cut for seq, cut in enumerate(cuts)]
    return sum(map(_whole, shares) if exact else shares)


def _whole(share: float) -> int:
    assert abs(share - round(share)) < 1e-9
    return round(share)


def write_result(path: Path, replica: IntegerReplica, **facts: object) -> None:
    first = np.frombuffer(replica.adopted[0][1], np.float32)
    path.write_text(json.dumps({"first": first.tolist(), "final": replica.x.tolist(), **facts}))


def read_result(folder: Path, worker: int) -> dict:
    """A worker's result file: first and final vector (lists), version, steps, seconds."""
    return json.loads((folder / f"result-{worker}.json").read_text())
