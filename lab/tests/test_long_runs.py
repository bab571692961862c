"""The long trainings: their plan, their book, and their page."""

import importlib
import itertools
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pytest

from wbsp.runlog.reader import read_run

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif("WBSP_REPORTS" not in os.environ,
                                reason="of a script that makes a report: WBSP_REPORTS=1")


@pytest.fixture
def module(monkeypatch):
    """module(name) is lab/reproduction/NAME.py."""
    monkeypatch.syspath_prepend(ROOT / "lab")
    return lambda name: importlib.import_module(f"reproduction.{name}")


@pytest.fixture
def long(module):
    """What is run, and the book of it."""
    return SimpleNamespace(**vars(module("book")), **{
        name: it for name, it in vars(module("long")).items() if name not in vars(module("book"))})


def an_entry(long, cell, label="pcc", rate=0.1, seed=0, accuracy=(0.1, 0.4, 0.5, 0.6)):
    return long.Entry(cell.name, label, rate, seed, 900, 70, 60, 30, 0.9876, accuracy)


def test_a_book_is_read_as_it_was_written_but_for_a_torn_line(long, tmp_path):
    path, cell = tmp_path / "book.csv", long.Cell("H1", 2, "1Gbit")
    entries = [an_entry(long, cell, label, rate, seed) for label, rate, seed
               in itertools.product(long.LABELS, long.RATES, long.SEEDS)]
    book = long.Book(path)
    for one in entries:
        book.add(one)
    assert list(long.Book(path).entries.values()) == entries
    whole = path.read_text()
    path.write_text(whole[:-7])
    torn = long.Book(path)
    assert list(torn.entries.values()) == entries[:-1]
    torn.add(entries[-1])
    assert path.read_text() == whole


def test_the_rate_of_a_model_is_the_one_it_learns_fastest_at(long, tmp_path):
    book = long.Book(tmp_path / "book.csv")
    kind, other = long.Cell("H1", 2, long.MEASURED), long.Cell("H1", 2, "1Gbit")
    assert book.best_rate(kind, "pcc") == long.USUAL
    book.add(an_entry(long, kind, rate=0.1, accuracy=(0.1, 0.5, 0.6)))
    assert book.best_rate(kind, "pcc") == long.USUAL, "one rate tells nothing"
    book.add(an_entry(long, kind, rate=0.2, accuracy=(0.1, 0.6, 0.6)))
    book.add(an_entry(long, kind, rate=0.05, seed=1, accuracy=(0.1, 0.9, 0.9)))
    assert book.best_rate(kind, "pcc") == book.best_rate(other, "pcc") == 0.2
    book.add(an_entry(long, kind, rate=0.05, accuracy=(0.1, 0.598, 0.596)))
    assert book.best_rate(kind, "pcc") == 0.05, "of equal ones the lowest"
    assert book.best_rate(kind, "asp") == long.USUAL
    assert book.best_rate(long.Cell("H1", 8, "1Gbit"), "pcc") == long.USUAL


def test_a_rate_at_which_a_run_diverged_somewhere_is_not_the_best(long, tmp_path):
    book = long.Book(tmp_path / "book.csv")
    kind, eight = (long.Cell("H1", n, long.MEASURED) for n in (2, 8))
    for cell, rate in itertools.product((kind, eight), (0.1, 0.2)):
        book.add(an_entry(long, cell, rate=rate, accuracy=(0.1, 2 * rate, 2 * rate)))
    book.add(an_entry(long, long.Cell("H3", 8, "20Mbit"), rate=0.2, seed=1,
                      accuracy=(0.1, 0.5, 0.1)))
    assert book.best_rate(eight, "pcc") == 0.1
    assert book.best_rate(kind, "pcc") == 0.2, "other clusters, other rates"
    for cell in (long.Cell("H2", 8, "1Gbit"), long.Cell("H1", 8, "1Gbit")):
        book.add(an_entry(long, cell, rate=0.1, seed=2, accuracy=(0.1, 0.5, 0.2)))
    assert book.best_rate(eight, "pcc") == 0.2, "no rate is better than the others in this"


