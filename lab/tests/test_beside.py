"""lab/beside.py: real runs of a few seconds where the entries' environments are, and its tables."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from beside import environments, plan, run, table
from beside.events import Event

ROOT = Path(__file__).parents[2]
TINY = "gpt:width=32:layers=1:heads=2:context=32"
SETTING = "batch=4:lr=0.003"


@pytest.mark.parametrize("entry", ["lone", "ddp:uneven=true:outer=qhm", "wbsp"])
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a core each: needs Linux")
def test_a_run_of_an_entry_trains_each_example_once_and_says_what_it_gave(tmp_path, entry):
    name = environments.OF_ENTRY[entry.partition(":")[0]]
    if environments.versions(name) is None:
        pytest.skip(f"no environment {name} with torch: lab/beside.py --install creates it")
    asked = run.Asked(plan.Cell("tiny", (1.0, 2.0), None, TINY), entry, SETTING, 0, 5.0)
    total = 1200
    found = run.carry_out(asked, asked.plan(total), tmp_path / "run")
    logs = {path.name: path.read_text() for path in (tmp_path / "run").glob("*.log")}
    assert found["loss"] is not None, logs
    assert 1 < found["loss"] < 5  # log(256) is 5.5
    assert found["examples"] - found["twice"] == total and found["never"] == 0
    assert [bool(steps) for steps in found["steps"].values()] == [True, entry != "lone"]
    assert set(found["codes"].values()) == {0}
    assert found == json.loads((tmp_path / "run/result.json").read_text())
    assert "torch==" in (tmp_path / "run/versions.txt").read_text()
    assert f"beside.entries.{asked.plan(1).name}" in (tmp_path / "run/commands.txt").read_text()


def test_uneven_shares_end_together_and_each_machine_has_one():
    assert plan.shares(8, [1, 2]) == [6, 2] or plan.shares(8, [1, 2]) == [5, 3]
    assert plan.shares(8, [1, 1]) == [4, 4]
    assert plan.shares(8, [1, 100]) == [7, 1]
    assert plan.shares(2, [1, 4, 4]) == [1, 1, 1]


def test_the_file_has_sound_cells_entries_and_settings():
    cells, entries = plan.data()
    assert cells["1-4"].slow == (1, 4) and cells["1-2-100mbit"].mbit == 100
    for name, settings in entries.items():
        assert name.partition(":")[0] in environments.OF_ENTRY
        assert plan.options(name.partition(":")[2]) is not None
        assert [plan.setting(text).batch for text in settings]


def result(folder: Path, entry: str, setting: str, seed: int, loss: float | None,
           cell: str = "1-2", **others) -> None:
    entries = folder / cell / "10s" / plan.file_name(entry)
    place = entries / plan.file_name(setting) / f"seed-{seed}/try-0"
    place.mkdir(parents=True)
    (place / "result.json").write_text(json.dumps({
        "entry": entry, "setting": setting, "seed": seed, "loss": loss, "event": "", "wanted": 10,
        "seconds": 10, "off": False, "steps": {"0": 20, "1": 10}, "bytes": 60_000,
        "examples": 100, "start_seconds": 2, "end_seconds": 0.5} | others))


def test_the_table_has_the_best_setting_and_differences_of_pairs(tmp_path):
    for seed, loss in enumerate((2.0, 2.5)):
        result(tmp_path, "wbsp", "batch=4:lr=0.002", seed, loss)
        result(tmp_path, "ddp:uneven=true", "batch=4:lr=0.002", seed, loss + 0.1 + 0.2 * seed)
        result(tmp_path, "lone", "batch=4:lr=0.002", seed, loss + 1, cell="lone-1-2")
    result(tmp_path, "ddp:uneven=true", "batch=4:lr=0.1", 0, 3.0)
    first, second, third = table.losses(tmp_path, "wbsp").partition("\nlone")[0].splitlines()[-3:]
    assert first.startswith("| wbsp | batch=4:lr=0.002 (1) | 2.2500 | 2 | +0.0000 (2) | 10.0 |")
    assert "| 2.4500 | 2 | +0.2000 (2) |" in second and "batch=4:lr=0.002 (2)" in second
    assert "| 2.0 + 1.0 | 2.0 | 2.0, 0.5 |" in second
    assert third.startswith("| lone |") and "| +1.0000 (2) |" in third
    assert table.happened(tmp_path) == ""


def test_the_table_of_events_says_who_ended_and_what_the_user_saw(tmp_path):
    result(tmp_path, "ddp", SETTING, 0, None, event="kill:1", seconds=None,
           said={"machine-0": ["a", "Connection closed by peer"]})
    last = table.happened(tmp_path).splitlines()[-1]
    assert "| kill:1 | ddp | no |" in last and "Connection closed by peer" in last


@pytest.mark.parametrize("flag, words", [
    ("--cells=rumour", "'rumour' is unknown; there are 1-2"),
    ("--entries=rumour", "'rumour' is unknown; there are lone"),
    ("--entries=wbsp:sync=asp", "give its --settings"),
    ("--events=rumour:1", "write KIND:MACHINE"),
    ("--settings=batch=4", "write batch=4:lr=2e-3"),
])
def test_a_bad_flag_is_one_line(tmp_path, flag, words):
    done = subprocess.run([sys.executable, ROOT / "lab/beside.py", "--table", f"--out={tmp_path}",
                           flag], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.startswith("beside: ") and words in done.stderr
    assert done.stderr.count("\n") == 1


def test_events_have_a_kind_and_a_machine():
    assert Event.read("sleep:1") == Event("sleep", 1) and Event.read("join") == Event("join", 0)
