"""Time and traffic of one worker: totals, phases of the compute thread, and the worker's log."""

from __future__ import annotations

from collections.abc import Callable

import psutil

from wbsp.core.stats import Phase, PhaseTimer, Report
from wbsp.process.host import HOST, Host
from wbsp.process.throttle import Throttle
from wbsp.runlog.worker import WorkerLog

_WORKS = 0.02  # of a second of processor time a second: a process that hangs uses less
PERIOD = 0.5  # seconds between two samples: processor time is counted in hundredths
_BRIEF = 1e-4  # seconds: shorter phases around a step are booked, but no span of the timeline
_AROUND: tuple[Phase, ...] = "data", "callbacks"


class Recorder:
    """Totals of one worker in one run; used by the compute thread and the communication thread.

    Each total is written by one thread: pushes and pulls by the communication thread, all others by
    the compute thread. Both may read all of them, by `report`. While the compute thread waits, the
    communication thread enters its phases.
    """

    def __init__(self, run_time: float, log: WorkerLog | None = None,
                 on: Host = HOST):
        """Start; `run_time`: present seconds since the run's time zero."""
        self._clock = on.clock
        self._offset = self._clock.monotonic() - run_time  # of the run's time zero
        self._log = log
        self._lock = on.scheduler.lock()  # of the timer
        self._phase: Phase = "wait"
        self._step_began = 0.0
        self._timer = PhaseTimer(self.now(), self._phase)
        self._totals = Report()
        self._final: Report | None = None
        self._looked = self._clock.monotonic(), self._clock.processor()

    def now(self) -> float:
        """Return the seconds since the run's time zero, which all processes of the run share."""
        return self._clock.monotonic() - self._offset

    def report(self) -> Report:
        """Return the totals so far, until `close`."""
        if self._final is not None:
            return self._final
        with self._lock:
            return self._totals.with_seconds(self._timer.at(self.now()))

    def close(self) -> None:
        """Stop counting, at the end of training."""
        self._final = self.report()

    # Used by the compute thread.

    @property
    def phase(self) -> Phase:
        """Present phase."""
        return self._phase

    def enter(self, phase: Phase) -> None:
        """Begin a phase, unless it is the present one."""
        if phase == self._phase:
            return
        with self._lock:
            now = self.now()
            seconds = self._timer.switch(phase, now)
        if self._log and (seconds >= _BRIEF or self._phase not in _AROUND):
            self._log.span("compute", self._phase, now - seconds, now)
        self._phase = phase

    def step_begins(self, phase: Phase) -> None:
        """Enter the phase; before the first step, discard those of the start-up."""
        if self._totals.steps:
            self.enter(phase)
        else:
            with self._lock:
                self._phase = phase
                self._timer = PhaseTimer(self.now(), self._phase)
        self._step_began = self._timer.since

    def step_ends(self) -> float:
        """Enter the phase `push`; return the seconds since the step began, in all phases."""
        self.enter("push")
        return self._timer.since - self._step_began

    def step_done(self, steps: int, samples: int, loss: float) -> None:
        """Count a step, or several at once, with the mean `loss`."""
        self._totals.count_steps(steps, samples, loss)

    def log_step(self, epoch_step: int, seconds: float) -> None:
        """Log the totals after a step of `seconds`."""
        if self._log:
            self._log.step(self.now(), epoch_step, self._totals, seconds)

    def cut(self, nbytes: int) -> None:
        """Count an update of `nbytes`."""
        self._totals.count_cut(nbytes)

    # Used by the communication thread.

    def look(self) -> None:
        """Count a sign of work if the rest of this process has worked since the last look."""
        now, used = self._clock.monotonic(), self._clock.processor()
        if used - self._looked[1] >= _WORKS * (now - self._looked[0]):
            self._totals.count_sign()
        self._looked = now, used

    def write_log(self) -> None:
        """Write the log so far."""
        if self._log:
            self._log.write(self.now())

    def acked(self, seq: int, seconds: float, nbytes: int) -> None:
        """Count push `seq`, whose acknowledgement of `nbytes` took `seconds`."""
        self._totals.count_push(seconds, nbytes)
        self._log_request("push", seconds, seq=seq)

    def fetched(self, version: int, seconds: float, nbytes: int) -> None:
        """Count the fetch of a version of `nbytes`, which took `seconds`."""
        self._totals.count_pull(seconds, nbytes)
        self._log_request("pull", seconds, version=version)

    def _log_request(self, kind: Phase, seconds: float, **fields: int) -> None:
        if self._log:
            now = self.now()
            self._log.span("network", kind, now - seconds, now, **fields)


class Usage:
    """Sampler of the machine's load, for one thread.

    A call returns the shares (0..1) of processors and memory in use; the processors' share is an
    average since the sample before, at least `PERIOD` ago; None: this is the first.
    """

    def __init__(self, clock: Callable[[], float] = HOST.clock.monotonic):
        self._clock = clock
        self._due = Throttle(PERIOD)
        self._shares: tuple[float | None, float | None] = None, None

    def __call__(self) -> tuple[float | None, float | None]:
        if self._due.due(self._clock()):
            first = self._shares[1] is None
            processors = psutil.cpu_percent() / 100
            self._shares = None if first else processors, psutil.virtual_memory().percent / 100
        return self._shares