def test_everything_is_planned_once_each_model_at_its_best_rate(long, tmp_path):
    book = long.Book(tmp_path / "book.csv")
    kind = long.Cell("H1", 2, long.MEASURED)
    for rate in (0.05, 0.1):
        book.add(an_entry(long, kind, rate=rate, accuracy=(0.1, rate)))
        book.add(an_entry(long, kind, "asp", rate=rate, accuracy=(0.1, -rate)))
    jobs = long.plan(tmp_path, book)
    assert len({job.folder for job in jobs}) == len({job.name for job in jobs}) == len(jobs)
    each = [(job.cell, long.label(model), job.rate, job.seed)
            for job in jobs for model in job.setting.models]
    runs = set(each)
    assert len(runs) == len(each)
    for cell in long.compared((2, 8)):
        for model in (*long.PUBLISHED, *long.OURS):
            best = book.best_rate(cell, long.label(model))
            for seed in long.SEEDS if cell.bandwidth == long.MEASURED else (0,):
                assert (cell, long.label(model), best, seed) in runs
    for h, n, bandwidth, seed in itertools.product(
            long.HETEROGENEITY, long.SECONDS, long.BANDWIDTHS, long.SEEDS):
        cell = long.Cell(h, n, bandwidth)
        for model in long.LEADING:
            best = book.best_rate(cell, long.label(model))
            assert (cell, long.label(model), best, seed) in runs
    assert (long.Cell("H2", 8, "20Mbit"), "wbsp", long.USUAL, 0) not in runs
    begun = [long.label(model) for group in long.GROUPS.values() for model in group]
    for h, n, label in itertools.product(long.HETEROGENEITY, long.SECONDS, begun):
        assert (long.Cell(h, n, long.MEASURED), label, long.USUAL, 0) in runs
    assert {rate for cell, _, rate, _ in runs if cell == kind} == set(long.RATES)
    for label, seed in itertools.product(long.LABELS, long.SEEDS):
        assert (long.whole(2), label, long.USUAL, seed) in runs, "to the end, at the published rate"
        assert ((long.whole(8), label, long.USUAL, seed) in runs) == (seed == 0)
    assert (long.whole(2), "asp", 0.05, 1) in runs, "and at its best"
    assert (long.whole(2), "pcc", 0.05, 1) not in runs
    assert jobs[0].left() == ["bsp", "ssp:s=40", "wbsp"], "two of the first are in the book"
    published = [job for job in jobs if job.cell.network != long.SMALL]
    assert {(job.rate, job.seed) for job in published} == {(long.USUAL, 0)}
    assert all(job.setting.flags["model"] == "cnn" for job in published)
    trained = {cell: [long.label(model) for job in published if job.cell == cell
                      for model in job.setting.models]
               for cell in (long.published(), long.wholes()["published-network"])}
    for name in ("mean-2", "mean-8", "equal", "published-length", "mean-published-length"):
        cell = long.wholes()[name]
        assert all((cell, label, long.USUAL, 0) in runs for label in long.LABELS)
        assert sum(one == cell for one, *_ in runs) == len(long.LABELS), "once"
    for rate, seed in [*((rate, 0) for rate in long.RATES), (long.USUAL, 1), (long.USUAL, 2)]:
        assert (long.alone(), "bsp", rate, seed) in runs, "the baseline of every cluster"
    assert all((long.alone(long.EPOCHS), "bsp", long.USUAL, seed) in runs for seed in long.SEEDS)
    assert {job.cell.workers for job in long.plan(tmp_path, book, (2,))} == {1, 2}
    begun, whole = trained.values()
    assert begun == [long.label(model) for model in (*long.PUBLISHED, *long.OURS)]
    assert whole == list(long.LABELS)
    assert len(published) == sum(job.cell in trained for job in published)


def test_the_rate_of_the_small_network_is_chosen_by_its_own_runs(long, tmp_path):
    book = long.Book(tmp_path / "book.csv")
    kind = long.Cell("H1", 2, long.MEASURED)
    for cell, best in ((kind, 0.2), (long.published(), 0.05)):
        for rate in (0.05, 0.2):
            book.add(an_entry(long, cell, rate=rate, accuracy=(0.1, 0.6 if rate == best else 0.3)))
    assert book.best_rate(kind, "pcc") == 0.2


def test_an_entry_is_of_its_run(long, tmp_path):
    """On a run that leaves what long ones leave, but short."""
    job = long.job(long.Cell("H1", 2, "1Gbit"), "ours", 0.1, 1, tmp_path,
                   long.Book(tmp_path / "book.csv"), ["pcc:weight=work"])
    job = replace(job, setting=replace(job.setting, flags={
        **job.setting.flags, "dataset": "shapes10", "test_images": 200, "until": "4s"}))
    assert job.left() == ["pcc:weight=work"]
    subprocess.run(job.command(job.left()), check=True, capture_output=True, cwd=ROOT,
                   env={**os.environ, "PYTHONPATH": str(ROOT)})
    run = read_run(job.folder / "pcc-weight=work/run-001")
    assert job.left() == []
    (one,) = long.Book(tmp_path / "book.csv").entries.values()
    assert one.key == ("h1-2-1gbit", "pcc weight=work", 0.1, 1)
    total = run.summary["total"]
    assert (one.steps, one.pushes) == (total["steps"], total["pushes"])
    assert one.steps > 100 and one.versions == run.summary["version"] > 3
    assert len(run.evaluations.t) == 4, "at 0, 1.5 and 3 seconds, and at the end"
    assert one.accuracy == tuple(round(float(value), 4) for value in run.evaluations.accuracy)
    assert one.time_to(0.1) == 0 and one.time_to(1.1) == math.inf


