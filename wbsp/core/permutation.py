"""Map positions of the shared data to examples: one seeded permutation for each epoch.

Generalised Feistel network for any n (Black and Rogaway, "Ciphers with Arbitrary Finite Domains",
CT-RSA 2002) with the finalizer of splitmix64 as its round function. It uses integers only, so that
every machine, back end and version of numpy gives equal results. It needs no memory for any n.
"""

from __future__ import annotations

from math import isqrt

import numpy as np

NAME = "feistel-1"  # in the run's settings; the server refuses a worker with another order
LARGEST = 2**62  # n up to here
_ROUNDS = 6
_STEP = 0x9E3779B97F4A7C15  # splitmix64's
_WORD = 2**64 - 1
_AHEAD = 1024  # positions: a call for these takes three times as long as one for 64


def examples(start: int, stop: int, n: int, seed: int) -> np.ndarray:
    """Return the examples at positions start ... stop - 1 of the run.

    Position g is example `g % n` of epoch `g // n`, in that epoch's order.

    Returns:
        int64 [stop - start], 0 ... n - 1.

    Raises:
        ValueError: the positions are not of one epoch, or n is out of range.
    """
    if not 0 < n <= LARGEST:
        raise ValueError(f"n={n} examples: it must be 1 ... {LARGEST}")
    epoch = start // n
    if not epoch * n <= start <= stop <= epoch * n + n:
        raise ValueError(f"positions {start} ... {stop - 1} are not of one epoch of {n}")
    return examples_at(np.arange(start - epoch * n, stop - epoch * n, dtype=np.uint64), epoch, n,
                       seed)


def examples_at(places: np.ndarray, epoch: int, n: int, seed: int) -> np.ndarray:
    """Return the examples at these places, uint64 below n, of an epoch's order, as int64."""
    return _permuted(places, n, _keys(seed, epoch)).astype(np.int64)


class Order:
    """The order of the examples, for a reader that mostly continues where it ended.

    It computes ahead, twice as far at each time: a call of the function `examples` takes as long
    for one position as for a hundred. Any thread may call.
    """

    def __init__(self) -> None:
        self._known = 0, 0, 0, np.empty(0, np.int64)  # n, seed, first position, its and next ones

    def examples(self, start: int, stop: int, n: int, seed: int) -> np.ndarray:
        """Return what the function `examples` returns; the caller may write to it."""
        *order, first, known = self._known
        at, size, end = start - first, stop - start, stop
        if order == [n, seed] and size >= 0 and 0 <= at <= known.size:
            if at + size <= known.size:
                return known[at:at + size].copy()
            ahead = max(size, min(2 * known.size, _AHEAD))
            end = max(stop, min(start + ahead, (start // n + 1) * n))
        known = examples(start, end, n, seed)
        self._known = n, seed, start, known
        return known[:size].copy()


def _permuted(x: np.ndarray, n: int, keys: list[np.uint64]) -> np.ndarray:
    """Return the images of x, uint64, in the permutation; repeat it for images not below n."""
    rows = isqrt(n)
    columns = -(-n // rows)
    outside = np.arange(x.size)
    out = x.copy()
    while outside.size:
        left, right = np.divmod(out[outside], np.uint64(columns))
        for number, key in enumerate(keys):
            if number % 2:
                right = (right + _below(columns, left ^ key)) % np.uint64(columns)
            else:
                left = (left + _below(rows, right ^ key)) % np.uint64(rows)
        out[outside] = left * np.uint64(columns) + right
        outside = outside[out[outside] >= np.uint64(n)]
    return out


def _below(bound: int, x: np.ndarray) -> np.ndarray:
    """Return a number below `bound`, at most 2**32, from each x, uint64."""
    below: np.ndarray = ((_mixed(x) >> np.uint64(32)) * np.uint64(bound)) >> np.uint64(32)
    return below


def _mixed(x: np.ndarray) -> np.ndarray:
    """Apply the finalizer of splitmix64."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed


def _keys(seed: int, epoch: int) -> list[np.uint64]:
    """Return a key for each round: splitmix64's numbers from a state of seed and epoch."""
    state = int(_mixed(np.array([seed & _WORD], np.uint64))[0]) ^ (epoch * _STEP & _WORD)
    states = [(state + _STEP * (number + 1)) & _WORD for number in range(_ROUNDS)]
    return list(_mixed(np.array(states, np.uint64)))
