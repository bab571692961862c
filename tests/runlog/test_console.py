"""The display of a run, in a file or on a terminal; its failures never end the run."""

import fcntl
import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading

import pytest
from full_disk import full_at
from jobs import ROOT

from wbsp.core.stats import Member
from wbsp.runlog.console import Console, DefaultHandler, Status, say


def status(t, cluster, **known):
    return Status(t, 1234, cluster.members, cluster.reports, **known)


def test_a_plain_line_every_few_seconds(cluster):
    out = io.StringIO()
    console = Console("wbsp", out)
    for i in range(101):
        console.update(status(i / 10, cluster, done=0.125, evaluated=1200,
                              training_loss=1.25, loss=1.5, accuracy=0.75))
    console.close()
    lines = out.getvalue().splitlines()
    assert [line[:10] for line in lines] == ["[    0.0s]", "[    5.0s]", "[   10.0s]"]
    assert lines[0] == ("[    0.0s] version 1,234 | steps 40 (12.5%) | training loss 1.2500 | "
                        "loss 1.5000, accuracy 0.7500 of version 1,200 | "
                        "worker 0: 30 60% | worker 1: 10 80%")


def test_unknown_values_are_not_shown(cluster):
    out = io.StringIO()
    cluster.reports.clear()
    cluster.members[1].active = False
    Console("wbsp", out).update(status(0.0, cluster, loss=float("nan")))
    assert out.getvalue() == ("[    0.0s] version 1,234 | steps 40 | worker 0: 30 - | "
                              "worker 1: 10 - absent\n")


@pytest.mark.parametrize("known, shown", [
    ({"training_loss": 0.25}, "training loss 0.2500"),
    ({"training_loss": float("nan"), "evaluated": 7, "accuracy": 0.5},
     "accuracy 0.5000 of version 7"),
    ({"training_loss": 0.25, "evaluated": 1200, "loss": 0.5},
     "training loss 0.2500 | loss 0.5000 of version 1,200")])
def test_a_line_has_the_loss_of_now_and_the_evaluation_with_its_version(cluster, known, shown):
    out = io.StringIO()
    Console("wbsp", out).update(status(0.0, cluster, **known))
    assert f" | steps 40 | {shown} | worker 0" in out.getvalue()


def test_many_workers_fit_in_one_line(cluster):
    out = io.StringIO()
    cluster.members |= {i: Member(active=True, steps=20 + i) for i in range(2, 64)}
    Console("wbsp", out).update(status(0.0, cluster))
    assert "63 of 64 workers" not in out.getvalue()
    assert "64 of 64 workers: 10 to 83 steps | computing 60% to 80%\n" in out.getvalue()


def test_a_warning_is_printed_at_once_with_the_time(cluster):
    out = io.StringIO()
    console = Console("wbsp", out)
    console.line("starting", 0.25)
    console.update(status(12.34, cluster))
    console.line("worker 3 is lost [/nothing]")
    assert out.getvalue().splitlines()[0] == "[    0.2s] starting"
    assert out.getvalue().splitlines()[2] == "[   12.3s] worker 3 is lost [/nothing]"


class Terminal:
    """A pseudo-terminal and its output."""

    def __init__(self):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.stream = open(slave, "w")
        self.shown = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        try:
            while part := os.read(self.master, 65536):
                self.shown += part
        except OSError:  # the other side was closed
            pass

    def text(self):
        self.stream.close()
        self._reader.join(5.0)
        return self.shown.decode()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def test_a_terminal_shows_a_live_table(terminal, cluster):
    console = Console("wbsp run-001", terminal.stream)
    for i in range(11):
        console.update(status(i / 10, cluster, done=0.5, accuracy=0.75,
                              silence={0: 2.0, 1: 0.3}.get))
    cluster.members[1].active = False
    console.line("worker 1 is lost [/nothing]")
    console.close()
    shown = terminal.text()
    assert "wbsp run-001" in shown and "version 1,234" in shown and "50.0%" in shown
    assert "[    1.0s] worker 1 is lost [/nothing]" in shown
    pictures = shown.split("samples/s")
    # At 0.0, 0.5 and 1.0 s, again below the line, and at the end.
    assert 4 <= len(pictures) - 1 <= 6
    row = next(line for line in pictures[1].splitlines() if "│      1 │" in line)
    assert [cell.strip() for cell in row.split("│")[1:-1]] == [
        "1", "10", "25.0", "25%", "100%", "80%", "0.3 s ago"]
    assert "absent" in pictures[-1] and "absent" not in pictures[1]


def test_the_lines_are_in_a_file_too_for_any_terminal(terminal, cluster, tmp_path):
    path = tmp_path / "console.log"
    for number in range(2):  # the second one resumes the run
        console = Console("wbsp run-001", terminal.stream, path)
        console.note(f"start {number}")
        for i in range(6):
            console.update(status(float(i), cluster))
        console.line("worker 1 is lost")
        assert "worker 1 is lost" in path.read_text(), "before the run ends"
        console.release()
        console.result("wbsp: 40 steps\n")
        console.close()
        console.line("too late")
    shown = ("[    0.0s] version 1,234 | steps 40 | worker 0: 30 60% | worker 1: 10 80%",
             "[    5.0s] version 1,234 | steps 40 | worker 0: 30 60% | worker 1: 10 80%",
             "[    5.0s] worker 1 is lost", "wbsp: 40 steps")
    assert path.read_text().splitlines() == ["start 0", *shown, "start 1", *shown]


