"""Each benchmark runs as its one command and leaves its figures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

minutes = pytest.mark.skipif("WBSP_BENCHMARKS" not in os.environ,
                             reason="takes minutes of two cores: WBSP_BENCHMARKS=1")


def figures(tmp_path, name, *flags):
    """What benchmark `name` writes with --json when run with `flags`."""
    file = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", f"lab.benchmarks.{name}", *flags, f"--json={file}"], cwd=ROOT,
        capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(file.read_text())[name]


@minutes
def test_wire_compares_all_for_each_number_of_workers(tmp_path):
    peers = ("tensorflow", "memcpy")
    rows = figures(tmp_path, "wire", "--sizes", "1000", "--workers", "1", "2", "--turns=2",
                   "--seconds=0.01", "--peers", *peers)
    assert [(row["bytes"], row["workers"]) for row in rows] == [(4000, 1), (4000, 2)]
    for row in rows:
        for name in ("shared", "tcp", *peers):
            times = row[name]
            assert 0 < times["ms_min"] <= times["ms"] <= times["ms_max"]
        for pair in ("shared/tcp", *(f"{one}/{peer}" for one in ("shared", "tcp")
                                     for peer in peers)):
            ratio = row[pair]
            assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]


@minutes
def test_site_data_compares_runs_with_the_ideal(tmp_path):
    rows = figures(tmp_path, "site_data", "--sites=2", "--epochs=2", "--latency", "0", "0.05",
                   "--sync", "pcc/pcc", "pcc")
    assert [row["sync"] for row in rows] == ["pcc/pcc", "pcc"]
    assert all(1 < one < 1.5 for row in rows for one in row["ratios"])


@minutes
def test_step_overhead_compares_two_fits(tmp_path):
    result = figures(tmp_path, "step_overhead", "--model=small", "--batch_size=8", "--pairs=2",
                     "--epochs=1")
    assert (result["model"], result["batch_size"], result["pairs"]) == ("small", 8, 2)
    for name in ("plain_ms", "synced_ms", "hook_ms"):
        assert 0 < result[name]["min"] <= result[name]["median"] <= result[name]["max"]
    assert result["overhead_percent"]["min"] <= result["overhead_percent"]["max"]


@minutes
def test_loop_overhead_times_the_calls_of_each_kind(tmp_path):
    result = figures(tmp_path, "loop_overhead", "--kinds", "jax", "tensorflow", "--turns=2")
    for us in result.values():
        assert 0 < us["min"] <= us["median"] <= us["max"]


@minutes
def test_cut_counts_passes_over_the_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    result = figures(tmp_path, "cut", "--mb=5", "--rounds=2")
    assert result["back_end"] == "jax" and abs(result["bytes"] / 5e6 - 1) < 0.1
    for ratio in result["passes"].values():
        assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]


@minutes
def test_memory_is_counted_relative_to_a_plain_fit(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    result = figures(tmp_path, "memory", "--mb=20", "--steps=6")
    assert abs(result["bytes"] / 20e6 - 1) < 0.1
    for own, shared in zip(result["workers"], result["shared"], strict=True):
        assert own > result["plain"] + result["bytes"] and shared > result["bytes"]


def test_zipline_counts_the_operations_of_each_variant(tmp_path):
    figure = tmp_path / "zipline.png"
    rows = figures(tmp_path, "zipline", "--quick", f"--figure={figure}")
    assert {(row["workers"], row["r"]) for row in rows} == {(10, 15), (10, 150), (100, 15),
                                                            (100, 150)}
    for row in rows:
        assert (row["moved"] == 0) == (row["algorithm"] == "zipline_opt_bs")
    assert figure.stat().st_size > 10_000


@minutes
def test_simulate_measures_events_and_training(tmp_path):
    result = figures(tmp_path, "simulate", "--quick")
    assert [(row["sync"], row["workers"]) for row in result["timing"]] == [
        (sync, workers) for sync in ("bsp", "ssp", "wbsp", "pcc") for workers in (10, 100)]
    for row in result["timing"]:
        assert row["events"] > 4_000 and row["peak_mb"] > 0
        assert row["events_per_second"] * row["us_per_event"] == pytest.approx(1e6)
    assert result["training"]["virtual/plain"]["median"] > 0


@minutes
def test_batch_sizes_traces_once_for_all_sizes(tmp_path):
    rows = figures(tmp_path, "batch_sizes", "--model=small", "--batch_size=8", "--sizes=2",
                   "--pairs=1")["rows"]
    assert [row["what"] for row in rows] == ["input pipeline", "step", "step with XLA"]
    for row in rows:
        assert row["traces"] <= 2, "a trace for each size"
        for which in ("first", "later"):
            assert 0 < row[which]["min"] <= row[which]["median"] <= row[which]["max"]


def test_watch_makes_a_run_and_reads_it(tmp_path):
    pytest.importorskip("plotly", reason="the page needs plotly: pip install plotly")
    result = figures(tmp_path, "watch", "--events=1000", "--workers=2", "--browser=")
    assert 1990 < result["spans"] <= 2000
    for row in (result["its address is printed"], result["its numbers are there"]):
        assert row["clock"] > 0 and row["processor"] > 0


@minutes
def test_group_compares_numbers_of_shards(tmp_path):
    (row,) = figures(tmp_path, "group", "--sizes", "1000", "--shards", "1", "2", "--turns=2",
                     "--seconds=0.01")
    assert set(row["ms"]) == set(row["ratio"]) == {"1", "2"}
    assert row["ratio"]["1"]["median"] == 1 and row["ratio"]["2"]["median"] > 0


@minutes
def test_reader_compares_two_servers(tmp_path):
    rows = figures(tmp_path, "reader", "--quick")
    assert [row["floats"] for row in rows] == [5, 148_298]
    for row in rows:
        for what in ("clock", "processor"):
            ratio = row[what]["ratio"]
            assert 0 < ratio["min"] <= ratio["median"] <= ratio["max"]


@minutes
def test_scale_counts_what_is_lost_and_how_long_a_push_waits(tmp_path):
    rows = figures(tmp_path, "scale", "--quick")
    assert [row["shards"] for row in rows] == [1, 2]
    for row in rows:
        assert row["pushes"] > 0 and row["lost"] == 0 and row["memory_mb"] > 0
        assert 0 < row["wait_ms"]["median"] <= row["wait_ms"]["99 %"] <= row["wait_ms"]["longest"]


@minutes
def test_scale_puts_sites_between_the_workers_and_the_server(tmp_path):
    (row,) = figures(tmp_path, "scale", "--quick", "--sites=3")
    assert (row["sites"], row["workers"]) == (3, 40) and row["memory_mb"] > row["top_mb"] > 0
    assert row["pushes"] > 0 and row["lost"] == 0 and row["of_sites_per_second"] > 0


@minutes
def test_rows_counts_bytes_against_the_rows_that_steps_touch(tmp_path):
    pytest.importorskip("torch", reason="it needs PyTorch")
    (row,) = figures(tmp_path, "rows", "--rows=20000", "--steps=8", "--pause=0",
                     "--runs", "bsp").values()
    assert row["steps_a_push"] == 1
    assert 1 < row["push_of_rows"] < 1.5 and 1 < row["version_of_rows"] < 1.5


@minutes
def test_frozen_compares_a_backbone_with_its_head_alone(tmp_path):
    head, late, frozen, _ = figures(tmp_path, "frozen", "--rounds=1", "--size=32",
                              "--batch_size=2").values()
    assert frozen["push_bytes"] == late["push_bytes"] == head["push_bytes"] == 4 * 2049 * 10
    assert frozen["hook_ms"] > 0


@minutes
def test_lora_compares_its_memory_with_a_plain_trainers(tmp_path):
    pytest.importorskip("peft", reason="it needs peft and transformers")
    result = figures(tmp_path, "lora", "--layers=1", "--hidden=64", "--steps=4")
    for one in (result["plain"], *result["workers"]):
        assert one["most"] >= one["steps"] > 4 * one["floats"] > 4 * one["trained"] > 0


@minutes
def test_loops_compares_kinds_with_one_worker_alone(tmp_path):
    result = figures(tmp_path, "loops", "--seeds=2", "--syncs", "bsp", "--kinds", "jax",
                     "--examples=512")
    assert set(result) == {"jax, alone", "jax, bsp"}
    assert all(len(rights) == 2 for rights in result.values())
    assert all(0.6 < right <= 1 for rights in result.values() for right in rights)