def test_a_whole_training_ends_with_its_steps_and_its_rate_is_cut(long, tmp_path):
    job = long.job(long.whole(2), "published", 0.1, 0, tmp_path, long.Book(tmp_path / "book.csv"),
                   ["bsp"])
    assert job.setting.flags["lr_decays"] == "1562:0.1,2734:0.01", "as published, a fifth as long"
    whole = long.job(long.wholes()["published-length"], "published", 0.1, 0, tmp_path, job.book)
    assert whole.setting.flags["max_steps"] == 39_062
    assert whole.setting.flags["lr_decays"] == "7812:0.1,13672:0.01", "as published"
    assert whole.setting.flags["lr_steps"] == "own", "as published"
    job = replace(job, setting=replace(job.setting, flags={
        **job.setting.flags, "dataset": "shapes10", "test_images": 200, "max_steps": 60,
        "lr_decays": "10:0,20:0.1"}))
    subprocess.run(job.command(job.left()), check=True, capture_output=True, cwd=ROOT,
                   env={**os.environ, "PYTHONPATH": str(ROOT)})
    run = read_run(job.folder / "bsp/run-001")
    assert job.left() == []
    (one,) = long.Book(tmp_path / "book.csv").entries.values()
    assert one.cell == "h1-2-100mbit-20-epochs" and one.steps == 60 and one.period == 5
    assert len(one.accuracy) == math.ceil(run.summary["t"] / 5) + 1 > 4
    seen = dict(zip(run.evaluations.version.tolist(), run.evaluations.loss.tolist(), strict=True))
    still = {loss for version, loss in seen.items() if 11 <= version <= 20}
    assert len(still) == 1 < len(set(seen.values())) - 1, "no step counts while the rate is 0"


def test_the_page_is_written_from_the_book(module, long, tmp_path):
    book, page = tmp_path / "book.csv", tmp_path / "page.md"
    page.write_text((ROOT / "lab/reports/long-runs-2026-11-28.md").read_text())
    kept = long.Book(book)
    for label, rate, seed in itertools.product(long.LABELS, (0.1, 0.2), long.SEEDS):
        shift = 0.01 * seed + 0.1 * (label == "pcc weight=work") - rate
        kept.add(an_entry(long, long.Cell("H1", 2, long.MEASURED), label, rate, seed,
                          tuple(0.105 + shift + 0.02 * place for place in range(40))))
    for seed in long.SEEDS:
        kept.add(an_entry(long, long.alone(), "bsp", 0.1, seed,
                          tuple(0.105 + 0.04 * place for place in range(20))))
    done = subprocess.run([sys.executable, ROOT / "lab/long_runs.py", "--budget=0s",
                           f"--book={book}", f"--page={page}"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    report = module("long_report")
    assert report.cell(long.Book(book), long.Cell("H1", 2, long.MEASURED)) in text
    assert report.diverged(kept) == "-" and "<!-- diverged -->\n\n-\n\n<!-- end -->" in text
    assert "| pcc weight=work | H1, 2 workers, 100 Mbit | 60 % |" in text
    ours, best = 1.5 * fmean([26, 26, 25]), 1.5 * fmean([31, 31, 30])
    assert (f"| {ours:.1f} | bsp, {best:.1f} | {ours / best:.2f} | 21.0 | {ours / 21:.2f} | 3 |"
            in text)
    assert (tmp_path / "figures/long-runs.png").stat().st_size > 10_000
    kept.add(an_entry(long, long.Cell("H3", 8, "1Gbit"), "asp", 0.2, 1, (0.1, 0.5, 0.2)))
    assert "| asp | 8 | 0.2 | 1 of 1 | H3, 8 workers, 1 Gbit, seed 1 |" in report.diverged(kept)
    for label, shift in {"bsp": 0.3, "asp": 0.1, "asp refresh=published": 0.2, "pcc": 0.0}.items():
        for seed in long.SEEDS:
            kept.add(an_entry(long, long.whole(2), label, 0.1, seed, tuple(
                0.415 - shift + 0.01 * (place + seed) for place in range(35))))
    whole = module("whole_report")
    (line,) = (one for one in whole.headline(kept, long.whole(2)).splitlines()
               if one.startswith("| pcc |"))
    assert line == ("| pcc | 50 % | 45 | asp refresh=published, 145 | 69 % "
                    "| 60 % | 95 | asp, 145 | 34 % |")
    assert "| pcc | 0.1 | 3 | 0 (0 to 0) | 45 (40 to 50) |" in whole.table(kept, long.whole(2))
    assert whole.table(kept, long.whole(8)) == whole.headline(kept, long.whole(8)) == report.NOT_RUN
    for name in long.wholes():
        assert f"<!-- whole-{name} -->" in text and f"<!-- whole-headline-{name} -->" in text
    figures = module("whole_figures").draw(kept, tmp_path / "figures", report._looks())
    assert [file.name for file in figures.values()] == [
        "whole-trainings.png", "whole-times.png", "whole-accuracy.png", "whole-computing.png"]
    assert all(file.stat().st_size > 10_000 for file in figures.values())
    draw_network = module("whole_figures").draw_network
    assert draw_network(kept, tmp_path / "figures", report._looks()) is None
    kept.add(an_entry(long, long.wholes()["published-network"], "pcc", 0.1, 0, (0.1, 0.5, 0.6)))
    drawn = draw_network(kept, tmp_path / "figures", report._looks())
    assert drawn.name == "whole-network.png" and drawn.stat().st_size > 10_000
    assert "<!-- figure-network -->" in text
