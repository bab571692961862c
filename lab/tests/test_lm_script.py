"""lab/lm.py: it trains what is missing, keeps curves, and prints worth."""

import csv
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rivals import cells
from rivals.entries import rival
from rivals.trainings import Training, setting, train

from wbsp.simulate.study.variants import variants

ROOT = Path(__file__).parents[2]
SMALL = "--model=gpt:width=16:layers=1:heads=2:context=16"
FILE = """
[step]
seconds = "20ms"
batch = 8
jitter = 0.1
[line]
bandwidth = "1Gbit"
latency = "1ms"
detect = "1s"
[cells.pair]
times = [1, 2]
lengths = [0.5]
[[entries]]
name = "lone"
lengths = [0.3, 1]
settings = ["batch=4:lr=3e-3"]
[[entries]]
name = "auto"
settings = ["batch=4:lr=1e-9", "batch=4:lr=3e-3"]
"""


def lm(*flags):
    return subprocess.run([sys.executable, ROOT / "lab/lm.py", *flags], timeout=1000,
                          capture_output=True, text=True,
                          env=os.environ | {"JAX_PLATFORMS": "cpu"})


@pytest.mark.slow
@pytest.mark.timeout(1200)  # it computes, perhaps beside others
def test_missing_runs_are_trained_the_best_setting_has_all_seeds_and_worth_is_printed(tmp_path):
    (tmp_path / "cells.toml").write_text(FILE)
    flags = [f"--file={tmp_path}/cells.toml", f"--out={tmp_path}/runs", SMALL, "--seeds=0,1"]
    nothing = lm(*flags, "--budget=0s")
    assert nothing.returncode == 0 and "4 runs are missing" in nothing.stderr
    done = lm(*flags, f"--csv={tmp_path}/all.csv")
    assert done.returncode == 0, done.stderr
    assert "missing" not in done.stderr
    made = sorted(path.relative_to(tmp_path / "runs").as_posix()
                  for path in (tmp_path / "runs").rglob("*.csv"))
    folder = SMALL.removeprefix("--model=").replace(":", "_")
    assert made == [f"{folder}/alone/lone/batch=4_lr=0.003/{run}.csv" for run in (
        "0.3s-seed0", "0.3s-seed1", "1s-seed0", "1s-seed1")] + [
            f"{folder}/pair/auto/batch=4_lr=0.003/0.5s-seed0.csv",
            f"{folder}/pair/auto/batch=4_lr=0.003/0.5s-seed1.csv",
            f"{folder}/pair/auto/batch=4_lr=1e-09/0.5s-seed0.csv"]
    text = (tmp_path / "runs" / made[-3]).read_text()
    assert "# command: lab/lm.py" in text and "# commit: " in text and "SHA-256" in text
    _, auto, *_ = [line for line in done.stdout.splitlines() if line.startswith("| 0.")]
    assert auto.startswith("| 0.5 | auto | batch=4:lr=0.003 | ")
    loss, worth = float(auto.split(" | ")[3]), auto.split(" | ")[-1].strip(" |")
    assert 3.5 < loss < 5.6 and 0.6 <= float(worth.strip("<>")) <= 2
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*.csv")}
    again = lm(*flags)
    assert again.stdout == done.stdout and again.stderr == ""
    assert before == {path: path.stat().st_mtime_ns for path in before}
    with (tmp_path / "all.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if (row["entry"], row["seed"]) == ("auto", "1")]
    assert [float(row["seconds"]) for row in rows] == sorted(float(row["seconds"]) for row in rows)
    assert int(rows[-1]["examples"]) == pytest.approx(0.5 / 0.01 * 4 * 1.5, rel=0.1)


def keep(folder, place, seconds, *losses):
    """Write the files of runs that ended at these losses, one for each seed."""
    (folder / place).mkdir(parents=True)
    for seed, loss in enumerate(losses):
        (folder / place / f"{seconds:g}s-seed{seed}.csv").write_text(
            f"# command: lab/lm.py\nseconds,examples,loss\n0,0,5.5\n{seconds:g},100,{loss}\n")


def test_worth_is_read_off_the_best_lone_machines_runs_of_several_lengths(tmp_path):
    runs = tmp_path / "runs"
    keep(runs, "alone/lone/batch=4_lr=0.003", 10, 2.2, 2.2)
    keep(runs, "alone/lone_outer=nesterov_every=48/batch=4_lr=0.003", 40, 1.8, 1.8)
    keep(runs, "alone/lone_outer=nesterov_every=48/batch=4_lr=0.0014", 40, 1.6, 2.0)
    keep(runs, "pair/auto/batch=4_lr=0.003", 40, 1.9, 2.1)
    keep(runs, "pair/diloco_h=24/batch=4_lr=0.002", 40, 2.3, 2.5)
    keep(runs, "pair/dn-dylu_h=48/batch=4_lr=0.002", 40, 1.5, 1.5)
    keep(runs, "pair/ddp/batch=4_lr=0.003", 40, math.nan, math.nan)
    done = lm("--table", f"--out={runs}", "--cells=pair", "--seeds=0,1",
              f"--figure={tmp_path}/worth.png")
    assert done.returncode == 0, done.stderr
    found = {line.split(" | ")[1]: line.split(" | ")[-1].strip(" |")
             for line in done.stdout.splitlines() if line.startswith("| 40 ")}
    # The setting that is best with the first seed has the mean of all: 1.8 after 40 s, and 2.2
    # after 10 s. So 2.0 takes 20 s: half way, in the logarithm.
    assert found == {"lone:outer=nesterov:every=48": "1.00", "auto": "0.50", "diloco:h=24": "<0.25",
                     "dn-dylu:h=48": ">1.00", "ddp": "-"}
    assert (tmp_path / "worth.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("flags, words", [
    (["--cells=rumour"], "--cells: 'rumour' is unknown"),
    (["--entries=rumour", "--settings=batch=4:lr=1"], "unknown synchronization model 'rumour'"),
    (["--entries=pcc"], "pcc is not in"),
    (["--settings=batch=4"], "'batch=4' is no setting"),
    (["--settings=batch=4:lr=1e-3:beta3=1"], "'beta3=1' is no option of adamw"),
    (["--entries=ddp:buckets=0"], "buckets=0 is below 1")])
