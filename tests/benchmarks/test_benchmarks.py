"""Each benchmark runs as its one command and leaves its figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def figures(tmp_path, name, *flags):
    """What benchmark `name` writes with --json when run with `flags`."""
    file = tmp_path / "figures.json"
    done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *flags, f"--json={file}"],
                          cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())[name]


@pytest.mark.slow
def test_wire_compares_all_three_for_each_number_of_workers(tmp_path):
    rows = figures(tmp_path, "wire", "--sizes", "1000", "--workers", "1", "2", "--turns=2",
                   "--seconds=0.01")
    assert [(row["bytes"], row["workers"]) for row in rows] == [(4000, 1), (4000, 2)]
    for row in rows:
        for name in ("wbsp", "tensorflow", "memcpy"):
            times = row[name]
            assert 0 < times["ms_min"] <= times["ms"] <= times["ms_max"]
        for other in ("tensorflow", "memcpy"):
            ratio = row[f"wbsp/{other}"]
            assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]


@pytest.mark.slow
def test_step_overhead_compares_two_fits(tmp_path):
    result = figures(tmp_path, "step_overhead", "--model=small", "--batch_size=8", "--pairs=2",
                     "--epochs=1")
    assert (result["model"], result["batch_size"], result["pairs"]) == ("small", 8, 2)
    for name in ("plain_ms", "synced_ms", "hook_ms"):
        assert 0 < result[name]["min"] <= result[name]["median"] <= result[name]["max"]
    assert result["overhead_percent"]["min"] <= result["overhead_percent"]["max"]


def test_zipline_counts_the_operations_of_each_variant(tmp_path):
    result = figures(tmp_path, "zipline", "--quick")
    assert result


@pytest.mark.slow
def test_group_compares_numbers_of_shards(tmp_path):
    (row,) = figures(tmp_path, "group", "--sizes", "1000", "--shards", "1", "2", "--turns=2",
                     "--seconds=0.01")
    assert set(row["ms"]) == set(row["ratio"]) == {"1", "2"}
    assert row["ratio"]["1"]["median"] == 1 and 0 < row["ratio"]["2"]["median"]
