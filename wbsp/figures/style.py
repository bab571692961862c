"""The look of all figures, so that a color has one meaning in all of them.

The colors are those of Okabe and Ito, which color-blind readers can tell apart. Figures are made
without pyplot: no window, no global state, safe together with a program's own plots.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from wbsp.core.stats import ALWAYS
from wbsp.figures.colors import PHASE_COLORS, sync_look

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

_MARKERS = "os^Dv<>P"

_RC: dict[RcKeyType, Any] = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "axes.grid": True, "grid.color": "#E4E4E4", "grid.linewidth": 0.7,
    "axes.labelsize": 9, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5,
}


def line_look(sync: str, index: int) -> dict[str, Any]:
    """Return the line properties of the `index`-th (0, 1 ...) curve of a synchronization model."""
    color, dash = sync_look(sync)
    return {"color": color, "linestyle": dash, "marker": _MARKERS[index % len(_MARKERS)],
            "markersize": 4, "linewidth": 1.6}


def new_figure(rows: int, columns: int, width: float, height: float,
               **subplots: Any) -> tuple[Figure, np.ndarray]:
    """Return a figure of `width` x `height` inches and its axes, Axes [rows, columns]."""
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, **subplots)


def set_title(axes: Axes, text: str, width: int = 90, pad: float = 6) -> None:
    """Set a title at the left, in lines of `width` characters, `pad` points above the axes."""
    axes.set_title(textwrap.fill(text, width), loc="left", fontsize=9.5, pad=pad)


def text_inches(text: str) -> float:
    """Estimate the width of `text` in the figures' small print."""
    return 0.06 * len(text)


def legend_below(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """Draw one legend for the whole figure, below it, in as few and as even rows as fit."""
    entry = 0.7 + max(map(text_inches, labels))
    columns = max(1, int(figure.get_figwidth() / entry))
    rows = -(-len(labels) // columns)
    figure.legend(handles, labels, loc="outside lower center", ncols=-(-len(labels) // rows),
                  frameon=False, fontsize=9)


def phases_legend(figure: Figure, drawn: Collection[str], *more: Artist) -> None:
    """Draw the legend of the phases (rare ones only if `drawn`) and of `more` artists with labels.
    """
    handles = [*(Patch(color=color, label=phase) for phase, color in PHASE_COLORS.items()
                 if phase in ALWAYS or phase in drawn), *more]
    legend_below(figure, handles, [str(handle.get_label()) for handle in handles])


def new_panels(count: int, columns: int, width: float, height: float, margin: float, xlabel: str,
               **subplots: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure of `count` panels of `width` x `height` inches, in rows of at most `columns`,
    with `margin` inches below. The lowest panel of each column names the shared x axis."""
    columns = min(count, columns)
    rows = -(-count // columns)
    figure, axes = new_figure(rows, columns, columns * width, rows * height + margin, **subplots)
    panels, unused = axes.flat[:count], axes.flat[count:]
    for panel in unused:
        panel.set_visible(False)
    for panel in panels[-columns:]:
        panel.tick_params(labelbottom=True)
        panel.set_xlabel(xlabel)
    return figure, list(panels)


def save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=150)
    return path


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit that suits a span of `seconds`: (seconds in the unit, its name)."""
    if seconds >= 2 * 3600:
        return 3600.0, "h"
    return (60.0, "min") if seconds >= 600 else (1.0, "s")
