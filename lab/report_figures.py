#!/usr/bin/env python
"""Draw the figures of the reports from the CSV files that lie next to them.

    python lab/report_figures.py

reads lab/reports/*.csv and writes worth, results, costs, claims, faults, ahead, formats and
virtual-time (.png) in lab/reports/figures.
"""

from __future__ import annotations

import csv
import pathlib
import re

import matplotlib.axes
import matplotlib.patches

from wbsp.figures import style
from wbsp.figures.colors import sync_look

REPORTS = pathlib.Path(__file__).parent / "reports"
FIGURES = REPORTS / "figures"
SEED = "0"  # the figure of worth compares models under one seed, which all have


def read(name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file of the reports."""
    with open(REPORTS / f"{name}.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def plain(axis: matplotlib.axes.Axes) -> None:
    """Write the numbers of a logarithmic x axis without powers."""
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("")


def is_rival(model: str) -> bool:
    """Whether a model of the rivals' table is another's, and has an outer step of another's."""
    return not (model.startswith(("auto", "lone")) or "outer step" in model)


def draw_worth() -> None:
    """Draw the range of worth over the accuracies for each cluster: auto and its best rival."""
    cells = {row["cell"]: row for row in read("worth-cells")}
    auto: dict[str, list[float]] = {}
    rivals: dict[str, dict[str, float]] = {}
    for row in read("worth"):
        if row["seed"] != SEED or not row["worth"]:
            continue
        if row["table"] == "all cells":
            auto.setdefault(row["cell"], []).append(float(row["worth"]))
        elif row["table"] == "rivals" and is_rival(row["model"]):
            best = rivals.setdefault(row["cell"], {})
            best[row["accuracy_percent"]] = max(best.get(row["accuracy_percent"], 0),
                                                float(row["worth"]))
    names = sorted(auto, key=lambda cell: (float(cells[cell]["speeds_over_the_fastest"]), cell))
    figure, [[axes]] = style.new_figure(1, 1, 8, 1.2 + 0.32 * len(names))
    for place, cell in enumerate(names):
        axes.plot([min(auto[cell]), max(auto[cell])], [place + 0.13] * 2, linewidth=6,
                  color="#0072B2", solid_capstyle="butt",
                  label="auto, from 60 to 68 % accuracy" if place == 0 else None)
        if found := list(rivals.get(cell, {}).values()):
            axes.plot([min(found), max(found)], [place - 0.17] * 2, linewidth=6, color="#E69F00",
                      solid_capstyle="butt", marker="|", markersize=6,
                      label="its best published rival" if cell == "pair" else None)
    for mark, size, label, column in (
            ("|", 15, "bound by the noise of the gradients", "noise_bound"),
            ("d", 5, "bound by the speeds: their sum", "speeds_over_the_fastest")):
        axes.plot([float(cells[cell][column]) for cell in names], range(len(names)), mark,
                  color="black", markersize=size, markerfacecolor="none", label=label)
    axes.axvline(1, color="gray", linewidth=1)
    axes.set_xscale("log", base=2)
    plain(axes)
    axes.set(xlabel="worth: times as fast as the best single machine", ylim=(-0.6, len(names) - .4))
    axes.set_yticks(range(len(names)), names)
    style.legend_below(figure, *axes.get_legend_handles_labels())
    style.save(figure, FIGURES / "worth.png")


def draw_results() -> None:
    """Draw the seconds to 85 % under H1 of each setting and model, with the range of the seeds."""
    settings: dict[str, list[dict[str, str]]] = {}
    for row in read("results"):
        settings.setdefault(f"{row['network']}, {row['bandwidth']}", []).append(row)
    figure, panels = style.new_panels(len(settings), len(settings), 2.1, 2.4, 0.1, "seconds")
    for axes, (setting, rows) in zip(panels, settings.items(), strict=True):
        for place, row in enumerate(reversed(rows)):
            mean, least, most = (float(row[f"{kind}_seconds"])
                                 for kind in ("mean", "least", "most"))
            axes.barh(place, mean, color=sync_look(row["model"])[0],
                      xerr=[[mean - least], [most - mean]])
        axes.set_yticks(range(len(rows)), [row["model"] for row in reversed(rows)])
        style.set_title(axes, setting)
    style.save(figure, FIGURES / "results.png")


def draw_costs() -> None:
    """Draw the time of a push and a pull over the workers, a panel for each model size."""
    rows = [row for row in read("costs-wire") if row["median_ms"]]
    sizes = list(dict.fromkeys(row["model_mb"] for row in rows))
    figure, panels = style.new_panels(len(sizes), len(sizes), 3, 2.7, 0.5, "workers")
    looks = {"shared memory": ("wbsp, shared memory", "o-", "#0072B2"),
             "TCP": ("wbsp, TCP", "s-", "#D55E00"), "TensorFlow": ("TensorFlow", "v--", "#E69F00"),
             "coordinator": ("ClusterCoordinator", "^--", "#009E73"),
             "ps-lite": ("ps-lite", "D--", "#CC79A7"),
             "gloo": ("gloo all-reduce", "P--", "#56B4E9"),
             "copy": ("two copies of memory", "x:", "gray")}
    for axes, size in zip(panels, sizes, strict=True):
        for way, (label, look, color) in looks.items():
            at = [(int(row["workers"]), float(row["median_ms"])) for row in rows
                  if row["model_mb"] == size and row["way"] == way]
            axes.plot(*zip(*at, strict=True), look, color=color, label=label, markersize=4)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks([1, 2, 4, 8])
        plain(axes)
        axes.set_ylabel("ms")
        style.set_title(axes, f"{size} MB")
    style.legend_below(figure, *panels[0].get_legend_handles_labels())
    style.save(figure, FIGURES / "costs.png")


def draw_claims() -> None:
    """Draw WBSP's two claims next to what was measured in the clusters of the published network."""
    time, share = [], []
    for row in read("reproduction"):
        if not row["setting"].startswith("CNN"):
            continue
        name = row["setting"].removeprefix("CNN, ")
        if found := re.match(r"(\d+) % (less|more): (\w+)", row["measured"]):
            percent = int(found[1])
            time.append((name, percent if found[2] == "less" else -percent))
        elif row["claimed"].startswith("91 %"):
            share.append((name, {model: float(value) for model, value in re.findall(
                r"(\w+)(?: s=40)? ([\d.]+) %", row["measured"])}))
    names = [name for name, _ in time]
    assert names == [name for name, _ in share]
    figure, [[left, right]] = style.new_figure(1, 2, 10, 4.4)
    places = range(len(names))
    left.barh(places, [percent for _, percent in time], color=sync_look("pcc")[0])
    left.axvline(60, color="black", linestyle="--", label="the paper: up to 60 % less")
    left.axvline(0, color="gray", linewidth=1)
    left.set_yticks(places, names)
    left.set(xlabel="time to the target, less than the fastest other model's (%)")
    style.set_title(left, "wbsp or pcc, whichever is faster")
    for model in ("bsp", "ssp", "asp", "wbsp", "pcc"):
        right.plot([shares[model] for _, shares in share], places, "o", label=model,
                   color=sync_look(model)[0])
    right.axvline(91, color="black", linestyle="--", label="the paper: 91 % under wbsp")
    right.axvspan(55, 72, color="#EEEEEE", label="the paper: 55 to 72 %, others")
    right.set_yticks(places, [])
    right.set(xlabel="share of the workers' time spent computing (%)", xlim=(0, 102))
    style.set_title(right, "time spent computing")
    pairs = [pair for axes in (left, right) for pair in zip(*axes.get_legend_handles_labels(),
                                                            strict=True)]
    style.legend_below(figure, [handle for handle, _ in pairs], [label for _, label in pairs])
    style.save(figure, FIGURES / "claims.png")


def draw_faults() -> None:
    """Draw the seconds from a kill to the next version: the median, and the most."""
    rows = read("fault-tolerance")
    figure, [[axes]] = style.new_figure(1, 1, 7, 2.9)
    for place, row in enumerate(reversed(rows)):
        most, median = (float(row[f"{kind}_seconds_to_next_version"])
                        for kind in ("most", "median"))
        axes.barh(place, most, color="#CFCFCF", label=None if place else "longest of 34 kills")
        axes.barh(place, median, color=sync_look("pcc")[0], height=0.45,
                  label=None if place else "median")
    axes.set_yticks(range(len(rows)), [
        f"{'a standby' if row['standby'] == 'yes' else 'no standby'}, {row['shards']} "
        f"shard{'s' if row['shards'] != '1' else ''}" for row in reversed(rows)])
    axes.set_xlabel("seconds from the kill to the next version")
    style.legend_below(figure, *axes.get_legend_handles_labels())
    style.save(figure, FIGURES / "faults.png")


def draw_ahead() -> None:
    """Draw the time of pcc by work and just in time, relative to two others, in each cluster."""
    rows = [row for row in read("long-runs-times")
            if row["model"] == "pcc weight=work late=true" and row["network"] == "small"]
    figure, [[axes]] = style.new_figure(1, 1, 7.5, 4.4)
    places = range(len(rows) - 1, -1, -1)
    for column, label, look, color in (
            ("best_published_seconds", "the best published model", "o", "#0072B2"),
            ("lone_worker_seconds", "one fast worker alone", "d", "#E69F00")):
        axes.plot([float(row["seconds"]) / float(row[column]) for row in rows], places, look,
                  color=color, markersize=5, label=f"relative to {label}")
    axes.axvline(1, color="gray", linewidth=1)
    axes.set_yticks(places, [f"{row['workers']} workers, {row['bandwidth']}, {row['sleeps']}"
                             for row in rows], fontsize=7)
    axes.set(xlabel="time to the target (less than 1: pcc by work and just in time is faster)",
             xlim=(0, 2))
    style.legend_below(figure, *axes.get_legend_handles_labels())
    style.save(figure, FIGURES / "ahead.png")


def draw_formats() -> None:
    """Draw the time of each format relative to float32's, a group for each setting."""
    settings: dict[str, dict[str, float]] = {}
    for row in read("formats"):
        settings.setdefault(row["setting"], {})[row["format"]] = float(row["virtual_seconds"])
    figure, [[axes]] = style.new_figure(1, 1, 7.5, 3.6)
    colors = {"bfloat16": "#56B4E9", "int8": "#0072B2", "topk:0.01": "#E69F00"}
    for place, seconds in enumerate(reversed(settings.values())):
        found = [name for name in colors if name in seconds]
        for k, name in enumerate(found):
            axes.barh(place + 0.25 * (len(found) - 1) / 2 - 0.25 * k,
                      seconds[name] / seconds["float32"], height=0.23, color=colors[name])
    axes.axvline(1, color="gray", linewidth=1)
    axes.set_yticks(range(len(settings)), list(reversed(settings)), fontsize=7)
    axes.set(xlabel="time relative to float32", xlim=(0, 1.05))
    style.legend_below(figure, [matplotlib.patches.Patch(color=color) for color in colors.values()],
                       list(colors))
    style.save(figure, FIGURES / "formats.png")


def draw_virtual_time() -> None:
    """Draw the seconds of a real run and of its simulation, for each model."""
    rows = read("virtual-time")
    figure, [[axes]] = style.new_figure(1, 1, 6, 2.4)
    for shift, column, label, color in ((0.2, "seconds_real", "real processes", "#0072B2"),
                                        (-0.2, "seconds_virtual", "simulated", "#E69F00")):
        axes.barh([place + shift for place in range(len(rows))],
                  [float(row[column]) for row in reversed(rows)], height=0.38, color=color,
                  label=label)
    axes.set_xscale("log")
    axes.set_xlim(10, 1000)
    plain(axes)
    axes.set_yticks(range(len(rows)), [row["model"] for row in reversed(rows)])
    axes.set_xlabel("seconds (logarithmic)")
    style.legend_below(figure, *axes.get_legend_handles_labels())
    style.save(figure, FIGURES / "virtual-time.png")


if __name__ == "__main__":
    draw_worth()
    draw_results()
    draw_costs()
    draw_claims()
    draw_faults()
    draw_ahead()
    draw_formats()
    draw_virtual_time()
