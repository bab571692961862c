"""A version of a run, in a model of the user's own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from wbsp.ps.checkpoint.format import Checkpoint
from wbsp.ps.checkpoint.format import load as _load
from wbsp.ps.checkpoint.writer import BEST, CHECKPOINT
from wbsp.replica.layers import constrain, derive
from wbsp.replica.model import open_replica
from wbsp.replica.states import states
from wbsp.tensors.layout import difference, other_state

if TYPE_CHECKING:
    import keras


def load(run_folder: str | os.PathLike, model: keras.Model, best: bool = False) -> int:
    """Set the model to a version that the run has saved; return the number of that version.

    The model may be of another back end than the run's workers. A version holds no state of an
    optimizer.

    Args:
        run_folder: the folder that the run has left.
        model: a model that is built as the workers' was.
        best: take the best version by the run's metric, not the newest one.

    Raises:
        FileNotFoundError: the run has saved no such version; one line.
        ValueError: the file is damaged, or the model is not the run's; one line.
    """
    folder = Path(run_folder)
    path = folder / (BEST if best else CHECKPOINT)
    if not path.exists():
        raise FileNotFoundError(_missing(folder, best))
    saved = _load(path)
    assign(saved, model, str(path))
    return saved.state.version


def read(path: Path) -> Checkpoint:
    """The version in this file, for `assign`. Raises ValueError in one line for a damaged one."""
    return _load(path)


def assign(saved: Checkpoint, model: keras.Model, of: str) -> None:
    """Set the model to this version. Raises ValueError, in one line that begins with `of`, for a
    model that is not the run's."""
    replica = open_replica(model)
    reason = difference(replica.layout, saved.layout)
    if reason is None and saved.state.layers is not None:
        reason = other_state(states(model), saved.state.layers)
    if reason is not None:
        raise ValueError(f"{of} is of another model than {model.name}: {reason} (here: the "
                         "model, there: the run); build the model as the run's workers did")
    replica.adopt(replica.bring(saved.vector), "replace")
    derive(model)
    constrain(model)


def _missing(folder: Path, best: bool) -> str:
    """Why there is no such version in this folder, in one line."""
    if not (folder / CHECKPOINT).exists():
        return (f"{folder} holds no version: there is no {CHECKPOINT} in it; give the folder of a "
                "run, such as runs/pcc/run-001")
    return (f"{folder} holds no best version: nobody has evaluated versions of this run by a "
            "metric that its server was told by --best=METRIC or --target=METRIC:VALUE; load the "
            "newest one without best=True")
