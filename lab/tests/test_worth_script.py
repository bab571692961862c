"""lab/worth.py: what it prints and draws of trainings that have ended."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CELLS = sorted((ROOT / "lab/reports/cells").glob("*.toml"))


def worth(*flags: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, ROOT / "lab/worth.py", *flags], timeout=300,
                          capture_output=True, text=True)


def write(folder: Path, seconds: float) -> None:
    """Write the files of a run whose looks rise by a point in `seconds`, from 55 to 69.5 %."""
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text("{}")
    looks = [{"t": seconds * n, "accuracy": 0.551 + 0.01 * n} for n in range(14)]
    looks += [{"t": seconds * n, "accuracy": 0.695} for n in range(14, 18)]
    (folder / "events.jsonl").write_text("".join(json.dumps(look) + "\n" for look in looks))


def test_tables_show_times_and_worth_next_to_the_bounds_by_speeds_and_noise(tmp_path):
    write(tmp_path / "seed-0/lone-50/64-0.025-5", 5)
    write(tmp_path / "seed-0/lone-50-qhm/64-0.025-7", 4)
    write(tmp_path / "seed-0/equal-8/auto/32-0.05-10", 1)
    write(tmp_path / "seed-0/equal-4/auto/32-0.05-10", 2)
    done = worth("--table", f"--out={tmp_path}", "--models=auto", "--trainings=32-0.05-10",
                 f"--cells=equal-8,{ROOT}/lab/reports/cells/equal-4.toml",
                 f"--figure={tmp_path}/f.png")
    assert done.returncode == 0, done.stderr
    *_, eight, four = done.stdout.splitlines()
    # The mean of three looks has a quality with the look that has a point more.
    assert eight == ("| equal-8: R 8.00, the noise allows 3.7 | 6.0 (4.0) | 8.0 (4.0) | "
                     "10.0 (4.0) | 12.0 (4.0) | 14.0 (4.0) | 69.5 |")
    assert four == ("| equal-4: R 4.00, the noise allows 2.7 | 12.0 (2.0) | 16.0 (2.0) | "
                    "20.0 (2.0) | 24.0 (2.0) | 28.0 (2.0) | 69.5 |")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


def test_each_cell_of_the_report_is_a_cluster_file(tmp_path):
    assert CELLS
    done = worth("--table", f"--out={tmp_path}", f"--cells={','.join(map(str, CELLS))}")
    assert done.returncode == 0, done.stderr
    for cell in CELLS:
        assert f"\n{cell.stem}: R " in done.stdout


@pytest.mark.parametrize("flag, words", [
    ("--models=rumour", "unknown synchronization model 'rumour'"),
    ("--models=pcc:outer=rumour", "unknown outer optimizer 'rumour'"),
    ("--optimizer=rumour", "sgd, nesterov, adam"),
    ("--trainings=32-0.05", "--trainings: '32-0.05' is not batch-rate-epochs"),
    ("--lone=a-b-c", "--lone: 'a-b-c' is not batch-rate-epochs"),
    ("--cells=rumour", "cluster file rumour does not exist"),
])
def test_bad_input_gets_a_line(flag, words, tmp_path):
    done = worth("--table", f"--out={tmp_path}", flag)
    assert done.returncode != 0
    assert words in done.stderr and "Traceback" not in done.stderr
