"""What each paper claims beside what came out here, in the same unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from reproduction.results import Book, Row
from reproduction.settings import RTTS, Setting
from reproduction.tables import NOT_RUN, percent, spread

from wbsp.simulate.compare import in_bytes, markdown


class Claim(NamedTuple):
    claimed: str
    ours: str
    setting: str
    command: str


def table(claims: Iterable[Claim]) -> str:
    """Markdown; a command is what repeats the first seed."""
    rows = [[c.claimed, c.ours, c.setting, f"`{c.command}`" if c.command else ""] for c in claims]
    return markdown(["claimed", "ours", "setting", "command (seed 0)"], rows)


def wbsp(book: Book) -> list[Claim]:
    """Time to target and computing time, in the published experiment and around it."""
    claims = []
    for setting in book.of_page("core"):
        claims.append(_headline(book, setting))
        claims.append(_computing(book, setting))
    return claims + [_headline(book, setting) for setting in book.of_page("wide")]


def _headline(book: Book, setting: Setting) -> Claim:
    rows = book.of(setting)
    ours = [row for row in rows if row.model in ("wbsp", "pcc")]
    others = [row for row in rows if row not in ours]
    best, rival = _fastest(ours), _fastest(others)
    if best is None or rival is None:
        told = "; ".join(f"{row.label} {spread(row)}" for row in [*ours, *filter(None, [rival])])
    else:
        told = f"{less(best, rival)}: {_said(best)}, {_said(rival)}" + "".join(
            f"; {_said(row)}" for row in ours if row is not best)
    named = [row.model for row in [*ours, *filter(None, [rival])]]
    return _claim("time to target up to 60 % less than that of the fastest other method", told,
                  setting, named)


def _computing(book: Book, setting: Setting) -> Claim:
    shares = {row.label: percent(row.mean(lambda one: one.compute)) for row in book.of(setting)}
    return _claim("91 % of the time spent computing, others 55 to 72 %",
                  ", ".join(f"{label} {share} %" for label, share in shares.items()), setting,
                  setting.models)


def nbsync(book: Book) -> list[Claim]:
    claims = []
    for rtt in RTTS:
        setting = book.settings.get(("nbsync", f"rtt-{rtt:g}"))
        if setting:
            claims.append(_pace(
                book, setting, "nbsync", "esync",
                f"1.43 to 2.79 times the speed of others; in steps {1 + rtt:.1f} times ESync's "
                "[derived]"))
    return [*claims, *_times(book, "wide", "wan", "the same, in time to target", ["nbsync"],
                             ["esync", "bsp", "asp", "localsgd"])]


def lbbsp(book: Book) -> list[Claim]:
    return [_pace(book, setting, "lbbsp", "bsp", "up to 54 % faster than BSP (GPU), 38.7 % (CPU)")
            for setting in book.of_page("lbbsp") if "bsp" in setting.models]


def saps(book: Book) -> list[Claim]:
    return _times(book, "saps", "straggler", "converges faster than fully synchronous and fully "
                  "asynchronous training", ["saps"], ["bsp", "asp"])


def elasticbsp(book: Book) -> list[Claim]:
    claimed = "1.77 times faster than BSP to BSP's accuracy"
    return [*_times(book, "elasticbsp", "mild", claimed, ["elasticbsp"], ["bsp"]),
            *_times(book, "wide", "base", claimed, ["elasticbsp"], ["bsp"])]


def others(book: Book) -> list[Claim]:
    """The papers whose ground is a cluster of the wide page, and that give no number."""
    return [
        *_times(book, "wide", "base", "ADSP: convergence time significantly less than that of BSP "
                "and SSP", ["adsp"], ["bsp", "ssp"]),
        *_times(book, "wide", "base", "DSSP: much earlier than SSP and BSP, about as ASP",
                ["dssp"], ["ssp", "bsp", "asp"]),
        *_times(book, "wide", "base", "ESync: great speed up over synchronous SGD and FedAvg "
                "without loss of accuracy", ["esync"], ["bsp", "localsgd", "asp"]),
        *_times(book, "wide", "base", "SSP: faster than fully synchronous and asynchronous schemes",
                ["ssp"], ["bsp", "asp"]),
        *_times(book, "saps", "straggler", "backup workers: faster than synchronous and "
                "asynchronous training", ["ksync"], ["bsp", "asp"]),
        *_traffic(book, "wide", "none", "FedAvg: 10 to 100 times fewer rounds of communication "
                  "than synchronous SGD", "localsgd", "bsp"),
    ]


def _times(book: Book, page: str, name: str, claimed: str, models: Sequence[str],
           rivals: Sequence[str]) -> list[Claim]:
    """Time to the target of `models` against each of the `rivals`."""
    setting = book.settings.get((page, name))
    if setting is None:
        return []
    told = []
    for model in models:
        row = book.row(page, name, model)
        if row is None:
            continue
        against = [other for rival in rivals if (other := book.row(page, name, rival))]
        told.append(f"{_said(row)}; " + ", ".join(
            f"{less(row, other)} than {_said(other)} ({other.seconds / row.seconds:.2f} times as "
            "fast)" if row.reached and other.reached else _said(other)
            for other in against))
    return [_claim(claimed, "; ".join(told), setting, [*models, *rivals])]


def _pace(book: Book, setting: Setting, model: str, rival: str, claimed: str) -> Claim:
    """Mini-batches a second of one model against another's."""
    rows = [book.row(setting.page, setting.name, name) for name in (model, rival)]
    told = ""
    if all(rows):
        mine, theirs = (row.mean(lambda one: one.pace) for row in rows)
        told = (f"{mine / theirs:.2f} times ({100 * (mine / theirs - 1):+.0f} %): {mine:.2f} and "
                f"{theirs:.2f} mini-batches/s")
    return _claim(claimed, told, setting, [model, rival])


def _traffic(book: Book, page: str, name: str, claimed: str, model: str,
             rival: str) -> list[Claim]:
    setting = book.settings.get((page, name))
    if setting is None:
        return []
    rows = [book.row(page, name, one) for one in (model, rival)]
    told = ""
    if all(rows):
        pushed = [row.mean(lambda one: one.pushes) for row in rows]
        size = [in_bytes(row.mean(lambda one: one.traffic)) for row in rows]
        told = (f"{pushed[1] / pushed[0]:.1f} times fewer pushes to the target: "
                f"{pushed[0]:,.0f} ({size[0]}) and {pushed[1]:,.0f} ({size[1]})")
    return [_claim(claimed, told, setting, [model, rival])]


def _claim(claimed: str, ours: str, setting: Setting, models: Iterable[str]) -> Claim:
    here = [model for model in models if model in setting.models]
    return Claim(claimed, ours or NOT_RUN, setting.title, setting.command(here))


def _fastest(rows: Sequence[Row]) -> Row | None:
    return min((row for row in rows if row.reached), key=lambda row: row.seconds, default=None)


def _said(row: Row) -> str:
    return f"{row.label} {row.seconds:.1f} s" if row.reached else f"{row.label} {spread(row)}"


def less(row: Row, other: Row) -> str:
    """How much less (or more) time a row needs than another; both have reached the target."""
    part = 100 * (1 - row.seconds / other.seconds)
    return f"{part:.0f} % less" if part >= 0 else f"{-part:.0f} % more"


PAGES: dict[str, Callable[[Book], list[Claim]]] = {
    "wbsp": wbsp, "nbsync": nbsync, "lbbsp": lbbsp, "saps": saps, "elasticbsp": elasticbsp,
    "others": others}
