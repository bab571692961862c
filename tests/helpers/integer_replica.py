"""Workers whose sums are exact: a replica without Keras that moves by integers.

Every step moves x by k * UNIT * pattern with a random integer k. UNIT is a multiple of all numbers
up to 8, so that an update divided by up to 8 workers is an integer too, and float32 sums have the
same value in any order. A worker records the sum of the k of each cut, counted apart from x.
Together with the weights of its pushes this determines the model (see `conservation`).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from wbsp.tensors.layout import TensorSpec

UNIT = 840
SPARSE = 6007  # floats of a model of which a step changes few
ROW = 45  # floats that a step of a table moves together
EXACT = 1 << 14  # floats of a table in which int8 loses nothing: a row of it has one magnitude
EXACT_ROW = 256  # floats of a row of that, and of a scale of int8
_FAR = 2.0**22  # from where steps of a table lead back: a whole float32 is below 2**24


def pattern(size: int) -> np.ndarray:
    """Return float32 [size], integers that differ between neighbours; of `SPARSE` floats most are
    0.
    """
    if size == EXACT:
        return np.where(np.arange(size) % 3, 127, -127).astype(np.float32)
    whole = (np.arange(size) % 11 - 5).astype(np.float32)
    if size == SPARSE:
        whole[40:3000] = whole[3040:-30] = 0
    return whole


class IntegerReplica:
    """See `wbsp.replica.base.Replica`. Worker w begins with x = w + 1 everywhere."""

    def __init__(self, worker: int, size: int = 5, record: Path | None = None, seed: int = 0):
        self.layout = [TensorSpec("kernel", (size - 1,)), TensorSpec("bias", ())]
        self._record = None if record is None else open(record / f"cuts-{worker}.jsonl", "a")
        self._pattern = UNIT * pattern(size)
        self._draw = np.random.default_rng([seed, worker])
        self.x = self.anchor = np.full(size, worker + 1, np.float32)
        self.uncut = 0  # sum of k
        self.cuts: list[int] = []
        self.adopted: list[tuple[str, bytes]] = []  # the operation, and its bytes

    def step(self) -> None:
        k = int(self._draw.integers(-4, 5))
        if not k and self.x.size > SPARSE:
            k = 4  # of nothing, nothing would travel
        self.x = self.x + k * self._pattern
        self.uncut += k

    def read(self) -> np.ndarray:
        return self.x

    def cut(self) -> np.ndarray:
        # written before it is handed over: a worker that is killed may have sent it
        if self._record:
            print(np.asarray(self.uncut).tolist(), file=self._record, flush=True)
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


class TableReplica(IntegerReplica):
    """A replica whose steps each move a row or two: a cut is the sum of the k of each row, int64
    [rows].
    """

    def step(self) -> None:
        width = row(self.x.size)
        moved = np.zeros(-(-self.x.size // width), np.int64)
        for one in self._draw.integers(0, moved.size, self._draw.integers(1, 3)):
            moved[one] += self._draw.choice([-3, -2, -1, 1, 2, 3])
        at = self.x[::width] * self._pattern[::width]
        moved = np.where(np.abs(self.x[::width]) > _FAR, -np.sign(at) * np.abs(moved), moved)
        moved = moved.astype(np.int64)
        self.x = self.x + (of_rows(moved, self.x.size) * self._pattern).astype(np.float32)
        self.uncut = self.uncut + moved


def row(size: int) -> int:
    """Return the floats in a row of a table with this number of rows."""
    return EXACT_ROW if size == EXACT else ROW


def of_rows(ks, size: int):
    """Return the k of each value of a table, [size], from the k of each row; a single k is that of
    all.
    """
    return np.repeat(ks, row(size))[:size] if np.ndim(ks) else ks


def recorded(folder: Path, worker: int) -> list:
    """Return the k of each cut of a worker, or of each row of it, int64 [rows], in the order of
    seq, over all its processes.
    """
    lines = (folder / f"cuts-{worker}.jsonl").read_text().splitlines()
    return [np.array(cut) if isinstance(cut, list) else cut for cut in map(json.loads, lines)]


def forget_cuts(folder: Path, worker: int, seq: int) -> None:
    """Remove what an earlier process of a worker cut and the server never received: its cuts from
    `seq`.
    """
    path = folder / f"cuts-{worker}.jsonl"
    with open(path, "r+") as file:
        kept = file.readlines()[:seq]
        file.truncate(len("".join(kept)))


def write_result(path: Path, replica: IntegerReplica, **facts: object) -> None:
    first = np.frombuffer(replica.adopted[0][1], np.float32)
    path.write_text(json.dumps({"first": first.tolist(), "final": replica.x.tolist(), **facts}))


def read_result(folder: Path, worker: int) -> dict:
    """Read a worker's result file: first and final vector (lists), version, steps, seconds."""
    return json.loads((folder / f"result-{worker}.json").read_text())
