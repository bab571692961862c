"""The agent between the two threads of a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wbsp.core.agent import Agent, Command, Expect
from wbsp.core.messages import Fetch
from wbsp.core.stats import Report
from wbsp.limits import one_line
from wbsp.process.host import HOST, Host
from wbsp.process.throttle import Throttle
from wbsp.wire.messages import codec as m
from wbsp.worker.assignments import Assignments
from wbsp.worker.comm.inbox import Next
from wbsp.worker.metrics import Recorder
from wbsp.worker.share import Share

_NOTICE = 15.0  # seconds between two lines about rejected pushes


class SharedAgent:
    """An agent under a lock, and its commands for the compute thread.

    This object is the transport's Listener: in the communication thread it makes each message an
    event of the agent. A Fetch that the agent commands is for that thread; all other commands
    concern the model, and wait in `commands` for the compute thread.

    Attributes:
        agent: guarded by `changed`.
        changed: notified when commands exist, the wait is over, or the server is lost.
        commands: guarded by `changed`.
        version_at: the newest answer to AskVersion; guarded by `changed`.
        server_ends: the server ends with this run.
    """

    def __init__(self, agent: Agent, recorder: Recorder, say: Callable[[str], None],
                 assignments: Assignments | None,
                 bring: Callable[[np.ndarray], Any] = lambda vector: vector, on: Host = HOST,
                 share: Share | None = None):
        """Set up.

        Args:
            assignments: of examples to this worker; None: the worker chooses its own.
            bring: the replica's, which copies a version to the model's device.
            share: of the run's shared data; None: this worker has its own data.
        """
        self.agent = agent
        self.changed = on.scheduler.condition() if share is None else share.changed
        self.commands: list[Command] = []
        self.version_at: m.VersionAt | None = None
        self.server_ends = False
        self._clock = on.clock
        self._recorder = recorder
        self._say = say
        self._assignments = assignments
        self._bring = bring
        self._share = share
        self._versions: dict[int, Any] = {}  # that were copied and may be adopted
        self._final_received = False
        self._idle = False  # the compute thread waits in `wait`; guarded by `changed`
        self._rejected = 0  # pushes
        self._rejections = Throttle(_NOTICE)

    # Used by the compute thread.

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
        self._enter_waiting()
        self._idle = True
        try:
            self.changed.wait(seconds)
        finally:  # an interrupt ends the wait, too
            self._idle = False

    def fed(self) -> list[Command]:
        """Begin a step after starvation; return the commands to carry out before it."""
        with self.changed:
            self.agent.fed()
            commands, self.commands = self.commands, []
            return commands

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
        if not ack.accepted:
            self._say_rejected(ack)
        with self.changed:
            return self._follow(self.agent.received(ack))

    def fetched(self, version: int, vector: np.ndarray, nbytes: int,
                seconds: float) -> Next:
        """Handle the requested version (float32 [size]), `seconds` after the request."""
        self._recorder.fetched(version, seconds, nbytes)
        if self._adopted_again:
            vector.flags.writeable = False
        brought = self._bring(vector)
        with self.changed:
            self._versions[version] = brought
            return self._follow(self.agent.fetched(version))

    def received(self, message: m.Message) -> Next:
        """Handle any other message to a member."""
        with self.changed:
            match message:
                case m.Directed():
                    direct = message.direct
                    if direct.batch is not None and self._share is not None:
                        self._share.batch = direct.batch
                    elif direct.batch is not None and self._assignments is not None:
                        self._assignments.assign(direct.batch, direct.start)
                case m.Reattached():
                    if message.joined and self._assignments is not None:
                        self._assignments.start_again()
                    if self._share is not None:
                        self._share.reattached()
                case m.Work():
                    return self._worked(message)
                case m.Measured():
                    if self._share is not None:
                        self._share.validated(message)
                case m.LearningRate():
                    if self._share is not None:
                        self._share.rate = message
                case m.VersionAt():
                    self.version_at = message
                    self.changed.notify_all()
                    return None
                case m.Stop():
                    self.server_ends = message.ends
                    if self._share is not None:
                        self._share.stop(message.early)
                case m.Final():
                    if self._final_received:
                        return None  # repeated
                    self._final_received = True
            return self._follow(self.agent.received(message))

    def _worked(self, work: m.Work) -> Next:
        """Handle more of the run's data, or the answer that no work is free now."""
        if self._share is None:
            return None
        self._share.received(work)
        return self._follow(self.agent.starved() if self._share.dry else [])

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
        """Queue the agent's commands; return the fetch among them."""
        fetch: Next = None
        for command in commands:
            if isinstance(command, Fetch | Expect):
                fetch = command
            else:
                self.commands.append(command)
        if self.commands or self.agent.waiting is None:
            self.changed.notify_all()
        elif self._idle:  # waking the compute thread for this costs half the time of a push
            self._enter_waiting()
        return fetch

    def _enter_waiting(self) -> None:
        """Enter the phase of what the compute thread waits for."""
        if self.agent.waiting in ("ack", "decision"):
            self._recorder.enter("push")
        elif self.agent.fetching:
            self._recorder.enter("pull")
        else:
            self._recorder.enter("wait")

    def _say_rejected(self, ack: m.Ack) -> None:
        """Print rejected pushes at a limited rate, because some models reject often by rule."""
        self._rejected += 1
        if self._rejections.due(self._clock.monotonic()):
            self._say(f"worker {self.agent.worker}: push {ack.seq} was rejected: "
                      f"{one_line(ack.reason or '')} ({self._rejected} so far)")