def test_bad_input_is_refused_in_one_line(flags, words):
    done = lm("--list", *flags)
    assert done.returncode == 1 and words in done.stderr and done.stderr.count("\n") == 1


def test_all_that_the_file_has_can_be_trained():
    found, entries = cells.read()
    assert {name: round(cell.ideal, 2) for name, cell in found.items()} == {
        "equal-8": 8, "pair": 1.5, "pair-4": 1.25, "mixed-8": 4.5, "h1-8": 4.15, "four": 2.42,
        "equal-8-heavy": 8, "pair-heavy": 1.5, "equal-8-fixed": 8, "pair-fixed": 1.5,
        "changing-8": 8, "deaths-8": 8}
    for entry in entries:
        assert all(setting(text) for text in entry.settings)
        assert rival(entry.name) is not None or variants([entry.name], [])


def test_a_fixed_part_of_a_step_stays_at_a_smaller_batch():
    found, _ = cells.read()
    fixed, plain = (found[name].spec.trains(2) for name in ("pair-fixed", "pair"))
    assert [group.mini_batch for group in fixed.groups] == pytest.approx([0.0125, 0.025])
    assert [group.mini_batch for group in plain.groups] == pytest.approx([0.005, 0.01])
    assert found["pair-fixed"].alone.trains(2).groups[0].mini_batch == pytest.approx(0.0125)


@pytest.mark.parametrize("entry", ["diloco:h=96", "localsgd:tau=96"])
def test_an_entry_whose_first_round_outlasts_the_run_has_the_loss_of_the_first_values(entry):
    found, _ = cells.read()
    one = Training(found["h1-8"], entry, setting("batch=8:lr=1e-3"), 1.0, 0,
                   SMALL.removeprefix("--model="))
    looks = train(one)
    assert {look.examples for look in looks} == {0}
    assert looks[-1].loss == pytest.approx(math.log(256), abs=0.1)
