"""The one command that makes the report: its settings, its work, its failures, its tables."""

import importlib
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from wbsp.runlog.reader import read_run
from wbsp.sync import MODELS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif("WBSP_REPORTS" not in os.environ,
                                reason="of a script that makes a report: WBSP_REPORTS=1")


@pytest.fixture
def module(monkeypatch):
    """module(name) is lab/reproduction/NAME.py."""
    monkeypatch.syspath_prepend(ROOT / "lab")
    return lambda name: importlib.import_module(f"reproduction.{name}")


def reproduce(*flags):
    return subprocess.run([sys.executable, ROOT / "lab/reproduce.py", *flags], text=True,
                          capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


def planned(settings):
    return [setting for part in (settings.full(), settings.quick(), settings.miniature())
            for setting, _ in itertools.chain(*part)]


# What is run.


def test_every_model_meets_every_other_in_every_cluster_of_the_overview(module):
    settings = module("settings")
    first, later = settings.full()
    wide = {(s.name, seed): s.models for s, seed in first + later if s.page == "wide"}
    assert {name for name, _ in wide} >= {"base", "workers-2", "workers-32", "none", "h2", "h3",
                                         "1gbit", "20mbit", "alexnet", "wan"}
    assert len(wide) == 3 * len({name for name, _ in wide})
    assert all(models == tuple(MODELS) for models in wide.values())
    assert {s.page for s, _ in first + later} == {"wide", "core", "nbsync", "lbbsp", "saps",
                                                  "elasticbsp", "accuracy", "drift", "rate"}


def test_a_setting_of_one_name_is_one_setting_and_no_run_is_planned_twice(module):
    first, later = module("settings").full()
    runs = [(s.page, s.name, seed) for s, seed in first + later]
    assert len(runs) == len(set(runs))
    by_name = {}
    for setting, _ in first + later:
        assert by_name.setdefault((setting.page, setting.name), setting) == setting


def test_the_simulator_understands_every_command(module):
    """In a process of its own, since flags are global."""
    commands = sorted({s.command() for s in planned(module("settings"))})
    code = """if True:
        import json, sys
        from absl import flags
        from wbsp.simulate import __main__ as simulate
        simulate._experiment = lambda: type("Nothing", (), {"size": 50_000})
        for command in json.load(sys.stdin):
            flags.FLAGS.unparse_flags()
            for name in flags.FLAGS:
                flags.FLAGS[name].unparse()
            flags.FLAGS(command.split()[2:])
            simulate._variants()
            plan = simulate._plan()
            assert plan.cluster.size > 1 and plan.model_bytes, command
    """
    done = subprocess.run([sys.executable, "-c", code], input=json.dumps(commands), text=True,
                          capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert len(commands) > 40


def test_no_look_ahead_of_the_planned_reaches_beyond_its_run(module):
    settings = module("settings")
    looks = {s.options["elasticbsp"]["r"]: s for s in settings.accuracy(settings.SMALL)
             if "r" in s.options.get("elasticbsp", {})}
    assert set(looks) == set(settings.LOOKS) and max(looks) == 240
    assert all(4 * r < s.flags["max_steps"] / 8 + 1 for r, s in looks.items())


def test_a_round_trip_of_the_wan_lasts_as_long_as_its_title_states(module):
    for setting in planned(module("settings")):
        if setting.page == "nbsync":
            trip = 2 * (0.005 + setting.flags["model_bytes"] / (100e6 / 8))
            assert f"{trip / 0.72:.2g}" == setting.title.split()[3]


# How it is done.


class Fake:
    """A job whose parts each leave a file, but for those that fail."""

    alone, cost, uses = False, 1.0, ("processor",)

    def __init__(self, folder, name, parts, fails=(), **attributes):
        self.name, self.folder, self.parts, self._fails = name, folder / name, parts, fails
        vars(self).update(attributes)

    def left(self):
        return [part for part in self.parts if not (self.folder / part).exists()]

    def command(self, parts):
        code = ("import pathlib, sys, time\n"
                "for part in sys.argv[1:]:\n"
                f"    if part in {self._fails!r}: sys.exit('no ' + part)\n"
                "    path = pathlib.Path(part); path.touch(); print(part, time.monotonic())\n")
        return [sys.executable, "-c", code, *(str(self.folder / part) for part in parts)]


@pytest.fixture
def work(module, monkeypatch):
    work = module("work")
    monkeypatch.setattr(work, "LOOK_SECONDS", 0.02)
    return work


def test_a_part_that_fails_does_not_keep_the_others_from_being_done(work, tmp_path):
    bad = str(tmp_path / "a/2")
    jobs = [Fake(tmp_path, "a", ["1", "2", "3"], fails=(bad,)), Fake(tmp_path, "b", ["1"])]
    told = []
    failures = work.carry_out(jobs, 2, math.inf, lambda *shown: told.append(shown))
    assert [(f.job.name, f.part, f.last_line) for f in failures] == [("a", "2", f"no {bad}")]
    assert [job.left() for job in jobs] == [["2"], []]
    assert told[-1][:3] == (4, 4, 0.0) and told[-1][3] == ""
    assert (tmp_path / "b" / work.TABLE).read_text().startswith(str(tmp_path / "b/1"))


def test_a_finished_part_is_not_repeated(work, tmp_path):
    job = Fake(tmp_path, "a", ["1", "2"])
    job.folder.mkdir()
    (job.folder / "1").write_text("kept")
    assert not work.carry_out([job], 1, math.inf, lambda *shown: None)
    assert (job.folder / "1").read_text() == "kept" and (job.folder / "2").exists()


def test_the_settings_of_a_part_are_written_next_to_it(work, module, tmp_path, monkeypatch):
    made = module("made")
    bad = str(tmp_path / "a/3")
    job = Fake(tmp_path, "a", ["1", "2", "3"], fails=(bad,))
    job.folder.mkdir()
    (job.folder / "1").touch()  # made before anything was recorded
    monkeypatch.setitem(made._FIND, "processor", lambda: "first")
    work.carry_out([job], 1, math.inf, lambda *shown: None)
    assert made.read(job) == {"2": {"processor": "first"}}
    (job.folder / "2").unlink()
    job._fails = ()
    monkeypatch.setitem(made._FIND, "processor", lambda: "second")
    work.carry_out([job], 1, math.inf, lambda *shown: None)
    assert made.read(job) == {part: {"processor": "second"} for part in "23"}
    assert made.table([job, Fake(tmp_path, "b", ["1"])]).splitlines()[2:] == [
        "| second | - | - | 2 |", "| not recorded | - | - | 1 |"]


def test_the_dependencies_of_a_run_are_found(module, tmp_path, monkeypatch):
    made = module("made")
    settings, _ = module("settings").miniature()
    uses = {s.page: module("work").Simulation(s, 0, tmp_path).uses for s, _ in settings}
    assert uses == {"wide": ("processor", "TensorFlow"), "nbsync": ("processor",)}
    core = module("settings").core(0.4, 2, "1Gbit")[0]
    assert module("work").Simulation(core, 0, tmp_path).uses == tuple(made._FIND)
    assert made.processor() and re.match(r"\d+\.\d+", made.tensorflow())
    monkeypatch.setenv("WBSP_DATA_DIR", str(tmp_path))
    made.cifar10.cache_clear()
    assert made.cifar10() == "none"
    (tmp_path / "data_batch_1.bin").write_bytes(b"abc")
    made.cifar10.cache_clear()
    assert made.cifar10() == "data_batch_1.bin ba7816bf8f01cfea"
    monkeypatch.delenv("WBSP_DATA_DIR")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    keras = tmp_path / "datasets/cifar-10-batches-py-target/cifar-10-batches-py/data_batch_1"
    keras.parent.mkdir(parents=True)
    keras.write_bytes(b"abc")
    made.cifar10.cache_clear()
    assert made.cifar10() == "data_batch_1 ba7816bf8f01cfea"
    made.cifar10.cache_clear()


def test_nothing_begins_when_the_time_is_over(work, tmp_path):
    job = Fake(tmp_path, "a", ["1"])
    assert work.carry_out([job], 1, time.monotonic(), lambda *shown: None) == []
    assert job.left() == ["1"]


def test_a_job_that_must_be_alone_runs_alone(work, tmp_path):
    class Slow(Fake):
        def command(self, parts):
            return [sys.executable, "-c", "import pathlib, sys, time\nprint(time.monotonic())\n"
                    "time.sleep(0.3); print(time.monotonic())\n"
                    f"pathlib.Path({str(self.folder / '1')!r}).touch()"]

    jobs = [Slow(tmp_path, name, ["1"], alone=name == "b") for name in "abcd"]
    assert not work.carry_out(jobs, 4, math.inf, lambda *shown: None)
    spans = {job.name: [float(t) for t in (job.folder / work.TABLE).read_text().split()]
             for job in jobs}
    begin, end = spans["b"]
    assert all(t[1] <= begin or t[0] >= end for name, t in spans.items() if name != "b")


@pytest.mark.parametrize("change, same", [
    ("", True), (" --out=elsewhere", True), (" --sync_option=ssp.s=7", True),
    (" --sync_option=pcc.commit=every_push", False), (" --workers=3", False),
])
def test_a_run_counts_as_done_if_its_own_flags_are_the_same(work, change, same):
    wanted = "python -m wbsp.simulate --sync=pcc --seed=0"
    assert work._same(f"python -m wbsp.simulate --sync=bsp,pcc --seed=0{change}", wanted) == same
    assert not work._same(wanted.replace("=0", "=1"), wanted)


# What is written.


def test_only_what_is_between_marks_is_written_again(module):
    refresh = module("report").refresh
    page = "a\n<!-- one -->\nold\n<!-- end -->\nb\n<!-- two -->\n<!-- end -->\nc"
    once = refresh(page, {"one": "1", "two": "2"})
    assert once == ("a\n<!-- one -->\n\n1\n\n<!-- end -->\nb\n<!-- two -->\n\n2\n\n<!-- end -->\nc")
    assert refresh(once, {"one": "1", "two": "2"}) == once
    with pytest.raises(ValueError, match="a part 'two'; known: one"):
        refresh(page, {"one": "1"})


def row(module, model, times, page="core", best=0.5):
    settings, results = module("settings"), module("results")
    setting = next(s for s in settings.core(0.4, 2, "100Mbit"))
    outcomes = tuple(results.Outcome(
        seed, t, best, best, 9.0, 100, 10.0, 0.9, 0.8, 50, 5, 1.0, {0: 0.0, 1: 0.0}, 1e6, Path("."))
        for seed, t in enumerate(times))
    return results.Row(model, model, setting, outcomes)


def test_a_model_that_missed_the_target_once_is_not_compared(module):
    claims = module("claims")
    rows = [row(module, "pcc", [4.0, 6.0]), row(module, "asp", [10.0, 10.0]),
            row(module, "bsp", [1.0, None])]

    class Results:
        def of(self, setting):
            return rows

    claim = claims._headline(Results(), rows[0].setting)
    assert claim.ours == "50 % less: pcc 5.0 s, asp 10.0 s"
    assert "--sync=pcc,asp " in claim.command
    assert module("tables").spread(rows[2]) == "1.0, 1 of 2 seeds"
    ranked = module("tables").ranking(Results(), [rows[0].setting]).splitlines()[-1]
    assert ranked == ("| CNN, H1, 2 workers, 100 Mbit | pcc, 5.0 s | 1 of 2 seeds | - | "
                      "asp, 2.00 times | bsp |")


def test_losses_around_a_version_that_is_taken_over(module, tmp_path):
    """Mini-batches end at 1, 2, ... 20 s; versions come at 0.5 (the first), 10.5 and 18.5 s."""
    loss = [10 - n if n <= 10 else 20 - n for n in range(1, 21)]  # falls, jumps by 10, falls
    lines = [f"{n}, 0, {n}, {value}" for n, value in enumerate(loss, 1)]
    (tmp_path / "wk_loss_0_pcc.txt").write_text("\n".join(lines) + "\n")
    spans = [{"t": end - 0.25, "seconds": 0.25, "lane": lane, "kind": kind}
             for end, lane, kind in ((0.5, "network", "pull"), (0.5, "compute", "pull"),
                                     (5.5, "network", "push"), (10.5, "network", "pull"),
                                     (18.5, "network", "pull"))]
    found = module("timelines").changes(tmp_path, "pcc", spans)
    # 6 ... 10 before; 11 is under way; 12 ... 16 after. At 18.5 s too few are left.
    assert found == [(2.0, 6.0)]


# The whole chain.


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("miniature")
    begin = time.monotonic()
    done = reproduce("--miniature", f"--out={out}")
    assert done.returncode == 0, done.stderr
    return out, done, time.monotonic() - begin


@pytest.mark.slow
def test_a_miniature_of_the_whole_chain(made, module):
    out, done, seconds = made
    page = (out / "report.md").read_text()
    assert done.stdout.strip() == str(out / "report.md")
    assert "| wide | 1 | 30 % | 2 of 2 | 1 |" in page
    assert "| nbsync | 1 | none | 16 of 16 | 1, 1 |" in page
    here = module("made")
    assert f"| {here.processor()} | - | - | 16 |" in page
    assert f"| {here.processor()} | {here.tensorflow()} | - | 2 |" in page
    runs = {model: read_run(out / f"wide/base/seed-0/{model}/run-001") for model in ("bsp", "pcc")}
    times = {model: run.time_to(0.3) for model, run in runs.items()}
    assert re.search(rf"\| bsp \| \**{times['bsp']:.1f}\** \|", page)
    assert f"pcc {times['pcc']:.1f} s, bsp {times['bsp']:.1f} s" in page
    assert runs["pcc"].settings["command"].startswith("python -m wbsp.simulate --sync=bsp,pcc ")
    assert runs["pcc"].settings["test_images"] == 200
    assert (out / "figures/overview.png").stat().st_size > 10_000
    assert "](figures/overview.png)" in page
    assert "of 18 runs" in done.stderr
    assert seconds < 240  # on a busy machine; less than a minute on an idle one


@pytest.mark.slow
def test_a_further_seed_counts_when_all_models_have_run_under_it(made, module, tmp_path):
    out = tmp_path / "copy"
    shutil.copytree(made[0], out)
    planned, _ = module("settings").miniature()
    jobs = [module("work").Simulation(setting, seed, out) for setting, seed in planned]

    def seeds(model):
        return module("results").Results(jobs).row("nbsync", jobs[1].setting.name, model).outcomes

    assert len(seeds("bsp")) == len(seeds("pcc")) == 2
    shutil.rmtree(jobs[2].folder / "pcc")
    assert len(seeds("bsp")) == len(seeds("pcc")) == 1


@pytest.mark.slow
def test_the_second_time_only_what_is_missing_is_run(made):
    out, _, _ = made
    page = (out / "report.md").read_bytes()
    before = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    torn = next(path for path in before if path.match("nbsync/*/seed-1/asp/*/summary.json"))
    torn.unlink()
    assert reproduce("--miniature", f"--out={out}").returncode == 0
    after = {path: path.stat().st_mtime_ns for path in out.rglob("summary.json")}
    assert {path for path in before if after[path] != before[path]} == {torn}
    assert (out / "report.md").read_bytes() == page


@pytest.mark.slow
def test_stopped_it_leaves_no_process_behind_and_writes_the_report(tmp_path):
    flags = ["--miniature", f"--out={tmp_path}"]
    done = subprocess.Popen([sys.executable, ROOT / "lab/reproduce.py", *flags], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env={**os.environ, "PYTHONPATH": str(ROOT)})
    deadline = time.monotonic() + 60
    while not (tmp_path / "wide/base/seed-0/log.txt").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1)
    done.terminate()
    out, err = done.communicate(timeout=60)
    assert done.returncode == 130, err
    assert out.strip() == str(tmp_path / "report.md")
    assert "| wide | 1 | 30 % | 0 of 2 | 0 |" in (tmp_path / "report.md").read_text()
    assert not [p for p in psutil.process_iter(["cmdline"])
                if any(str(tmp_path) in part for part in p.info["cmdline"] or ())]


@pytest.mark.parametrize("flags, words", [
    (["--quick", "--miniature"], "give --quick or --miniature, not both"),
    (["--budget=soon"], "--budget: 'soon' is not a time"),
    (["quick"], "unknown argument 'quick'"),
])
def test_bad_input_is_refused_in_one_line(flags, words):
    done = reproduce(*flags)
    assert done.returncode == 1
    assert words in done.stderr and done.stderr.count("\n") == 1


def test_the_page_has_no_part_that_the_report_does_not_know(module, tmp_path):
    report, results, work = (module(name) for name in ("report", "results", "work"))
    printing = [work.reality(("bsp",), 1, tmp_path), work.reality_to_60(("bsp",), tmp_path),
                work.zipline(tmp_path)]
    report.write(results.Results([]), printing, ROOT / "lab/reports/reproduction-2026-11-28.md",
                 tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    known = report._parts(results.Results([]), printing)
    marks = set(re.findall(r"<!-- (?!end)(\S+) -->", page))
    assert marks == {*known, *(f"figure-{name}" for name in report.FIGURES)}
