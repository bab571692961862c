"""The benchmark of the simulator runs as its one command and leaves its figures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_benchmark_measures_events_and_training(tmp_path):
    file = tmp_path / "figures.json"
    subprocess.run([sys.executable, "-m", "benchmarks.simulate", "--quick", f"--json={file}"],
                   cwd=ROOT, check=True, capture_output=True)
    figures = json.loads(file.read_text())["simulate"]
    assert [(row["sync"], row["workers"]) for row in figures["timing"]] == [
        (sync, workers) for sync in ("bsp", "ssp", "wbsp", "pcc") for workers in (10, 100)]
    for row in figures["timing"]:
        assert row["events"] > 4_000 and row["peak_mb"] > 0
        assert row["events_per_second"] * row["us_per_event"] == pytest.approx(1e6)
    assert figures["training"]["virtual/plain"]["median"] > 0
