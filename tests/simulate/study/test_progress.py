"""Progress of simulations, on a terminal and in a file."""

import io

from wbsp.simulate.study import progress
from wbsp.simulate.study.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_in_a_file_is_a_line_at_intervals(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    shown = Progress(stream)
    shown.begin("wbsp, seed 0")
    for second in range(25):
        clock[0] = 100.0 + second
        shown.update(3.0 * second, second / 50, f"version {second}")
    shown.end(90.0, "version 30")
    shown.close()
    assert stream.getvalue().splitlines() == [
        "wbsp, seed 0: 20%, virtual 30.0 s, version 10 (10 s of real time)",
        "wbsp, seed 0: 40%, virtual 60.0 s, version 20 (20 s of real time)",
        "wbsp, seed 0: 100%, virtual 90.0 s, version 30 (24 s of real time)"]


def test_a_terminal_shows_a_bar_per_run(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    shown = Progress(stream)
    for name in ("bsp, seed 0", "pcc, seed 0"):
        shown.begin(name)
        shown.update(1.0, 0.5, "version 1")
        shown.end(2.0, "version 9")
    shown.close()
    last = stream.getvalue().split("\x1b[2K")[-1]
    assert "bsp, seed 0" in stream.getvalue() and "100%" in last
    assert "pcc, seed 0" in last and "2.0 s, version 9" in last