def test_the_file_has_a_limit(monkeypatch, tmp_path):
    monkeypatch.setattr("wbsp.runlog.console.MOST", 40)
    out, path = io.StringIO(), tmp_path / "console.log"
    console = Console("wbsp", out, path)
    for number in range(5):
        console.line(f"line {number}")
    console.close()
    assert path.read_text() == "[    0.0s] line 0\n[    0.0s] line 1\n[    0.0s] line 2\n"
    assert len(re.findall(r"line \d", out.getvalue())) == 5
    assert len(re.findall(r"console.log has reached .* MiB, and ends here", out.getvalue())) == 1


def test_a_dumb_terminal_shows_plain_lines(terminal, cluster, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    console = Console("wbsp", terminal.stream)
    console.update(status(0.0, cluster))
    console.close()
    assert terminal.text().startswith("[    0.0s] version 1,234")


def test_a_terminal_that_goes_away_does_not_end_the_run(monkeypatch, cluster):
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    stream = os.fdopen(slave, "w", buffering=1)
    console = Console("wbsp", stream)
    console.update(status(0.0, cluster))
    os.close(master)
    with pytest.raises(OSError):  # the terminal is indeed gone
        os.write(slave, b"x")
    console.update(status(10.0, cluster))
    console.line("nobody reads this")
    console.close()
    print("others still print")


def test_a_broken_pipe_does_not_end_the_run(cluster):
    read, write = os.pipe()
    os.close(read)
    console = Console("wbsp", open(write, "w", closefd=False))
    console.line("nobody reads this")
    console.update(status(0.0, cluster))
    console.close()
    os.close(write)


def test_a_closed_stream_does_not_end_the_run(cluster):
    out = io.StringIO()
    console = Console("wbsp", out)
    out.close()
    console.line("nobody reads this")
    console.update(status(0.0, cluster))
    console.close()


def test_lines_are_printed_again_after_a_full_disk(tmp_path):
    path = tmp_path / "ps.log"
    with open(path, "w") as out:
        console = Console("wbsp", out)
        with full_at(100):
            for second in range(20):
                console.line("x" * 20, second)
        console.line("there is room again", 20.0)
        console.close()
    assert path.read_text().endswith("\n[   20.0s] there is room again\n")


@pytest.fixture
def logger():
    """The logger "wbsp"; its configuration is restored after the test."""
    logger = logging.getLogger("wbsp")
    before = logger.handlers[:], logger.propagate, logger.level
    yield logger
    logger.handlers[:], logger.propagate, logger.level = before


def unconfigured(logger):
    """Remove pytest's handlers, which come with the call of a test."""
    logger.handlers[:] = [DefaultHandler()]


@pytest.fixture
def records():
    """A handler of a program's own; `records.lines` are the lines that the handler received."""
    class Kept(logging.Handler):
        def emit(self, record):
            kept.lines.append(self.format(record))

    kept = Kept()
    kept.lines = []
    kept.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    yield kept
    logging.getLogger().removeHandler(kept)


def test_an_unprintable_line_does_not_stop_the_others(tmp_path, logger):
    unconfigured(logger)
    with full_at(3), open(tmp_path / "wk.log", "wb", buffering=0) as raw:
        say("nobody reads this", io.TextIOWrapper(raw, write_through=True))
    out = io.StringIO()
    out.close()
    say("nor this", out)


def test_a_line_of_the_library_is_printed_once_with_any_root_logger(capsys, logger, records):
    unconfigured(logger)
    logging.getLogger().addHandler(records)
    say("worker 0: 100 %s")
    say("summary", sys.stdout)
    assert capsys.readouterr() == ("summary\n", "worker 0: 100 %s\n")
    assert records.lines == []


def test_a_handler_of_the_programs_own_takes_the_place_of_printing(capsys, logger, records):
    unconfigured(logger)
    logger.addHandler(records)
    say("worker 0: done")
    say("summary", sys.stdout)
    assert records.lines == ["wbsp INFO worker 0: done", "wbsp INFO summary"]
    assert capsys.readouterr() == ("", "")


def test_propagation_takes_the_place_of_printing(capsys, logger, records):
    unconfigured(logger)
    logging.getLogger().addHandler(records)
    logger.propagate = True
    say("worker 0: done")
    assert records.lines == ["wbsp INFO worker 0: done"]
    assert capsys.readouterr() == ("", "")


def test_a_level_silences_the_library(capsys, logger):
    unconfigured(logger)
    logger.setLevel(logging.WARNING)
    say("worker 0: done")
    assert capsys.readouterr() == ("", "")


def test_a_logger_configured_before_the_import_stays_as_it_is():
    code = ("import logging, sys; logger = logging.getLogger('wbsp'); "
            "logger.addHandler(logging.StreamHandler(sys.stdout)); logger.setLevel('ERROR'); "
            "from wbsp.runlog.console import say; say('nobody hears this'); "
            "logger.setLevel('INFO'); say('once'); "
            "assert len(logger.handlers) == 1 and logger.propagate")
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("once\n", "")
