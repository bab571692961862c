"""Many trainings of a network on CIFAR-10 in virtual time, each in a folder; finished ones stay."""

import functools
import json
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from wbsp.process.imports import heavy_imports

EXAMPLES = 50_000  # of an epoch

Training = TypeVar("Training")


@functools.cache
def deterministic() -> None:
    """Make this process compute the same bits each time. TensorFlow allows it once, before it
    computes."""
    with heavy_imports():
        from wbsp.simulate.workloads.keras import make_deterministic

        make_deterministic()


def falling(steps: int) -> dict[int, float]:
    """Return {steps: factor of the rate from there on} of a whole training: a tenth from 60 % on, a
    hundredth from 85 % on.

    steps: of a worker
    """
    return {steps * 60 // 100: 0.1, steps * 85 // 100: 0.01}


def empty(folder: Path) -> None:
    """Make this folder; a run that was stopped may have left files in it."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.iterdir():
        left.unlink()


def evaluations(folder: Path) -> list[dict[str, Any]] | None:
    """Return the evaluations of a finished run; None: it is not finished."""
    if not (folder / "summary.json").exists():
        return None
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    return [event for event in events if "accuracy" in event]


def side_by_side(train: Callable[[Training], None], missing: Sequence[Training],
                 jobs: int) -> None:
    """Make these trainings, `jobs` at the same time."""
    if jobs == 1:
        for one in missing:
            train(one)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for _ in pool.map(train, missing):
            pass
