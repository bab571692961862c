"""The claims of each paper beside the results here, in the same unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from reproduction.results import Results, Row
from reproduction.settings import LOOKS, RTTS, Setting
from reproduction.tables import NOT_RUN, percent, spread

from wbsp.figures.table import markdown
from wbsp.simulate.study.compare import in_bytes


class Claim(NamedTuple):
    """A row of a table: a paper's claim, the result here, and how to repeat it."""

    claimed: str
    ours: str
    setting: str
    command: str


def table(claims: Iterable[Claim]) -> str:
    """Return a Markdown table; a row's command repeats the run of the first seed."""
    rows = [[c.claimed, c.ours, c.setting, f"`{c.command}`" if c.command else ""] for c in claims]
    return markdown(["claimed", "ours", "setting", "command (seed 0)"], rows)


def wbsp(results: Results) -> list[Claim]:
    """Claims on the time to target and on the computing time, in the published experiment and
    around it."""
    claims = []
    for setting in results.of_page("core"):
        claims.append(_headline(results, setting))
        claims.append(_computing(results, setting))
    return claims + [_headline(results, setting) for setting in results.of_page("wide")]


def _headline(results: Results, setting: Setting) -> Claim:
    rows = results.of(setting)
    ours = [row for row in rows if row.model in ("wbsp", "pcc")]
    others = [row for row in rows if row not in ours]
    best, rival = _fastest(ours), _fastest(others)
    if best is None or rival is None:
        text = "; ".join(f"{row.label} {spread(row)}" for row in [*ours, *filter(None, [rival])])
    else:
        text = f"{less(best, rival)}: {_in_words(best)}, {_in_words(rival)}" + "".join(
            f"; {_in_words(row)}" for row in ours if row is not best)
    named = [row.model for row in [*ours, *filter(None, [rival])]]
    return _claim("time to target up to 60 % less than that of the fastest other method", text,
                  setting, named)


def _computing(results: Results, setting: Setting) -> Claim:
    shares = {row.label: percent(row.mean(lambda one: one.compute)) for row in results.of(setting)}
    return _claim("91 % of the time spent computing, others 55 to 72 %",
                  ", ".join(f"{label} {share} %" for label, share in shares.items()), setting,
                  setting.models)


def nbsync(results: Results) -> list[Claim]:
    claims = []
    for rtt in RTTS:
        setting = results.settings.get(("nbsync", f"rtt-{rtt:g}"))
        if setting:
            claims.append(_pace(
                results, setting, "nbsync", "esync",
                f"1.43 to 2.79 times the speed of others; in steps {1 + rtt:.1f} times ESync's "
                "[derived]"))
            claims.append(_pace(results, setting, "nbsync", "fedasync",
                                "the same, of FedAsync [a rival of the paper's, inferred]"))
    return [*claims, *_times(results, "wide", "wan", "the same, in time to target", ["nbsync"],
                             ["esync", "fedasync", "bsp", "asp", "localsgd"])]


def lbbsp(results: Results) -> list[Claim]:
    claimed = "up to 54 % faster than BSP (GPU), 38.7 % (CPU)"
    federated = results.settings.get(("lbbsp", "federated"))
    return [*(_pace(results, setting, "lbbsp", "bsp", claimed)
              for setting in results.of_page("lbbsp") if "bsp" in setting.models),
            *([_pace(results, federated, "lbbsp", "localsgd", "federated: shorter rounds than "
                     "those of equal batches; no number at hand")] if federated else [])]


def saps(results: Results) -> list[Claim]:
    return _times(results, "saps", "straggler", "converges faster than fully synchronous, fully "
                  "asynchronous and some SGD variants [not named; here ssp]", ["saps"],
                  ["bsp", "asp", "ssp"])


def elasticbsp(results: Results) -> list[Claim]:
    claimed = "1.77 times faster than BSP to BSP's accuracy"
    return [*_times(results, "elasticbsp", "mild", claimed, ["elasticbsp"], ["bsp"]),
            *_times(results, "wide", "base", claimed, ["elasticbsp"], ["bsp"]),
            *_accuracies(results, "mild", "12.6 % higher accuracy than BSP's (VGG-16 on ImageNet)",
                         ["elasticbsp", "bsp"]),
            *(claim for r in LOOKS for claim in _accuracies(
                results, f"mild-r-{r}", f"the same with R from 15 to 240: R = {r}",
                ["elasticbsp"]))]


def _accuracies(results: Results, name: str, claimed: str, models: Sequence[str]) -> list[Claim]:
    """Return the claim on the accuracy after a number of mini-batches."""
    setting = results.settings.get(("accuracy", name))
    if setting is None:
        return []
    rows = [row for model in models if (row := results.row("accuracy", name, model))]
    return [_claim(claimed, ", ".join(f"{row.label} {percent(row.mean(lambda one: one.best))} %"
                                      for row in rows), setting, models)]


