"""A saved version of a run, for a user's own model."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from wbsp.limits import one_line
from wbsp.process.host import HOST, Host
from wbsp.ps.checkpoint.format import Checkpoint, read
from wbsp.ps.checkpoint.format import load as _load
from wbsp.ps.checkpoint.writer import BEST, CHECKPOINT
from wbsp.replica.values import Values
from wbsp.tensors.frozen import FrozenValues
from wbsp.tensors.layout import difference, namesakes, other_state, places
from wbsp.wire.line import read_version
from wbsp.wire.messages.requests import VersionAt


def load(run_folder: str | os.PathLike[str], model: Any, best: bool = False) -> int:
    """Set the model to a version that the run has saved; return the number of that version.

    The model is one of Keras, also with another back end than the run's workers, or an object that
    `Worker` trains in place, such as a torch.nn.Module. A version holds no optimizer state.

    Args:
        run_folder: folder that the run has written.
        model: a model that is built like the workers'.
        best: load the best version by the run's metric, not the newest one.

    Raises:
        FileNotFoundError: the run has saved no such version; one line.
        ValueError: the file is damaged, or the model does not fit the run; one line.
    """
    path = saved_at(Path(run_folder), best)
    saved = _load(path)
    assign(saved, model, str(path))
    return saved.state.version


def saved_at(folder: Path, best: bool) -> Path:
    """Return the file of a version that the run has saved.

    Raises:
        FileNotFoundError: the run has no such version; one line.
    """
    path = folder / (BEST if best else CHECKPOINT)
    if not path.exists():
        raise FileNotFoundError(_missing(folder, best))
    return path


def read_at(place: str, at: VersionAt, token: bytes | None, on: Host = HOST) -> Checkpoint | str:
    """Read a version from its server; return it, or why it cannot be read.

    The arguments are those of `wbsp.wire.line.read_version`.

    Raises:
        ValueError: it is damaged; one line.
    """
    file = io.BytesIO()
    problem = read_version(place, at, token, file, on)
    return read(file, f"version {at.version}") if problem is None else problem


def assign(saved: Checkpoint, model: Any, of: str) -> None:
    """Set the model to this version; variables that were local in the run stay as they are.

    Raises:
        ValueError: the model does not fit the run; one line that begins with `of`.
    """
    values = Values(model, frozen=[])
    whole = [*saved.layout, *saved.frozen.layout]
    if local := saved.state.local:
        mine, theirs = ([spec.name for spec in layout] for layout in (values.layout, whole))
        values = Values(model, frozen=[], local=namesakes(mine, [*theirs, *local], local))
    if fill(values, saved, of) is not model:
        raise ValueError("cannot write to a pytree of JAX: have a Worker join the run, and take "
                         "the version from its Worker.values")


def fill(values: Values, saved: Checkpoint, of: str) -> Any:
    """Set values of which none is frozen to this version, and return them as `Values.given`.

    Raises:
        ValueError: they are not those of the run; one line that begins with `of`.
    """
    whole = [*saved.layout, *saved.frozen.layout]
    where = places(values.layout, whole)
    reason = difference(values.layout, whole) if where is None else None
    if reason is None and saved.state.layers is not None:
        here = values.states()
        reason = None if here is None else other_state(here, saved.state.layers)
    if where is None or reason is not None:
        raise ValueError(f"{one_line(of, 1000)} is of another model than {values.name}: "
                         f"{one_line(reason or '', 4000)} (here: the model, there: the run); build "
                         "the model as the run's workers did")
    parts = [*FrozenValues(saved.layout, saved.vector).parts(), *saved.frozen.parts()]
    replica = values.open()
    replica.adopt(replica.bring(np.concatenate([parts[place] for place in where])), "replace")
    for _ in values.finish():
        pass
    return values.given


def _missing(folder: Path, best: bool) -> str:
    """Return why this folder has no such version, in one line."""
    if not (folder / CHECKPOINT).exists():
        return (f"{folder} holds no version: there is no {CHECKPOINT} in it; give the folder of a "
                "run, such as runs/pcc/run-001")
    return (f"{folder} holds no best version: no process has evaluated versions of this run by the "
            "metric of its server's --best=METRIC or --target=METRIC:VALUE; take the newest "
            "version instead")
