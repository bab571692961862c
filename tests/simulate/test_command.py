"""`python -m wbsp.simulate` without tensors: files, output, repeatability, errors."""

import re
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from finished import finished, simulate

from wbsp.runlog.reader import read_run
from wbsp.simulate.study import compare

ROOT = Path(__file__).parents[2]
TIMING = ("--model=timing", "--max_steps=400", "--jitter=0.1", "--model_bytes=6MB",
          "--bandwidth=1Gbit", "--latency=1ms", "--heterogeneity=H1", "--workers=4")


def test_the_format_is_one_of_those_that_are_known(tmp_path):
    bad = simulate(tmp_path, *TIMING, "--sync=bsp", "--wire=int4", "--out=o")
    assert bad.returncode == 1 and not bad.stdout
    assert bad.stderr.count("\n") == 1 and "give float32, bfloat16, int8" in bad.stderr


def test_a_table_shows_the_bytes_of_the_format(tmp_path):
    flags = *TIMING, "--sync=bsp", "--nofigures", "--latency=0s"
    rows = {}
    for wire in ("float32", "int8"):
        done = simulate(tmp_path, *flags, f"--wire={wire}", f"--out={wire}")
        assert done.returncode == 0, done.stderr
        rows[wire] = done.stdout.splitlines()[-1].split("|")[-2].split()
        settings = read_run(tmp_path / wire / "bsp/run-001").settings
        assert settings.get("wire", "float32") == wire
    assert rows["float32"][1] == "GB" and rows["int8"][1] in ("GB", "MB")
    share = {"GB": 1.0, "MB": 1e-3}[rows["int8"][1]]
    assert share * float(rows["int8"][0]) < 0.29 * float(rows["float32"][0]), "W_0 comes whole"


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*")
            if path.is_file()}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The same command in two folders: (folder, what it printed) of each."""
    folders = [tmp_path_factory.mktemp("run") for _ in range(2)]
    done = [simulate(folder, *TIMING, "--sync=bsp,wbsp", "--seeds=2", "--out=o")
            for folder in folders]
    assert [run.returncode for run in done] == [0, 0], done[0].stderr
    return list(zip(folders, done, strict=True))


def test_the_same_command_leaves_the_same_bytes(two):
    (a, first), (b, second) = two
    assert contents(a) == contents(b)
    assert first.stdout == second.stdout
    names = {path.name for path in (a / "o/wbsp/run-002").iterdir()}
    assert names >= {"run.json", "events.jsonl", "events_wk3.jsonl", "summary.json", "summary.txt",
                     "wk_time_0_wbsp.txt", "wk_loss_0_wbsp.txt", "ps_global_loss_wbsp.txt"}


def test_the_files_of_a_run_hold_its_settings_and_add_up(two):
    (folder, _), _ = two
    run = read_run(folder / "o/bsp/run-002")
    assert run.settings["clock"] == "virtual"
    assert (run.settings["seed"], run.settings["workers"]) == (1, 4)
    assert (run.settings["bandwidth"], run.settings["model_bytes"]) == ("1Gbit", 6e6)
    assert run.settings["step_seconds"] == "0.02s"
    assert run.summary["total"]["steps"] == 400
    for worker, spans in run.spans.items():
        booked = run.summary["workers"][str(worker)]["seconds"]
        for kind, seconds in booked.items():
            lane = [s["seconds"] for s in spans if (s["lane"], s["kind"]) == ("compute", kind)]
            assert sum(lane) == pytest.approx(seconds, abs=1e-9)
    with open(run.folder / "wk_time_1_bsp.txt") as lines:
        steps = [float(line.split(", ")[1]) for line in lines]
    assert sum(steps) == pytest.approx(run.summary["workers"]["1"]["seconds"]["compute"])


def test_seeds_differ_in_their_step_times_and_models_do_not(two):
    (folder, _), _ = two

    def first_steps(name):
        run = read_run(folder / "o" / name)
        return [next(s["seconds"] for s in spans if s["kind"] == "compute")
                for spans in run.spans.values()]
    assert first_steps("bsp/run-001") == pytest.approx(first_steps("wbsp/run-001"))
    assert first_steps("bsp/run-001") != pytest.approx(first_steps("bsp/run-002"))


def test_the_figures_group_the_seeds(two):
    (folder, _), _ = two
    files = {path.name for path in (folder / "o/figures").iterdir()}
    assert {"time_shares.png", "staleness.png", "timeline_4_wbsp.png"} <= files
    drawn = (folder / "o/figures/figures.md").read_text()
    assert "bsp #1 (seed 0)" in drawn and "wbsp #2 (seed 1)" in drawn


def test_the_table_has_a_row_a_model(two):
    (folder, done), _ = two
    rows = [line.split(" | ") for line in done.stdout.splitlines()]
    assert [row[0].strip("| ") for row in rows] == ["model", "---", "bsp", "wbsp"]
    seconds = [float(row[1].replace(",", "")) for row in rows[2:]]
    assert seconds[1] < seconds[0] / 2  # four workers, of which two sleep
    totals = [read_run(folder / f"o/bsp/run-00{n}").summary["total"] for n in (1, 2)]
    messages = sum(total["pushes"] + total["pulls"] for total in totals) / 2
    assert rows[2][-1].rstrip("| ") == f"{messages * 6e6 / 1e9:.2f} GB"


def test_progress_is_plain_lines_without_a_terminal(two):
    (_, done), _ = two
    lines = [line for line in done.stderr.splitlines() if "seed" in line]
    assert len(lines) == 4 and lines[0].startswith("bsp, seed 0: 100%, virtual ")
    assert "\x1b" not in done.stderr


def test_a_cluster_file_stands_for_the_flags_and_is_kept(tmp_path):
    file = ROOT / "scripts/clusters/straggler.toml"
    done = simulate(tmp_path, f"--cluster={file}", "--model=timing", "--until=60s", "--sync=ssp",
                    "--sync_option=s=3", "--nofigures", "--out=o")
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "o/ssp/run-001")
    assert (run.folder / "cluster.toml").read_text() == file.read_text()
    assert run.settings["options"] == {"s": "3"}
    assert run.summary["t"] == 60 and run.summary["reason"] == "virtual second 60 reached"
    leaves = [e for e in run.events if e["kind"] == "leave"]
    assert [(e["worker"], e["reason"]) for e in leaves] == [(6, "lost")]
    assert 36 - 1 < leaves[0]["t"] < 36  # lost at 30 s, known 6 s later, training began at 0.1 s


def test_a_run_ends_where_its_last_worker_is_lost(tmp_path):
    (tmp_path / "c.toml").write_text(
        '[[workers]]\nstep_seconds = "1s"\ncount = 2\nlose = "2.5s"\n')
    done = simulate(tmp_path, "--cluster=c.toml", "--model=timing", "--max_steps=8",
                    "--sync=bsp,pcc", "--out=o", "--nofigures")
    assert done.returncode == 0, done.stderr
    for name in "bsp", "pcc":
        run = read_run(tmp_path / "o" / name / "run-001")
        assert (run.summary["t"], run.summary["reason"]) == (8.5, "no worker is left")


def test_a_large_cluster_keeps_the_files_of_a_hundred_workers(tmp_path):
    done = simulate(tmp_path, "--model=timing", "--workers=300", "--max_steps=600", "--sync=pcc",
                    "--nofigures", "--out=o")
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "o/pcc/run-001")
    assert len(run.spans) == 100 and len(run.summary["workers"]) == 300


TWO = """[[workers]]
step_seconds = "10ms"
bandwidth = "none"
[[workers]]
step_seconds = "100ms"
"""


def test_advice_on_shared_data_gives_the_time_of_the_epochs(tmp_path):
    (tmp_path / "two.toml").write_text(TWO)
    done = simulate(tmp_path, "--advise=two.toml", "--model=timing", "--shared_data",
                    "--examples=640", "--batch_size=64", "--epochs=20", "--sync=bsp,pcc",
                    "--nofigures", "--verbose", "--out=o")
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows[0][2] == "seconds for 20 epochs"
    seconds = {row[1]: float(row[2]) for row in rows[2:]}
    assert list(seconds) == ["pcc", "the fastest machine alone", "bsp"]
    assert seconds["the fastest machine alone"] == 2.0  # 200 steps, and nothing is sent
    assert 200 / 110 <= seconds["pcc"] < 2.0  # both machines make 110 steps/s
    assert seconds["bsp"] == 10.0  # 100 rounds of two steps
    said = done.stdout.splitlines()
    assert said[0] == ("it may pay: 1.1 times the fastest machine alone, with pcc at batch 64 "
                       "(1.9 s for 20 epochs; alone 2 s, at batch 64)")
    assert said[1] == (
        "Train with wbsp ps --host=0.0.0.0 --worker_num=2 --sync=pcc; in the script batch 64.")
    assert said[3].startswith("How much is learned in that time is another question")
    assert "at least 10.0 s on a part each (worth 0.20 of" in said[-1]
    assert "at least 20.0 s on all data each (worth 0.10)" in said[-1]
    for sync in ("pcc", "bsp"):
        run = read_run(tmp_path / "o" / sync / "run-001")
        assert run.settings["shared_data"] == {"examples": 640, "epochs": 20}
        assert run.summary["total"]["samples"] == 20 * 640, "each example once an epoch"


@pytest.mark.slow
def test_an_advice_ends_where_the_machine_alone_misses_the_target(jobs):
    advice = jobs.start("advice", "-m", "wbsp", "advise", "pair", "--sync=auto,asp", "--epochs=0.3",
                        "--target_accuracy=0.999", "--test_images=100", "--nofigures",
                        fork=forked.KERAS)
    assert advice.ends() == 1
    *progress, last = advice.lines
    assert re.fullmatch(r"advise: the fastest machine alone came to \d+ % in [\d.]+ s, not to "
                        r"99.9 %, so there is nothing to compare with: give --target_accuracy=0\.\d"
                        r"+, or a later end by --epochs", last)
    assert not [line for line in progress if line.startswith(("auto", "asp"))], "it has gone on"


@pytest.mark.slow
def test_an_advice_has_its_verdict_first_each_at_its_best_batch(jobs):
    (jobs.folder / "c.toml").write_text("batch_size = 64\n" + TWO)
    flags = ["advise", "c.toml", "--sync=bsp", "--target_accuracy=0.3", "--test_images=200",
             "--nofigures"]
    done = finished(jobs.folder, "-m", "wbsp", *flags)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert len(said) == 4 and "bsp, batch 32, seed 0" in done.stderr
    found = re.fullmatch(r"it does not pay: ([\d.]+) s to 30 % with all machines \(bsp at batch "
                         r"(64|32|16)\), ([\d.]+) s with the fastest alone \(at batch (64|32|16)\)",
                         said[0])
    assert found and float(found[1]) > float(found[3]), "bsp waits for the slow one at each step"
    assert said[1].startswith(f"Train on the fastest machine alone: batch {found[4]}, learning")


@pytest.mark.parametrize("flags, words", [
    (["--model=timing", "--shared_data", "--epochs=3"], "how many examples are there? give"),
    (["--model=timing", "--shared_data", "--examples=9"], "needs a whole number of --epochs"),
    (["--model=timing", "--shared_data", "--examples=9", "--epochs=0.5"], "not 0.5; give"),
    (["--model=timing", "--until=1s", "--examples=9"], "--examples=9 is the size of data that"),
    (["--model=timing"], "--model=timing needs an end: give --max_steps or --until"),
    (["--model=timing", "--until=1s", "--epochs=3"], "--epochs needs a network"),
    (["--model=timing", "--until=1s", "--check_period=1s"], "--check_period needs a network"),
    (["--dataset=shapes10", "--data_dir=x"], "--data_dir=x has no effect on --dataset=shapes10"),
    (["--model=timing", "--until=5 sec"], "--until: '5 sec' is not a time"),
    (["--model=timing", "--until=1s", "--bandwidth=1Gb"], "--bandwidth: '1Gb' is not a bandwidth"),
    (["--model=timing", "--until=1s", "--model_bytes=3Mbit"], "'3Mbit' is not a size"),
    (["--model=timing", "--until=1s", "--sync=bsp,wsp"], "unknown synchronization model 'wsp'"),
    (["--model=timing", "--until=1s", "--sync=bsp", "--sync_option=s=3"],
     "bsp: unknown option 's'"),
    (["--model=timing", "--until=1s", "--sync=bsp,ssp", "--sync_option=s=-1"],
     "ssp: option s=-1 is below 0"),
    (["--model=timing", "--until=1s", "--cluster=no.toml"], "cluster file no.toml does not exist"),
    (["--model=timing", "--until=1s", "--cluster=no.toml", "--workers=3"],
     "--workers and no.toml both describe the cluster; give one"),
    (["--advise=no.toml", "--cluster=no.toml"], "give --cluster or --advise, not both"),
    (["--model=own:net"], "--step_seconds: how long does a step of own:net take?"),
    (["--target_accuracy=60"], "--target_accuracy=60 is not an accuracy"),
    (["--target_accuracy=nan"], "--target_accuracy=nan is not an accuracy"),
    (["--check_period=0s"], "--check_period must be above 0"),
    (["--model=timing", "--until=1s", "--verbose"], "--verbose shows more of an advice"),
    (["wbsp"], "unknown argument 'wbsp'"),
])
def test_bad_input_is_refused_in_one_line(tmp_path, flags, words):
    done = simulate(tmp_path, *flags)
    assert done.returncode == 1
    assert words in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_command_needs_no_tensorflow_for_time_alone():
    code = ("import sys, wbsp.simulate.__main__; "
            "print({'tensorflow', 'keras', 'zmq', 'matplotlib'} & set(sys.modules) or '')")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (run.stdout.strip(), run.stderr) == ("", "")


@pytest.mark.parametrize("size, text", [(0, "0 B"), (999, "999 B"), (1.5e3, "1.5 kB"),
                                        (24.12e9, "24.1 GB"), (3e15, "3e+03 TB")])
def test_sizes_get_a_unit_that_suits_them(size, text):
    assert compare.in_bytes(size) == text


def test_a_step_has_a_fixed_part_and_one_of_its_examples(tmp_path):
    (tmp_path / "two.toml").write_text("[[workers]]\nspeed = 1\n[[workers]]\nspeed = 0.5\n")
    for batch, steps in ((10, 75), (40, 30)):  # 20 and 40 ms; 50 and 100 ms
        done = simulate(tmp_path, "--model=timing", "--until=1s", "--sync=asp",
                        "--cluster=two.toml", "--step_seconds=10ms+1ms", f"--batch_size={batch}",
                        f"--out=o{batch}", "--nofigures")
        assert done.returncode == 0, done.stderr
        total = read_run(tmp_path / f"o{batch}/asp/run-001").summary["total"]
        assert abs(total["steps"] - steps) <= 2


def test_a_cluster_file_with_step_times_takes_no_others(tmp_path):
    bad = simulate(tmp_path, "--model=timing", "--until=1s", "--cluster=wan", "--step_seconds=1ms")
    assert bad.returncode == 1 and "--step_seconds and wan both describe the cluster" in bad.stderr