def others(results: Results) -> list[Claim]:
    """Claims without numbers, of papers whose setting is a cluster of the wide page."""
    return [
        *_times(results, "wide", "base", "ADSP: convergence time significantly less than that of "
                "BSP and SSP", ["adsp"], ["bsp", "ssp"]),
        *_times(results, "wide", "base", "DSSP: much earlier than SSP and BSP, about as ASP",
                ["dssp"], ["ssp", "bsp", "asp"]),
        *_times(results, "wide", "base", "ESync: great speed up over synchronous SGD and FedAvg "
                "without loss of accuracy", ["esync"], ["bsp", "localsgd", "asp"]),
        *_times(results, "wide", "base", "SSP: faster than fully synchronous and asynchronous "
                "schemes", ["ssp"], ["bsp", "asp"]),
        *_times(results, "saps", "straggler", "backup workers: faster than synchronous and "
                "asynchronous training", ["ksync"], ["bsp", "asp"]),
        *_traffic(results, "wide", "none", "FedAvg: 10 to 100 times fewer rounds of communication "
                  "than synchronous SGD", "localsgd", "bsp"),
    ]


def _times(results: Results, page: str, name: str, claimed: str, models: Sequence[str],
           rivals: Sequence[str]) -> list[Claim]:
    """Return the claim on the time to the target of `models` against each of the `rivals`."""
    setting = results.settings.get((page, name))
    if setting is None:
        return []
    texts = []
    for model in models:
        row = results.row(page, name, model)
        if row is None:
            continue
        texts.append(f"{_in_words(row)}; " + ", ".join(
            _against(row, results.row(page, name, rival), rival) for rival in rivals
            if rival in setting.models))
    return [_claim(claimed, "; ".join(texts), setting, [*models, *rivals])]


def _against(row: Row, other: Row | None, name: str) -> str:
    """Text on `row` beside a rival's, which is None if the rival was not run."""
    if other is None:
        return f"{name} not run"
    if not (row.reached and other.reached):
        return _in_words(other)
    return (f"{less(row, other)} than {_in_words(other)} ({other.seconds / row.seconds:.2f} times "
            "as fast)")


def _pace(results: Results, setting: Setting, model: str, rival: str, claimed: str) -> Claim:
    """Return the claim on a model's mini-batches a second against those of another."""
    rows = [results.row(setting.page, setting.name, name) for name in (model, rival)]
    text = ""
    if all(rows):
        mine, theirs = (row.mean(lambda one: one.pace) for row in rows)
        text = (f"{mine / theirs:.2f} times ({100 * (mine / theirs - 1):+.0f} %): {mine:.2f} and "
                f"{theirs:.2f} mini-batches/s")
    return _claim(claimed, text, setting, [model, rival])


def _traffic(results: Results, page: str, name: str, claimed: str, model: str,
             rival: str) -> list[Claim]:
    setting = results.settings.get((page, name))
    if setting is None:
        return []
    rows = [results.row(page, name, one) for one in (model, rival)]
    text = ""
    if all(rows):
        pushed = [row.mean(lambda one: one.pushes) for row in rows]
        size = [in_bytes(row.mean(lambda one: one.traffic)) for row in rows]
        text = (f"{pushed[1] / pushed[0]:.1f} times fewer pushes to the target: "
                f"{pushed[0]:,.0f} ({size[0]}) and {pushed[1]:,.0f} ({size[1]})")
    return [_claim(claimed, text, setting, [model, rival])]


def _claim(claimed: str, ours: str, setting: Setting, models: Iterable[str]) -> Claim:
    here = [model for model in models if model in setting.models]
    return Claim(claimed, ours or NOT_RUN, setting.title, setting.command(here))


def _fastest(rows: Sequence[Row]) -> Row | None:
    return min((row for row in rows if row.reached), key=lambda row: row.seconds, default=None)


def _in_words(row: Row) -> str:
    return f"{row.label} {row.seconds:.1f} s" if row.reached else f"{row.label} {spread(row)}"


def less(row: Row, other: Row) -> str:
    """How much less (or more) time `row` needs than `other`; both have reached the target."""
    part = 100 * (1 - row.seconds / other.seconds)
    return f"{part:.0f} % less" if part >= 0 else f"{-part:.0f} % more"


PAGES: dict[str, Callable[[Results], list[Claim]]] = {
    "wbsp": wbsp, "nbsync": nbsync, "lbbsp": lbbsp, "saps": saps, "elasticbsp": elasticbsp,
    "others": others}
