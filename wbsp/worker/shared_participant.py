"""The participant between the two threads of a worker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wbsp.core.agent import Command, Expect
from wbsp.core.messages import Fetch
from wbsp.core.participant import Participant
from wbsp.core.stats import Report
from wbsp.limits import one_line
from wbsp.process.host import HOST, Host
from wbsp.process.throttle import Throttle
from wbsp.wire.messages import codec as m
from wbsp.worker.assignments import Assignments
from wbsp.worker.comm.communication import Next
from wbsp.worker.metrics import Recorder
from wbsp.worker.share import Share

_NOTICE = 15.0  # seconds between two lines about rejected pushes


class SharedParticipant:
    """A participant under a lock, and its commands for the compute thread.

    This object is the transport's Listener: in the communication thread it makes each message an
    event of the participant. A Fetch that this commands is for that thread; all other commands wait
    in `commands` for the compute thread.

    The ranges of shared data are guarded by the share's lock as well, which the input pipeline
    takes alone: so it disturbs neither thread. `changed` is locked first.

    Attributes:
        participant: guarded by `changed`, and by the share's lock.
        agent: the participant's state, which both threads change.
        changed: notified when commands exist, the wait is over, or the server is lost.
        commands: guarded by `changed`.
        server_ends: the server ends with this run.
    """

    def __init__(self, participant: Participant, recorder: Recorder, say: Callable[[str], None],
                 assignments: Assignments | None,
                 bring: Callable[[np.ndarray], Any] = lambda vector: vector, on: Host = HOST,
                 share: Share | None = None):
        """Set up.

        Args:
            assignments: of examples to this worker; None: the worker chooses its own.
            bring: the replica's, which copies a version to the model's device.
            share: of the run's shared data; None: this worker has its own data.
        """
        self.participant = participant
        self.agent = participant.agent
        self.changed = on.scheduler.condition()
        self.commands: list[Command] = []
        self.server_ends = False
        self._clock = on.clock
        self._recorder = recorder
        self._assignments = assignments
        self._bring = bring
        self._share = share
        self._ranges: contextlib.AbstractContextManager[object] = (
            on.scheduler.lock() if share is None else share.changed)  # cheaper than a nullcontext
        self._versions: dict[int, Any] = {}  # that were copied and may be adopted
        self._idle = False  # the compute thread waits in `wait`; guarded by `changed`
        self._rejections = Rejections(
            lambda text: say(f"worker {participant.agent.worker}: {text}"))

    # Used by the compute thread.

    def act(self, event: Callable[[Participant], list[Command] | None]) -> list[Command]:
        """Give the participant an event of this thread; return its commands."""
        with self.changed, self._ranges:
            return event(self.participant) or []

    def due(self) -> list[Command]:
        """Return the commands that wait for this thread, and those that are due now.

        The caller has locked `changed`.
        """
        with self._ranges:
            commands, self.commands = self.commands, []
            commands += self.participant.due(self._clock.monotonic())
            return commands + self.participant.starved()

    def take_version(self, version: int) -> Any:
        """Return the fetched version to adopt now, in the form of the replica's `bring`."""
        with self.changed:
            vector = self._versions[version]
            self._versions = {other: kept for other, kept in self._versions.items()
                              if other > version or (other == version and self._adopted_again)}
            return vector

    def wait(self, seconds: float) -> None:
        """Wait for `changed`, which the caller has locked, for at most `seconds`.

        The wait is booked in the phase of what the agent waits for.
        """
        self._recorder.enter(self.agent.waits_in)
        self._idle = True
        try:
            self.changed.wait(seconds)
        finally:  # an interrupt ends the wait, too
            self._idle = False

    def end_assignments(self) -> None:
        """End all waits for examples; no step follows."""
        if self._assignments is not None:
            self._assignments.end()
        if self._share is not None:
            self._share.end()

    # The Listener, used by the communication thread.

    def acked(self, ack: m.Ack, seconds: float) -> Next:
        """Handle the acknowledgement of the newest push, `seconds` after the cut."""
        self._recorder.acked(ack.seq, seconds, len(m.encode(ack)))
        self._rejections.acked(ack, self._clock.monotonic())
        return self.received(ack)

    def fetched(self, version: int, vector: np.ndarray, nbytes: int,
                seconds: float) -> Next:
        """Handle the requested version (float32 [size]), `seconds` after the request."""
        self._recorder.fetched(version, seconds, nbytes)
        if self._adopted_again:
            vector.flags.writeable = False
        brought = self._bring(vector)
        with self.changed, self._ranges:
            self._versions[version] = brought
            return self._follow(self.participant.fetched(version))

    def received(self, message: m.Message) -> Next:
        """Handle any message to a member, except a Model."""
        share, assignments = self._share, self._assignments
        with self.changed, self._ranges:
            commands = self.participant.received(message, self._clock.monotonic())
            if self.participant.answers.get(type(message)) is message:
                self.changed.notify_all()
            match message:
                case m.Work() if share is not None:
                    share.changed.notify_all()
                case m.Measured() if share is not None:
                    share.validated(message)
                case m.LearningRate() if share is not None:
                    share.told_rate(message)
                case m.Directed(direct) if share is None and assignments is not None:
                    if direct.batch is not None and direct.start is None:
                        assignments.assign(direct.batch, None)
                    while (piece := self.participant.take_piece()) is not None:
                        assignments.assign(*piece)
                case m.Reattached() if message.joined and assignments is not None:
                    assignments.start_again()
                case m.Stop():
                    self.server_ends = message.ends
                    if share is not None:
                        share.stop(message.early)
            return self._follow(commands)

    def failed(self) -> None:
        """Handle the loss of the server, or the end of this worker's membership."""
        self.end_assignments()
        with self.changed:
            self.changed.notify_all()

    @property
    def waits(self) -> bool:
        """Return whether the compute thread waits for a version."""
        with self.changed:
            return self.agent.waiting == "model"

    def report(self) -> Report:
        """Return this worker's totals; each call writes the log, and looks for signs of work."""
        self._recorder.write_log()
        self._recorder.look()
        return self._recorder.report()

    @property
    def _adopted_again(self) -> bool:
        """Return whether the rule may adopt a version more than once."""
        rule = self.agent.rule
        return rule.push == "on_adopt" or rule.adopt == "return"

    def _follow(self, commands: Sequence[Command]) -> Next:
        """Queue the commands; return the fetch among them."""
        fetch: Next = None
        for command in commands:
            if isinstance(command, Fetch | Expect):
                fetch = command
            else:
                self.commands.append(command)
        if self.commands or self.agent.waiting is None:
            self.changed.notify_all()
        elif self._idle:  # waking the compute thread for this costs half the time of a push
            self._recorder.enter(self.agent.waits_in)
        return fetch


class Rejections:
    """Lines about rejected pushes, at a limited rate, because some models reject often by rule."""

    def __init__(self, say: Callable[[str], None]):
        """Start; `say`: prints a line about the worker."""
        self._say = say
        self._number = 0
        self._notice = Throttle(_NOTICE)

    def acked(self, ack: m.Ack, now: float) -> None:
        """Print a line that is due, if the push was rejected."""
        if ack.accepted:
            return
        self._number += 1
        if self._notice.due(now):
            self._say(f"push {ack.seq} was rejected: {one_line(ack.reason or '')} ({self._number} "
                      "so far)")
