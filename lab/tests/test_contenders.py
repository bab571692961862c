"""What the wire benchmark measures: real processes, checked round trips, and clear ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lab.benchmarks import wire
from lab.benchmarks.contenders import memcpy
from lab.benchmarks.contenders.environment import Missing, python_with
from lab.benchmarks.contenders.team import start_team

ROOT = Path(__file__).parents[2]

minutes = pytest.mark.skipif("WBSP_BENCHMARKS" not in os.environ,
                             reason="installs peers and takes minutes: WBSP_BENCHMARKS=1")


def test_a_block_makes_at_least_the_trips_that_were_asked_for():
    with memcpy.copies(2, 10) as team:
        assert len(team.block(0.0, 3)) == 2 * 3
        assert all(seconds > 0 for seconds in team.block(0.01))


def test_a_process_that_fails_ends_the_benchmark(capfd):
    with pytest.raises(RuntimeError, match="a process of the benchmark failed"), \
            start_team(memcpy._copier, [("no size",)]):
        pass
    assert "TypeError" in capfd.readouterr().err


def test_the_processes_end_with_their_parent(tmp_path):
    """Also where that was killed, and they are at work for long."""
    script = ("from lab.benchmarks.contenders import memcpy\n"
              "with memcpy.copies(2, 10) as team: print('up', flush=True); team.block(1000.0)")
    starter = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               env={**os.environ, "TMPDIR": str(tmp_path)})
    with starter:
        try:
            assert starter.stdout.readline() == "up\n"
            team = psutil.Process(starter.pid).children()
            assert len(team) == 2
            time.sleep(0.3)  # they have begun
        finally:
            starter.send_signal(signal.SIGKILL)
    assert not psutil.wait_procs(team, timeout=20)[1]


def test_a_python_that_cannot_be_made_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(Missing, match="^cannot install six==1.16.0: .*file.*$"):
        python_with("six", "six==1.16.0")


@minutes
def test_a_package_that_cannot_be_installed_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(Missing, match="^cannot install ./no-such.whl: .*$"):
        python_with("none", "./no-such.whl")
    assert not list((tmp_path / "wbsp").iterdir())


def test_a_contender_that_does_not_fit_into_memory_is_skipped():
    row = wire._compare(10**12, 8, ["memcpy"], turns=1, seconds=0.0)
    assert "beside wbsp it would take" in row["left_out"]["memcpy"]
    assert "shared" not in row and "memcpy" not in row


def test_a_peer_that_fails_costs_nothing_but_its_own_figures(monkeypatch, capsys):
    def start(workers, size):
        raise RuntimeError("worker 0 ended with exit code 9")

    monkeypatch.setitem(wire.PEERS, "gloo", wire.Contender(start, 0, 0, 0))
    monkeypatch.setattr("sys.argv", ["wire", "--sizes=1000", "--workers=1", "--peers", "gloo",
                                     "memcpy", "--turns=1", "--seconds=0.01"])
    with pytest.raises(SystemExit, match="^lab.benchmarks.wire: not all was measured, 1 failed;"):
        wire.main()
    said = capsys.readouterr().out
    assert "failed: gloo, 0.0 MB, workers 1: worker 0 ended with exit code 9" in said
    assert "memcpy" in said


@minutes
@pytest.mark.timeout(1200)  # PyTorch is a download of 200 MB
@pytest.mark.parametrize("name", wire.PEERS)
def test_a_peer_makes_round_trips_and_checks_them(name):
    try:
        with wire.PEERS[name].start(2, 1000) as team:
            for _ in range(2):
                assert all(seconds > 0 for seconds in team.block(0.01, 3))
    except Missing as reason:
        pytest.skip(str(reason))
