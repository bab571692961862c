"""The effect of adopting a version on a fast worker's loss."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from reproduction.results import Results
from reproduction.settings import Setting
from reproduction.tables import NOT_RUN

from wbsp.figures.table import markdown

WIDTH = 5  # mini-batches before and after


class Change(NamedTuple):
    """Mean loss of worker 0's mini-batches just before and after the adoption of a version."""

    before: float
    after: float


def changes(folder: Path, sync: str, spans: Sequence[dict]) -> list[Change]:
    """Return the changes of a run: one for each version except the first, if it has enough
    mini-batches on both sides.

    spans: of worker 0. The mini-batch under way when the version arrived is left out.
    """
    steps = np.loadtxt(folder / f"wk_loss_0_{sync}.txt", delimiter=",", ndmin=2)
    ended, loss = steps[:, 0], steps[:, -1]
    came = [span["t"] + span["seconds"] for span in spans
            if (span["lane"], span["kind"]) == ("network", "pull")]
    found = []
    for at in np.searchsorted(ended, came[1:], side="right"):
        before, after = loss[max(0, at - WIDTH):at], loss[at + 1:at + 1 + WIDTH]
        if len(before) == len(after) == WIDTH:
            found.append(Change(float(before.mean()), float(after.mean())))
    return found


def table(results: Results, settings: Sequence[Setting], models: Sequence[str]) -> str:
    """Return a Markdown table with a row for each setting and model, over all seeds."""
    rows = []
    for setting in settings:
        for model in models:
            runs = [run for run in results.runs(setting.page, setting.name)
                    if run.settings["sync"] == model]
            found = [change for run in runs
                     for change in changes(run.folder, model, run.spans[0])]
            if found:
                rows.append([setting.title, model, str(len(found)),
                             f"{fmean(change.before for change in found):.3f}",
                             f"{fmean(change.after for change in found):.3f}",
                             str(sum(change.after > change.before for change in found))])
    return markdown(["cluster", "model", "versions", f"loss of {WIDTH} before",
                     f"of {WIDTH} after", "times it rose"], rows) if rows else NOT_RUN
