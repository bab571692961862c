"""The report: the parts of a Markdown page between marks are generated, the text around them is
written by hand.

    <!-- NAME -->
    ...
    <!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from reproduction import beyond, claims, made, tables, timelines
from reproduction.results import Results
from reproduction.tables import NOT_RUN
from reproduction.work import TABLE, Printing

from wbsp.figures.table import markdown
from wbsp.runlog.files import write_whole

_PART = re.compile(r"(<!-- (?!end -->)(\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write(results: Results, printing: Sequence[Printing], template: Path, path: Path) -> None:
    """Write the report to `path` from the page `template` (which may be the same file), and the
    figures beside it."""
    figures = draw(results, path.parent / "figures")
    parts = {**_parts(results, printing), **{
        f"figure-{name}": f"![{title}](figures/{name}.png)" if name in figures else NOT_RUN
        for name, title in FIGURES.items()}}
    write_whole(path, refresh(template.read_text(encoding="utf-8"), parts).encode())


def refresh(page: str, parts: dict[str, str]) -> str:
    """Return the page with its marked parts replaced. Raises ValueError for an unknown mark."""
    def part(match: re.Match) -> str:
        if match[2] not in parts:
            raise ValueError(f"the page has a part {match[2]!r}; known: {', '.join(parts)}")
        return f"{match[1]}\n{parts[match[2]]}\n\n{match[3]}"
    return _PART.sub(part, page)


def _parts(results: Results, printing: Sequence[Printing]) -> dict[str, str]:
    clusters = [*results.of_page("wide"), *results.of_page("core")]
    parts = {f"claims-{name}": claims.table(of(results)) for name, of in claims.PAGES.items()}
    parts |= {
        "scope": scope(results),
        "made": made.table([*results.jobs, *printing]),
        "beyond": beyond.table(),
        "ranking": tables.ranking(results, clusters),
        "times": tables.times(results, results.of_page("wide")),
        "shares": tables.shares(results, results.of_page("wide")),
        "core-times": tables.times(results, results.of_page("core")),
        "core-shares": tables.shares(results, results.of_page("core")),
        "core-timelines": timelines.table(results, results.of_page("core"), ("wbsp", "pcc")),
        "rate": tables.times(results, results.of_page("rate")),
        "commands": commands(results),
    }
    for job in printing:
        parts |= {job.name: _printed(job), f"{job.name}-command": f"    {job.text}"}
    for page, form in {"wide": tables.trained, "core": tables.trained, "saps": tables.trained,
                       "elasticbsp": tables.trained, "accuracy": tables.drifted,
                       "drift": tables.drifted,
                       "nbsync": lambda rows: tables.timed(rows, "esync"),
                       "lbbsp": lambda rows: tables.timed(rows, "bsp", "localsgd")}.items():
        parts[page] = _each_cluster(results, page, form)
    return parts


def _each_cluster(results: Results, page: str, form: Callable) -> str:
    """Return a table for each cluster; settings of one title are variants in the same cluster."""
    by_title: dict[str, list] = {}
    for setting in results.of_page(page):
        by_title.setdefault(setting.title, []).extend(results.of(setting))
    return "\n\n".join(f"{title[0].upper() + title[1:]}:\n\n{form(rows)}"
                       for title, rows in by_title.items()) or NOT_RUN


def scope(results: Results) -> str:
    """Return a table of how many of the planned runs are done."""
    planned = {(job.setting.page, job.setting.name, job.seed): len(job.setting.models)
               for job in results.jobs}
    done = {key: len(job.setting.models) - len(job.left())
            for key, job in zip(planned, results.jobs, strict=True)}
    seeds = sorted({seed for _, _, seed in planned})
    rows = []
    for page in dict.fromkeys(page for page, _, _ in planned):
        keys = [key for key in planned if key[0] == page]
        whole = [sum(done[key] == planned[key] for key in keys if key[2] == seed)
                 for seed in sorted({key[2] for key in keys})]
        targets = sorted({setting.target for setting in results.settings.values()
                          if setting.page == page and setting.target <= 1})
        rows.append([page, str(len({key[1] for key in keys})),
                     ", ".join(f"{100 * target:g} %" for target in targets) or "none",
                     f"{sum(done[key] for key in keys)} of {sum(planned[key] for key in keys)}",
                     ", ".join(map(str, whole))])
    return markdown(["page", "settings", "target", "runs done",
                     f"settings complete under seed {', '.join(map(str, seeds))}"], rows)


def commands(results: Results) -> str:
    """Return a table of each setting's command, under seed 0."""
    return markdown(["page", "setting", "command"], [
        [setting.page, f"{setting.name}: {setting.title}", f"`{setting.command()}`"]
        for setting in results.settings.values()])


def _printed(job: Printing) -> str:
    table = job.folder / TABLE
    return table.read_text().strip() if table.exists() else NOT_RUN


FIGURES = {
    "overview": "time to the target of all models in all clusters",
    "core": "accuracy in the published experiment, H1",
    "core-shares": "where the time of the workers went, H1",
    "wan": "accuracy in the WAN",
    "straggler": "accuracy beside a straggler",
    "drift": "accuracy with 300 local steps a round",
}


def draw(results: Results, folder: Path) -> set[str]:
    """Draw the figures for which there are runs; return their names."""
    from wbsp.figures.bars import draw_shares
    from wbsp.figures.curves import draw_curves
    from wbsp.figures.load import gather
    from wbsp.figures.overview import Cell, draw_overview

    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    clusters = results.of_page("wide")
    if clusters:
        rows = [(setting, row) for setting in clusters for row in results.of(setting)]
        cells = {(row.model, setting.title): Cell(row.seconds, row.mean(lambda one: one.best))
                 for setting, row in rows}
        drawn["overview"] = draw_overview(
            list(dict.fromkeys(row.model for _, row in rows)), [s.title for s in clusters], cells,
            folder / "overview.png", "Virtual seconds to the target accuracy, and how many times "
            "the fastest of its column that is")
    for name, (page, *settings) in {
            "core": ("core", "h1-2-100mbit"), "wan": ("wide", "wan"),
            "straggler": ("saps", "straggler", "straggler-reject", "straggler-preempt"),
            "drift": ("drift", "h3", "h3-add")}.items():
        runs = results.runs(page, *settings)
        if runs:
            target = results.settings[page, settings[0]].target
            drawn[name] = draw_curves(gather(runs), folder / f"{name}.png",
                                      target if target <= 1 else None)
    runs = [run for run in results.runs("core", "h1-2-100mbit") if run.settings["seed"] == 0]
    if runs:
        drawn["core-shares"] = draw_shares(gather(runs), folder / "core-shares.png")
    return {name for name, file in drawn.items() if file}
