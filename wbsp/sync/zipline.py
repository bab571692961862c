"""ZipLine: the best time of a barrier for workers that end their steps at different times.

Sources: Zhao, Papagelis, An, Chen, Liu, Hu, "Elastic bulk synchronous parallel model for
distributed deep learning", ICDM 2019, arXiv 2001.01347; Zhao et al., "ZipLine: an optimized
algorithm for the elastic bulk synchronous parallel model", Machine Learning 110 (2021),
doi 10.1007/s10994-021-06064-w.

The problem: rows[p] holds the ascending times at which worker p will end its next R steps. Pick
one end per worker so that d = latest - earliest is least; of several such choices, the earliest.
The latest is the barrier; d is how long the worker that arrives first waits there.

All three algorithms sweep the merged points (time, worker, index) once and keep Z, the newest point
of each worker, in order:

    drop the same worker's older point from Z; append the new one                         [paper]
    Z holds all workers, and new - leftmost < d? d = new - leftmost; barrier = new        [paper]

They differ in how the older point is found. Only the barrier is recorded; the chosen ends are
rebuilt from it [ours]. All return the same choice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from math import isfinite
from operator import le
from typing import NamedTuple

Rows = Sequence[Sequence[float]]
Point = tuple[float, int, int]  # (time, worker, index from 0); comparing whole points settles ties


class Counts(NamedTuple):
    """Operations of a sweep, without the merge of the rows, O(nR log n), which all have."""

    points: int  # swept: n R
    compared: int  # entries of Z looked at
    moved: int  # entries of Z shifted because another one was dropped


class Choice(NamedTuple):
    """One end per worker: ends rows[p][indices[p] - 1]."""

    barrier: float  # the latest of the ends
    d: float  # the latest - the earliest
    indices: list[int]  # from 1 to R; a worker's last end that is not after the barrier
    counts: Counts


def zipline(rows: Rows) -> Choice:
    """Choose a barrier; a filter over all of Z drops the older point. O(R n^2) [paper].

    Raises:
        ValueError: a row is empty, not ascending or not finite.
    """
    def drop(z: list[int], worker: int) -> tuple[int, int]:
        size = len(z)
        z[:] = [other for other in z if other != worker]
        return size, size

    return _sweep(rows, drop)


def zipline_opt(rows: Rows) -> Choice:
    """Choose `zipline`'s barrier; a search of Z from the left finds the older point.

    It often is the leftmost, so that the search ends at once; the worst case is still O(R n^2)
    [paper].
    """
    def drop(z: list[int], worker: int) -> tuple[int, int]:
        place = z.index(worker)
        del z[place]
        return place + 1, len(z) - place

    return _sweep(rows, drop)


def zipline_opt_bs(rows: Rows) -> Choice:
    """Choose `zipline`'s barrier; a binary search by its time finds the older point.

    O(R n log n) [paper]. Z is a window of the merged points in which dropped ones are only marked,
    because a deletion would move all points behind it, and cost O(R n^2) again [ours].
    """
    points = _merge(rows)
    dropped = bytearray(len(points))
    left = compared = 0
    missing = len(rows)  # workers not in Z
    d = barrier = float("inf")
    for new, (time, worker, index) in enumerate(points):
        if not index:
            missing -= 1
        elif points[left][1] == worker:
            left += 1
        else:
            older = (rows[worker][index - 1], worker, index - 1)
            dropped[bisect_left(points, older, left, new)] = True
            compared += (new - left).bit_length()
        while dropped[left]:
            left += 1
        if not missing and time - points[left][0] < d:
            d, barrier = time - points[left][0], time
    return _choice(rows, barrier, d, Counts(len(points), compared + left, 0))


def _sweep(rows: Rows, drop: Callable[[list[int], int], tuple[int, int]]) -> Choice:
    """Sweep with Z as the list of the workers, in the order of their newest points.

    drop(z, worker) removes the worker, and returns how many entries it compared and moved.
    """
    points = _merge(rows)
    z: list[int] = []
    newest = [0.0] * len(rows)
    compared = moved = 0
    d = barrier = float("inf")
    for time, worker, index in points:
        if index:
            looked, shifted = drop(z, worker)
            compared += looked
            moved += shifted
        z.append(worker)
        newest[worker] = time
        if len(z) == len(rows) and time - newest[z[0]] < d:
            d, barrier = time - newest[z[0]], time
    return _choice(rows, barrier, d, Counts(len(points), compared, moved))


def _merge(rows: Rows) -> list[Point]:
    """Return all points of all rows in order; the sort merges the ascending rows.

    Raises:
        ValueError: a row is empty, not ascending or not finite.
    """
    if not rows:
        raise ValueError("no rows: a barrier needs at least one worker")
    for worker, row in enumerate(rows):
        if not (row and isfinite(row[0]) and isfinite(row[-1]) and all(map(le, row, row[1:]))):
            raise ValueError(f"rows[{worker}]={row!r}: the predicted ends of a worker must be one "
                             "or more finite times, ascending")
    return sorted([(time, worker, index) for worker, row in enumerate(rows)
                   for index, time in enumerate(row)])


def _choice(rows: Rows, barrier: float, d: float, counts: Counts) -> Choice:
    return Choice(barrier, d, [bisect_right(row, barrier) for row in rows], counts)
