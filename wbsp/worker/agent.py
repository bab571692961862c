"""The worker without its threads, sockets and tensors: follows a WorkerRule.

It is told what happened (a step ended, an answer or a grant or a model came in) and answers with
commands. `Cut`, `Adopt` and `Leave` are for the compute thread, which alone touches the model;
`Fetch` and `Ask` are for the communication side and may be carried out at once. `waiting` says what
the compute thread must wait for before its next step. The real worker and the virtual-time cluster
drive this same object. The network is used for one thing at a time: a push with its answer, a
fetch, or a question.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from wbsp.sync.base import Direct, Push, WorkerRule


class Cut(NamedTuple):
    """Take update = x - anchor, set anchor = x, and hand the update to the sender.

    The push carries a request for the newest version, which the server heeds if its answer grants:
    that saves the way of a request there and back.
    """

    push: Push
    fetch: int  # number of the fetch that goes with it; 0: none does


class Adopt(NamedTuple):
    """Make the fetched version the live model: replace x = W, or rebase x = W + (x - anchor)."""

    version: int
    how: Literal["replace", "rebase"]


class Fetch(NamedTuple):
    """Ask the server for its newest version, or expect it, where the newest push has carried this.
    """

    number: int  # tells its answer from those to earlier ones
    carried: bool


class CutQuery(NamedTuple):
    """Ask the server whether to cut; the answer names the same number."""

    number: int
    steps: int  # uncut
    seconds: float  # of the newest step


class Leave(NamedTuple):
    """All progress is handed over and answered: tell the server that this worker has finished."""


Command = Cut | Adopt | Fetch | CutQuery | Leave


class Agent:
    """State of one worker between two messages.

    worker:  index of this worker
    rule:    the model's rule for workers
    seq:     number of its next push (a returning worker goes on where it stopped)
    """

    def __init__(self, worker: int, rule: WorkerRule, seq: int = 0):
        self.worker, self.rule, self.seq = worker, rule, seq
        self.version: int | None = None  # last adopted
        self.waiting: Literal["model", "ack", "answer", None] = "model"
        self.stopped: str | None = None  # the server's reason to stop
        self.finished = False
        self._base = 0  # version the uncut progress started from
        self._steps = self._samples = 0  # uncut
        self._seconds = 0.0
        self._loss: float | None = 0.0  # sum over the uncut samples; None: not known
        self._sending = False
        self._fetches = 0  # number of the newest fetch, which may be one that a push has carried
        self._fetching = 0  # number of the fetch under way
        self._grant: int | None = None  # newest version it may fetch and has not
        self._inbox: int | None = None  # fetched, not adopted
        self._finishing = False
        self._cut_due = False
        self._first = True  # nothing was cut in this life
        self._asked = 0  # number of the newest question

    @property
    def idle(self) -> bool:
        """True when the network is free: no push unanswered, no fetch under way."""
        return not (self._sending or self._fetching)

    @property
    def fetching(self) -> int:
        """Number of the fetch under way, from the request until the model is here, whole; or 0."""
        return self._fetching

    # What the compute thread tells.

    def step_done(self, samples: int, seconds: float, steps: int = 1,
                  loss: float | None = None) -> list[Command]:
        """A step of `samples` examples and mean `loss` ended after `seconds` of compute."""
        self._steps += steps
        self._samples += samples
        self._seconds += seconds
        known = loss is not None and self._loss is not None
        self._loss = self._loss + loss * samples if known else None
        rule = self.rule
        commands: list[Command] = []
        if rule.push == "when_idle":
            if self._inbox is not None:
                commands.append(self._adopt())
                commands += self._fetch_if_due()
            if self.idle:
                commands.append(self._cut())
        elif rule.push == "every_step":
            if self._steps >= rule.every or self._cut_due:
                commands.append(self._cut())
        elif rule.push == "on_adopt":
            if self._inbox is not None or self._first:
                commands += self._exchange()
        elif rule.push == "on_query":
            self._asked += 1
            self.waiting = "answer"
            commands.append(CutQuery(self._asked, self._steps, seconds / steps))
        elif self._cut_due and self.idle:
            commands.append(self._cut())
        return commands

    def finish(self) -> list[Command]:
        """No step will follow: hand over what is left, then leave."""
        self._finishing = True
        return self._finish_if_idle()

    # What the communication side tells.

    def acked(self, granted: int | None, hold: bool = False) -> list[Command]:
        """The newest push was answered, perhaps with a grant, perhaps with an order to wait."""
        self._sending = False
        if self.rule.push == "every_step":
            self._cut_due = False  # told before this answer: it was about the older version
        self._note_grant(granted)
        if self._finishing:
            return self._finish_if_idle()
        if self.stopped is not None:
            self.waiting = None
            return []
        if self.waiting == "ack":
            wait_for_model = self.rule.wait == "model" or hold or self._grant is not None
            self.waiting = "model" if wait_for_model else None
        return self._fetch_if_due(carried=granted is not None)

    def granted(self, version: int) -> list[Command]:
        """The server permits a fetch of `version` or newer."""
        self._note_grant(version)
        return self._fetch_if_due()

    def fetched(self, version: int) -> list[Command]:
        """The asked-for model is here, whole."""
        self._fetching = 0
        self._inbox = version
        if self._grant is not None and self._grant <= version:
            self._grant = None  # that grant is met already
        if self.waiting == "model":
            self.waiting = None
            return [self._adopt(), *self._fetch_if_due()]
        return self._finish_if_idle() if self._finishing else []

    def told(self, number: int, cut: bool) -> list[Command]:
        """The answer to question `number`: cut now, or go on."""
        if self.waiting != "answer" or number != self._asked:
            return []  # heard before, or not waited for any more
        self.waiting = None
        return [self._cut()] if cut else []

    def directed(self, direct: Direct) -> list[Command]:
        """The model's instruction for this worker; its batches are not this object's concern."""
        if direct.cut:
            self._cut_due = True
        return []

    def stop(self, reason: str) -> list[Command]:
        """Training is over; whoever waits for a model or an answer waits no longer."""
        self.stopped = reason
        if self.waiting == "answer" or (self.waiting == "model" and not self._fetching):
            self.waiting = None
        return []

    def final(self, version: int) -> list[Command]:
        """The run's last version may be fetched; it replaces the live model."""
        self._grant = version
        self._inbox = None
        self.waiting = "model"
        return self._fetch_if_due()

    # Rules that both sides share.

    def _note_grant(self, version: int | None) -> None:
        if version is None or self._finishing:
            return
        held = self.version if self._inbox is None else self._inbox
        if self.rule.wait == "never" and held is not None and version <= held:
            return  # it has come already, for an older grant; nobody waits for it
        self._grant = max(version, self._grant or 0)

    def _fetch_if_due(self, carried: bool = False) -> list[Command]:
        """`carried`: the server heeds the fetch that went with the newest push."""
        if self._grant is None or self._inbox is not None or not self.idle:
            return []
        if self.waiting == "model" or (self.rule.wait == "never" and not self._finishing):
            self._grant = None
            self._fetches += not carried
            self._fetching = self._fetches
            return [Fetch(self._fetching, carried)]
        return []

    def _adopt(self) -> Adopt:
        version, self._inbox = self._inbox, None
        self.version = version
        if not self._steps:
            self._base = version
        rebase = self.rule.adopt == "rebase" and self._steps and not self.finished
        return Adopt(version, "rebase" if rebase else "replace")

    def _exchange(self) -> list[Command]:
        """Hand over the progress and take the version that came in for it, if one has."""
        came = self._inbox is not None
        if self.rule.adopt == "rebase":  # keep it in x as well: x = W + progress
            return [*([self._adopt()] if came else []), self._cut()]
        cut = self._cut()  # and go on from the version; the first time from W_0, once more
        return [cut, self._adopt() if came else Adopt(self.version, "replace")]

    def _cut(self) -> Cut:
        loss = None if self._loss is None or not self._samples else self._loss / self._samples
        push = Push(self.worker, self.seq, self._base, self._steps, self._samples, self._seconds,
                    loss)
        self.seq += 1
        self._first = False
        self._steps = self._samples = 0
        self._seconds = self._loss = 0.0
        self._base = self.version
        self._sending = True
        self._cut_due = False
        if self.rule.wait != "never" or self._finishing:
            self.waiting = "ack"
        self._fetches += not self._finishing
        return Cut(push, 0 if self._finishing else self._fetches)

    def _finish_if_idle(self) -> list[Command]:
        if not self.idle:
            self.waiting = "ack"
            return []
        if self._steps:
            return [self._cut()]
        self.finished = True
        self.waiting = None
        return [Leave()]
