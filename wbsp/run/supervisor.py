"""The supervisor of a run on this machine: its server and its workers, from start to end.

It has one thread, so that a process can be started safely at any time, and a signal is handled
between two turns of its loop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from types import FrameType
from typing import Any, NamedTuple

from wbsp import timeouts
from wbsp.process.restarts import Restarts
from wbsp.process.signals import SIGNALS, Interrupts
from wbsp.run.log import ServerLines
from wbsp.run.process import Keeper, Process
from wbsp.run.screen import Screen

# Exit codes of a server whose run has ended cleanly: by itself, by SIGINT, by SIGTERM.
_IN_ORDER = (0, *(128 + signum for signum in SIGNALS))
_LOOK = 0.5  # seconds between two looks at what is due
_TWICE = 0.1  # seconds within which a second signal is the first one, which came by two ways


class Command(NamedTuple):
    """How to start a process."""

    words: Sequence[str]
    environment: Mapping[str, str]


class Member:
    """The server or a worker, over all its starts.

    Attributes:
        name: before its lines.
        called: its name in a sentence.
        restarts: counts its deaths.
        heard: called with each line of its standard error.
        process: its newest process; None: it was not started yet.
        due: when to start it; None: it runs, or has ended.
        code: its exit code, negative: of a signal; None: it runs, or will be started again.
    """

    def __init__(self, name: str, command: Callable[[bool], Command], most: int,
                 heard: Callable[[str], None] | None = None):
        """Prepare.

        Args:
            name: before its lines.
            command: returns how to start it; its argument: it has run before.
            most: restarts in a row until it is given up.
            heard: see above.
        """
        self.name, self._command, self._heard = name, command, heard
        self.called = "the server" if name == "server" else name  # in a sentence
        self.restarts = Restarts(most)
        self.process: Process | None = None
        self.due: float | None = time.monotonic()
        self.code: int | None = None

    @property
    def over(self) -> bool:
        return self.code is not None

    def start(self, keeper: Keeper, screen: Screen) -> Process:
        """Start it; return the process."""
        def show(line: bytes, errors: bool) -> None:
            screen.show(self.name, line, errors)
            if errors and self._heard is not None:
                self._heard(line.decode(errors="replace"))

        words, environment = self._command(self.process is not None)
        self.due = None
        self.process = Process(words, environment, keeper, show)
        return self.process

    def signal(self, signum: int) -> None:
        """Send it a signal; if it waits for its next start, that is its end."""
        if self.due is not None:
            self.due, self.code = None, 0
        elif self.process is not None:
            self.process.signal(signum)


class Supervisor:
    """All processes of one run on this machine.

    Args:
        server: of the run; None: it runs elsewhere.
        log: what the server has said.
        workers: of this machine.
        alone: the run has no other workers.
    """

    def __init__(self, server: Member | None, log: ServerLines, workers: Sequence[Member],
                 alone: bool):
        self._server, self._log, self._workers, self._alone = server, log, workers, alone
        self._members = [*([server] if server else []), *workers]
        self._screen = Screen(member.name for member in self._members)
        self._left: list[Process] = []  # that run, or whose children may
        self._interrupts = Interrupts()
        self._interrupted = 0.0  # when
        self._wake = os.pipe()
        self._keeper = Keeper()
        self._code = 0  # the first one that is not 0
        self._notes: list[str] = []  # on processes that did not end well
        self._stopping: float | None = None  # when to kill what was asked to end
        self._failed: float | None = None  # when to end the workers of a server that has failed
        self._idle: float | None = None  # since when no worker runs
        self._abandoned = False  # the server was to end, because no worker runs

    def run(self) -> int:
        """Supervise the run from start to end; return its exit code."""
        try:
            with self._signals():
                begun = time.monotonic()
                while not all(member.over for member in self._members) or self._left:
                    self._turn()
                    if self._awaits_server and time.monotonic() - begun > timeouts.PROCESS_START:
                        self._fail(f"the server does not listen within {timeouts.PROCESS_START:g} "
                                   "s; ending it")
        finally:
            self._kill()
            self._keeper.close()
            for end in self._wake:
                os.close(end)
        first = self._interrupts.first
        self._screen.say(self._summary())
        return self._code if first is None else 128 + first

    def say(self, text: str) -> None:
        """Print a line."""
        self._screen.say(text)

    # The loop

    def _turn(self) -> None:
        """Start what is due, wait for news for a moment, and handle it."""
        self._pass_on()
        for member in self._members:
            if member.due is not None and time.monotonic() >= member.due and not (
                    member in self._workers and self._awaits_server):
                self._left.append(member.start(self._keeper, self._screen))
        streams: dict[Any, Process] = {
            stream: process for process in self._left for stream in process.streams}
        waited: list[Any] = [*streams, self._wake[0]]
        for ready in wait(waited, _LOOK):
            stream: Any = ready
            if stream in streams:
                streams[stream].read(stream)
            else:
                os.read(self._wake[0], 4096)
        for member in self._members:
            process = member.process
            if process is not None and member.due is None and not member.over and process.poll():
                process.drain()
                assert process.code is not None
                self._ended(member, process.code, process.lived)
        self._left = [process for process in self._left if not process.gone()]
        self._judge(time.monotonic())

    @property
    def _awaits_server(self) -> bool:
        """Whether the server does not listen yet."""
        return self._server is not None and not (self._log.listens or self._server.over)

    def _judge(self, now: float) -> None:
        """End what has no purpose any more, and what takes too long to end."""
        if self._failed is not None and now >= self._failed and not self._stopping:
            self._stop(signal.SIGTERM)
        if self._stopping is not None and now >= self._stopping:
            slow = [member.called for member in self._members if not member.over]
            if slow:
                self.say(f"not ended within {timeouts.PROCESS_STOP:g} s: {', '.join(slow)}; "
                         "killing them")
            self._kill()
            self._stopping = float("inf")
        server = self._server
        if server is None or self._stopping:
            return
        if server.over:
            for worker in self._workers:
                if worker.due is not None and worker.process is not None:
                    worker.due = None
                    self._over(worker, worker.process.code or 0, f"not restarting {worker.name}: "
                               "its server has ended")
        elif all(worker.over for worker in self._workers):
            self._end_server(server, now)

    def _end_server(self, server: Member, now: float) -> None:
        """End the server, whose workers have ended, unless it does so by itself."""
        if server.due is not None and server.process is not None:
            server.due = None
            self._over(server, server.process.code or 0, "not restarting the server: its workers "
                       "have ended")
            return
        if self._idle is None:
            self._idle = now
            if not self._alone:
                self.say("this machine's workers have ended; the server continues for the others; "
                         "Ctrl-C ends it")
        if self._alone and (not self._log.joined or now - self._idle > timeouts.WORKERS_ENDED):
            self._abandoned = True
            self._code = self._code or int(not self._log.joined)
            self._stop(signal.SIGTERM)

    # Ends of processes

    def _ended(self, member: Member, code: int, lived: float) -> None:
        """Decide about a process that has ended, `lived` seconds after its start."""
        if self._stopping is not None or code == 0:
            member.code = code
        elif member is self._server:
            self._server_ended(member, code, lived)
        elif code > 0:
            self._over(member, code, f"{member.called} ended with exit code {code}"
                       f"{self._others_go_on(member)}")
        else:
            self._again(member, code, lived, "restarting it")

    def _server_ended(self, server: Member, code: int, lived: float) -> None:
        ended = all(worker.over for worker in self._workers)
        if code in _IN_ORDER:
            self._over(server, code, f"the server has ended the run with exit code {code}")
        elif ended or (code > 0 and self._log.summary is not None):
            self._over(server, code, f"the server {_how(code)}")
        elif code < 0:
            self._again(server, code, lived, "restarting it with --resume; the workers wait for "
                        "it")
            if server.over:
                self._fail("the run has lost its server", code)
        else:
            server.code = code
            self._fail(f"the server {_how(code)}", code)

    def _again(self, member: Member, code: int, lived: float, does: str) -> None:
        """Start a process that was killed again, or give it up."""
        pause = member.restarts.after(lived)
        if pause is None:
            self._over(member, code, f"{member.called} was {_killed(code)}; giving it up by "
                       f"--max_restarts={member.restarts.most}{self._others_go_on(member)}")
            return
        after = f" in {pause:g} s" if pause else ""
        self.say(f"{member.called} was {_killed(code)}; {does}{after}")
        member.due = time.monotonic() + pause

    def _over(self, member: Member, code: int, line: str) -> None:
        """Note that a process is not started again."""
        member.code = code
        self._notes.append(f"{member.called} {_how(code)}")
        self._code = self._code or _exit_code(code)
        self.say(line)

    def _others_go_on(self, member: Member) -> str:
        others = any(not one.over for one in self._workers if one is not member)
        return "; the others continue" if others and member is not self._server else ""

    def _fail(self, line: str, code: int = 1) -> None:
        """End the run, because its server has failed."""
        self._code = self._code or _exit_code(code)
        if self._failed is None:
            begun = any(worker.process for worker in self._workers)
            self._failed = time.monotonic() + (timeouts.SERVER_FAILED if begun else 0.0)
            self.say(line + ("; ending the workers" if begun else ""))

    # Signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Handle signals in the body, and wake the loop by each, and by each end of a process."""
        taken: dict[int, Callable[[int, FrameType | None], None]] = {
            **dict.fromkeys(SIGNALS, self._interrupt), signal.SIGCHLD: lambda *_: None}
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # else: nohup
            taken[signal.SIGHUP] = self._interrupt
        for end in self._wake:
            os.set_blocking(end, False)
        before = {signum: signal.signal(signum, act) for signum, act in taken.items()}
        wakes = signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)
        self._interrupts.at_once.append(self._kill)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakes)
            for signum, act in before.items():
                signal.signal(signum, act)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        """Take a signal; the second ends everything at once.

        A shell that ends sends SIGHUP beside the kernel's, and `timeout` sends its signal to a
        process and to its group.
        """
        now = time.monotonic()
        if self._interrupts.first is not None and (
                signum == signal.SIGHUP or now - self._interrupted < _TWICE):
            return
        self._interrupted = now
        self._interrupts.take(signum, frame)

    def _pass_on(self) -> None:
        """Pass the first signal on."""
        first = self._interrupts.first
        if first is not None and self._stopping is None:
            self.say(f"{signal.Signals(first).name}: ending the run in good order; a second "
                     "signal ends it at once")
            self._stop(signal.SIGTERM if first == signal.SIGHUP else first)

    def _stop(self, signum: int) -> None:
        """Ask all processes to end."""
        self._stopping = time.monotonic() + timeouts.PROCESS_STOP
        for member in self._members:
            if not member.over:
                member.signal(signum)

    def _kill(self) -> None:
        """Kill all processes, at once."""
        for process in self._left:
            process.kill()

    # The end

    def _summary(self) -> str:
        """Return what has happened, in one line."""
        summary = self._log.summary
        parts = []
        first = self._interrupts.first
        if self._log.joined and self._abandoned:
            parts.append("no worker is left")
        elif summary is not None:
            parts.append(str(summary.get("reason", "the run has ended")))
        elif self._server is not None:
            parts.append(f"ended by {signal.Signals(first).name}" if first is not None else
                         "the run has not ended" if self._log.joined else
                         "no worker joined the run" + (
                             ": does the script have a wbsp.SyncCallback or a wbsp.Worker?"
                             if all(worker.code == 0 for worker in self._workers) else ""))
        for member in self._members:
            if made := member.restarts.made:
                parts.append(f"{member.called} was restarted {_times(made)}")
        parts += self._notes
        if self._log.joined and self._log.folder is not None:
            parts.append(f"the files are in {self._log.folder}")
        return "; ".join(parts) or "all workers have ended"


def _killed(code: int) -> str:
    """Return the signal of a negative exit code in words."""
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def _how(code: int | None) -> str:
    """Return how a process has ended, by its exit code."""
    return f"was {_killed(code)}" if code and code < 0 else f"ended with exit code {code}"


def _exit_code(code: int) -> int:
    """Return the code to exit with for a process's, which is negative for a signal."""
    return 128 - code if code < 0 else code


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")
