"""The supervisor of a run: its server, and its workers on this machine, from start to end.

The workers of each other machine are one more process here: the connection to their supervisor.

It has one thread, so that a process can be started safely at any time, and a signal is handled
between two turns of its loop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import wait
from types import FrameType
from typing import Any

from wbsp import timeouts
from wbsp.process.signals import COMPLETE, SIGNALS, Interrupts
from wbsp.run.hosts import ALIVE, Host
from wbsp.run.log import ServerLines
from wbsp.run.member import Member, exit_code, how
from wbsp.run.process import Keeper, Process
from wbsp.run.screen import Screen

# Exit codes of a server whose run has ended cleanly: by itself, by SIGINT, by SIGTERM.
_IN_ORDER = (0, *(128 + signum for signum in SIGNALS))
_LOOK = 0.5  # seconds between two checks of what is due
_TWICE = 0.1  # seconds within which a second signal is the first one, which came by two ways


class Supervisor:
    """All processes of one run that are started here.

    Args:
        server: of the run; None: it runs elsewhere.
        log: the server's reports.
        workers: of this machine, and the other machines.
        alone: the run has no other workers.
        names: of all processes whose lines are shown together with this machine's.
        place: this machine's name, if another one has started this supervisor, by the connection
            at standard input; see `hosts.py`.
    """

    def __init__(self, server: Member | None, log: ServerLines, workers: Sequence[Member],
                 alone: bool, names: Sequence[str] = (), place: str = ""):
        self._server, self._log, self._workers, self._alone = server, log, workers, alone
        self._hosts = [worker for worker in workers if isinstance(worker, Host)]
        self._members = [*([server] if server else []), *workers]
        self._place = place
        self._screen = Screen([*(member.name for member in self._members), *names], place)
        self._served = True  # by a server elsewhere, as far as is known
        self._words = b""  # from there, the newest without its end
        self._heard = time.monotonic()  # when they came
        self._beat = 0.0  # when to give the next sign of life
        self._left: list[Process] = []  # that run, or whose children may
        self._interrupts = Interrupts()
        self._interrupted = 0.0  # when
        self._wake = os.pipe()
        self._keeper = Keeper()
        self._code = 0  # the first one that is not 0
        self._notes: list[str] = []  # on processes that did not end well
        self._stopping: float | None = None  # when to kill a process that was asked to end
        self._failed: float | None = None  # when to end the workers of a server that has failed
        self._idle: float | None = None  # since when no worker runs
        self._told = 0  # `serves` of the server that knows that no other worker will come
        self._abandoned = False  # the server was to end, because no worker runs
        self._doubted = False  # whether the script joins a run at all

    def run(self) -> int:
        """Supervise the run from start to end; return its exit code."""
        try:
            with self._signals():
                while not all(member.over for member in self._members) or self._left:
                    self._turn()
        finally:
            self._kill()
            self._keeper.close()
            for end in self._wake:
                os.close(end)
        first = self._interrupts.first
        if not self._place and (self._server is None or self._log.listens):
            self.say(self._summary())
        return self._code if first is None else 128 + first

    def say(self, text: str) -> None:
        """Print a line."""
        self._screen.say(text)

    # The loop

    def _turn(self) -> None:
        """Start the due processes, wait for events for a moment, and handle them."""
        self._pass_on()
        for member in self._members:
            if member.due is not None and time.monotonic() >= member.due and self._may(member):
                self._left.append(member.start(self._keeper, self._screen))
        if not (self._awaits_hosts or self._awaits_server):
            for host in self._hosts:
                host.go_on()
        streams: dict[Any, Process] = {
            stream: process for process in self._left for stream in process.streams}
        waited: list[Any] = [*streams, self._wake[0], *([0] if self._place else [])]
        for ready in wait(waited, _LOOK):
            stream: Any = ready
            if stream in streams:
                streams[stream].read(stream)
            elif stream == 0:
                self._listen()
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

    def _may(self, member: Member) -> bool:
        """Return whether to start this process: other machines first, and workers last."""
        return member in self._hosts or not (self._awaits_hosts or (
            member is not self._server and self._awaits_server))

    @property
    def _awaits_hosts(self) -> bool:
        """Whether another machine has not answered yet."""
        return not all(host.reached for host in self._hosts)

    @property
    def _awaits_server(self) -> bool:
        """Whether the server does not listen yet."""
        return self._server is not None and not (self._log.listens or self._server.over)

    def _listen(self) -> None:
        """Take the words of the supervisor that has started this one. Raises ConnectionError."""
        data = os.read(0, 4096)
        if not data:
            raise ConnectionError("the connection has ended")
        self._heard = time.monotonic()
        *words, self._words = (self._words + data).split(b"\n")
        for word in words:
            if word == b"over":
                self._served = False
            elif word.startswith(b"signal "):
                self._interrupt(int(word[7:]), None)

    def _judge(self, now: float) -> None:
        """End processes without a purpose, and those that take too long to start or to end."""
        if self._place:
            if now - self._heard > timeouts.HOST_SILENT:
                raise ConnectionError("the connection is silent")
            if now >= self._beat:
                self._beat = now + timeouts.HOST_BEAT
                self._screen.pass_on(ALIVE, errors=False)
        for member in self._members:
            late = (isinstance(member, Host) and not member.reached) or (
                member is self._server and self._awaits_server)
            if late and member.process and not member.process.code and (
                    member.process.lived > timeouts.PROCESS_START):
                self._fail(f"{member.called} has not answered within {timeouts.PROCESS_START:g} s")
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
        if self._stopping:
            return
        if server is not None and not self._log.joined and not self._doubted and any(
                worker.process is not None and not worker.over
                and worker.process.lived > timeouts.UNJOINED for worker in self._workers):
            self._doubted = True
            self.say(f"no worker has joined the run within {timeouts.UNJOINED:g} s; a script "
                     "without a wbsp.SyncCallback or a wbsp.Worker joins none: each of its "
                     "processes trains alone")
        if server is not None and server.code == 0:
            self._end_the_late(now)
        if server.over if server is not None else not self._served:
            for worker in self._workers:
                if worker.due is not None and worker.process is not None:
                    self._over(worker, worker.process.code or 0, f"not restarting {worker.name}: "
                               "its server has ended")
        elif server is not None and all(worker.over for worker in self._workers):
            self._end_server(server, now)
        elif server is not None and self._alone and server.due is None:
            self._begin_without(server)

    def _end_the_late(self, now: float) -> None:
        """End processes that were started again, and had not joined when the server ended."""
        for worker in self._workers:
            process = worker.process
            if (process is not None and worker.due is None and not worker.over and worker.numbers
                    and worker.restarts.made and all(
                        self._log.here.get(number, 0.0) < now - process.lived
                        for number in worker.numbers)):
                self.say(f"{worker.called} was started again too late: the run has ended without "
                         "it; ending it")
                worker.ends(0)
                process.kill()

    def _begin_without(self, server: Member) -> None:
        """Let training begin without workers that are out and had not joined, once all others have.
        """
        def numbers(wanted: Callable[[Member], object]) -> set[int]:
            return {number for worker in self._workers if wanted(worker)
                    for number in worker.numbers}

        here = self._log.here.keys()
        living = numbers(lambda worker: not worker.over)
        if (self._told != self._log.serves and living and living <= here
                and numbers(lambda worker: worker.code) - here):
            self._told = self._log.serves
            server.signal(COMPLETE)

    def _end_server(self, server: Member, now: float) -> None:
        """End the server, whose workers have ended, unless it does so by itself."""
        if server.due is not None and server.process is not None:
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
        if member is self._server:
            for host in self._hosts:
                if code >= 0:
                    host.tell_over()
        if self._stopping is not None or code == 0:
            member.ends(code)
        elif member is self._server:
            self._server_ended(member, code, lived)
        elif isinstance(member, Host) and not member.reached:
            member.ends(code)
            self._fail(member.refusal(code))
        elif (loss := member.loss(code)) is not None:
            self._again(member, code, loss, lived, "restarting it" if code < 0 else
                        "connecting again")
        elif isinstance(member, Host):  # it has printed the reason
            member.ends(code)
            self._code = self._code or code
        else:
            self._over(member, code, f"{member.called} ended with exit code {code}"
                       f"{self._others_go_on(member)}")

    def _server_ended(self, server: Member, code: int, lived: float) -> None:
        ended = all(worker.over for worker in self._workers)
        if code in _IN_ORDER:
            self._over(server, code, f"the server has ended the run with exit code {code}")
        elif ended or (code > 0 and self._log.summary is not None):
            self._over(server, code, f"the server {how(code)}")
        elif code < 0:
            self._again(server, code, f"the server {how(code)}", lived, "restarting it with "
                        "--resume; the workers wait for it")
            if server.over:
                self._fail("the run has lost its server", code)
        else:
            server.ends(code)
            self._fail(f"the server {how(code)}", code)

    def _again(self, member: Member, code: int, loss: str, lived: float, does: str) -> None:
        """Start a process again that was lost, or give it up."""
        pause = member.restarts.after(lived)
        if pause is None:
            self._over(member, code, f"{loss}; giving it up by "
                       f"--max_restarts={member.restarts.most}{self._others_go_on(member)}")
            return
        after = f" in {pause:g} s" if pause else ""
        self.say(f"{loss}; {does}{after}")
        member.starts_again(pause)

    def _over(self, member: Member, code: int, line: str) -> None:
        """Note that a process is not started again."""
        member.ends(code)
        self._notes.append(f"{member.called} {how(code)}")
        self._code = self._code or exit_code(code)
        self.say(line)

    def _others_go_on(self, member: Member) -> str:
        others = any(not one.over for one in self._workers if one is not member)
        return "; the others continue" if others and member is not self._server else ""

    def _fail(self, line: str, code: int = 1) -> None:
        """End the run, because its server or a machine has failed."""
        self._code = self._code or exit_code(code)
        if self._failed is None:
            begun = self._log.listens
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
        self._interrupts.end_with(self._kill)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakes)
            for signum, act in before.items():
                signal.signal(signum, act)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        """Take a signal; the second ends everything at once.

        One cause may send several: a shell that ends sends SIGHUP in addition to the kernel, and
        `timeout` sends its signal to a process and to its group.
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
            if not self._place:
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
        reason = None if summary is None else str(summary.get("reason", "the run has ended"))
        if self._abandoned and self._log.joined and (
                reason is None or reason.startswith("interrupted")):  # by the signal from here
            parts.append("no worker is left")
        elif reason is not None:
            parts.append(reason)
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


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")
