"""Overview of a comparison: a cell for each model and cluster shows how fast the model was."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import LogNorm
from matplotlib.patches import Rectangle

from wbsp.figures import style
from wbsp.figures.colors import BLACK

SLOWEST = 16.0  # times the fastest, at which the color scale ends


@dataclass(frozen=True)
class Cell:
    """A model's result in a cluster."""

    seconds: float | None  # to the target; None: not reached
    best: float  # highest accuracy on the way, 0..1


def draw_overview(models: Sequence[str], clusters: Sequence[str],
                  cells: dict[tuple[str, str], Cell], path: Path, title: str) -> Path:
    """Draw a row for each model and a column for each cluster; `cells` by (model, cluster).

    The text of a cell is its seconds to the target; its color is the ratio to the fastest cell of
    the column. Rows are ordered by the mean logarithm of this ratio, the lowest first.
    """
    ratios = np.full((len(models), len(clusters)), np.nan)
    for column, cluster in enumerate(clusters):
        known = {model: cell.seconds for model in models
                 if (cell := cells.get((model, cluster))) and cell.seconds is not None}
        for row, model in enumerate(models):
            if model in known:
                ratios[row, column] = known[model] / min(known.values())
            elif (model, cluster) in cells:
                ratios[row, column] = np.inf
    order = sorted(range(len(models)), key=lambda row: _beaten(ratios[row]))
    norm, colors = LogNorm(1, SLOWEST), colormaps["YlGnBu_r"]
    figure, [[axes]] = style.new_figure(1, 1, 2.2 + 0.92 * len(clusters), 1.9 + 0.3 * len(models))
    axes.grid(visible=False)
    shown = np.ma.masked_invalid(ratios[order])
    image = axes.imshow(np.ma.clip(shown, 1, SLOWEST), cmap=colors, norm=norm, aspect="auto")
    for place, row in enumerate(order):
        for column, cluster in enumerate(clusters):
            cell, ratio = cells.get((models[row], cluster)), ratios[row, column]
            if cell is None:
                continue
            if cell.seconds is None:
                axes.add_patch(_missed((column - 0.5, place - 0.5)))
                text, color = f"{100 * cell.best:.0f} %", BLACK
            else:
                text = f"{cell.seconds:.3g} s"
                color = "white" if norm(min(ratio, SLOWEST)) < 0.45 else BLACK
            axes.text(column, place, text, ha="center", va="center", fontsize=8, color=color,
                      fontweight="bold" if ratio == 1 else "normal")
    axes.set_yticks(range(len(models)), [models[row] for row in order])
    axes.set_xticks(range(len(clusters)), [textwrap.fill(name, 14) for name in clusters],
                    fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    style.set_title(axes, title, 28 + 12 * len(clusters))
    bar = figure.colorbar(image, ax=axes, fraction=0.03, pad=0.01, ticks=[1, 2, 4, 8, SLOWEST])
    bar.ax.set_yticklabels(["fastest", "2×", "4×", "8×", "16× or more"], fontsize=8)
    bar.ax.minorticks_off()
    if np.isinf(ratios).any():
        style.legend_below(figure, [_missed((0, 0))],
                           ["target not reached by every run; the best accuracy of any"])
    return style.save(figure, path)


def _beaten(ratios: np.ndarray) -> float:
    """Return the mean logarithm of a model's ratios to the fastest, over its clusters."""
    tried = ratios[~np.isnan(ratios)]
    return float(np.log(np.minimum(tried, 4 * SLOWEST)).mean()) if tried.size else np.inf


def _missed(corner: tuple[float, float]) -> Rectangle:
    return Rectangle(corner, 1, 1, facecolor="#EEEEEE", edgecolor="#BBBBBB", hatch="///",
                     linewidth=0)
