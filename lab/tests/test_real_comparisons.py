"""The scripts that train with real processes, model after model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from wbsp.figures import find_runs

LAB = Path(__file__).parents[1]


def run(script: str, *flags: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, LAB / script, *flags], timeout=300,
                          capture_output=True, text=True,
                          env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})


@pytest.mark.skipif("WBSP_REPORTS" not in os.environ,
                    reason="of scripts that make reports: WBSP_REPORTS=1")
def test_real_runs_and_their_twins_make_the_same_steps(tmp_path, monkeypatch):
    """Under the first of these nobody fetches anything."""
    flags = ("--sync=asp:refresh=published,pcc:weight=work", "--heterogeneity=H1", "--epochs=1",
             "--target_accuracy=0.999", "--test_images=500", "--check_period=60",
             "--band_width_limit=50", f"--out={tmp_path}")
    done = run("compare_reality.py", *flags)
    assert done.returncode == 0, done.stderr
    head, _, *rows = (line.strip("| ").split(" | ") for line in done.stdout.splitlines())
    said = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["model"] for row in said] == ["asp refresh=published", "pcc weight=work"]
    for row in said:
        assert row["seconds to 99.9 %"] == "- / -"
        steps = [tuple(int(n.replace(",", "")) for n in worker.split(" (")[0].split(" / "))
                 for worker in row["steps of each worker"].split("), ")]
        assert len(steps) == 2 and all(abs(real - twin) <= 2 + real / 10 for real, twin in steps)
    monkeypatch.syspath_prepend(LAB)
    from reproduction.real import measured

    for real in find_runs([tmp_path / "real"]):  # a sleep before a step is a part of it
        assert [len(group.trace) for group in measured(real, 1).groups] == [
            one["steps"] for _, one in sorted(real.summary["workers"].items())]
    again = run("compare_reality.py", *flags)
    assert again.stdout == done.stdout, again.stderr
    other = run("compare_reality.py", *flags, "--epochs=2")
    assert other.returncode == 1 and "has a run with other flags" in other.stderr
    made = sorted(path.parent.name for path in tmp_path.glob("*/**/run-*"))
    assert made == 2 * ["asp-refresh=published"] + 2 * ["pcc-weight=work"], "none is repeated"


def test_a_server_that_fails_ends_all_at_once(tmp_path):
    done = run("compare_models.py", "extra", f"--out={tmp_path}")
    assert done.returncode == 1
    assert done.stderr == ("compare_models: unknown argument 'extra'; flags are written "
                           "--name=value\n")
    done = run("compare_models.py", "--sync=bsp", "--epochs=-1", "--seeds=1", f"--out={tmp_path}")
    assert done.returncode == 1 and "exit codes [2, None, None]" in done.stderr


@pytest.mark.parametrize("script", ["compare_models.py", "compare_reality.py"])
@pytest.mark.parametrize("models, words", [
    ("pcc,rumour", "unknown synchronization model 'rumour'"),
    ("pcc:wait=1", "pcc"),
])
def test_bad_input_gets_one_line_before_anything_runs(script, models, words, tmp_path):
    done = run(script, f"--sync={models}", f"--out={tmp_path}")
    assert done.returncode == 1
    assert words in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("script", ["compare_models.py", "compare_reality.py",
                                    "draw_timelines.py"])
def test_a_place_that_cannot_be_written_to_gets_one_line(script, tmp_path):
    (tmp_path / "file").touch()
    done = run(script, f"--out={tmp_path}/file/below/it.png")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "Not a directory" in line]
    assert line.startswith(("compare_models: ", "draw_timelines: "))
