"""Decisions of a worker under a WorkerRule, without threads, sockets and tensors.

The agent receives events (a step ended; an acknowledgement, a grant or a model arrived) and answers
with commands. `Cut`, `Adopt` and `Leave` are for the compute thread, because only that thread
accesses the model. `Fetch`, `Expect` and `CutQuery` concern only the network, and may be carried
out at once. `waiting` is what the compute thread must wait for before its next step. The real
worker and the virtual-time cluster both drive this object. The network carries one request at a
time: a push, a fetch or a query, each with its answer. The agent checks itself that a push is
answered before it cuts the next one, and that no step is made while it waits: otherwise it raises
RuleBroken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from wbsp.core.messages import (
    Ack,
    CutDecision,
    CutQuery,
    Directed,
    Fetch,
    Final,
    Granted,
    Message,
    Reattached,
    Span,
    Stop,
)
from wbsp.core.rules import RuleBroken
from wbsp.core.stats import Phase
from wbsp.core.work.sequence import WorkSequence
from wbsp.limits import Offset, one_line
from wbsp.sync.base import UNFIT, Direct, Push, WorkerRule


@dataclass(slots=True)
class Progress:
    """Metadata of the uncut progress."""

    base: int = 0  # version that it started from
    steps: int = 0
    samples: int = 0
    seconds: float = 0.0  # of compute
    loss: float | None = 0.0  # sum over the samples; None: not known
    dropped: int | None = None  # as in `Push`

    def add(self, steps: int, samples: int, seconds: float, loss: float | None) -> None:
        """Count a step with the mean loss `loss`."""
        self.steps += steps
        self.samples += samples
        self.seconds += seconds
        self.loss = None if loss is None or self.loss is None else self.loss + loss * samples

    def start_from(self, version: int) -> None:
        """Note the version that the next step begins with, if there was none since the cut."""
        if not self.steps:
            self.base = version

    def drop(self, trained: int | None) -> None:
        """Drop the steps so far, up to this end in the worker's sequence."""
        self.dropped = trained if self.steps else None

    def push(self, worker: int, seq: int, to: int | None) -> Push:
        """Return the metadata of the push that carries this progress; `to`: as in `Push`."""
        loss = None if self.loss is None or not self.samples else self.loss / self.samples
        return Push(worker, seq, self.base, self.steps, self.samples, self.seconds, loss, to=to,
                    dropped=self.dropped)


class Cut(NamedTuple):
    """Take update = x - anchor, set anchor = x, and push the update.

    The push carries a fetch of the newest version, which saves a round trip. The server answers it
    with its acknowledgement if that grants a version; otherwise with the grant that this worker
    waits for.
    """

    push: Push
    fetch: int  # number of the fetch that the push carries; 0: it carries none
    spans: tuple[Span, ...] = ()  # of a worker: positions of the run's shared data in the push


class Adopt(NamedTuple):
    """Make the fetched version the live model: replace x = W, or rebase x = W + (x - anchor)."""

    version: int
    how: Literal["replace", "rebase"]


class Expect(NamedTuple):
    """Expect the newest version: the newest push carried this request, and it was granted."""

    fetch: Fetch


class Leave(NamedTuple):
    """Announce that this worker has finished: all its pushes are acknowledged."""


Command = Cut | Adopt | Expect | Message | Leave


class Agent:
    """State of one worker between two events.

    Attributes:
        worker: index of this worker.
        rule: the synchronization model's rule for workers.
        seq: number of the next push; a worker that reconnects continues its numbers.
        version: last adopted version; None before the first.
        run_steps: steps of all workers: the count in the newest answer, plus own steps since.
        run_examples: the examples of these steps, of shared data each once: those that count. It
            falls if examples must be trained again.
        waiting: what the compute thread must wait for; None: for nothing.
        fetching: number of the running fetch, from the request until the model is complete; or 0.
        stopped: the server's reason to end the training; None before.
        finished: `Leave` was commanded.
        renewed: how often a version has replaced a model that was not finite.
        sizes: what a push says of its batches, as (batch, least) of `Push`; None: nothing.
    """

    def __init__(self, worker: int, rule: WorkerRule, seq: int = 0, run_steps: int = 0,
                 work: WorkSequence | None = None, run_examples: int = 0):
        """Begin.

        Args:
            worker: index of this worker.
            rule: the synchronization model's rule for workers.
            seq: number of its first push.
            run_steps, run_examples: as in the attributes.
            work: this worker's part of the run's shared data, in which a step's examples are noted
                before `step_done`; None: the worker has data of its own.
        """
        self.worker = worker
        self.rule = rule
        self.seq = seq
        self.run_steps = run_steps
        self.run_examples = run_examples
        self.version: int | None = None
        self.waiting: Literal["model", "ack", "decision", None] = "model"
        self.stopped: str | None = None
        self.finished = False
        self._work = work
        self._pushed: int | None = None  # end of the newest push in `work`
        self._starved = False  # no step follows before the server gives more work
        self.fetching = 0
        self._progress = Progress()
        self._sending = False  # the newest push is not acknowledged
        self._fetches = 0  # number of the newest fetch, carried or not
        self._queries = 0  # number of the newest query
        self._grant: int | None = None  # newest granted version that was not requested
        self._following = 0  # number of the fetch that the server answers without a request; noted
        #                      here if the grant arrives before the acknowledgement
        self._inbox: int | None = None  # fetched version, not adopted
        self._overtaken = False  # a newer version was fetched in place of a push
        self._finishing = False  # no step will follow
        self._ends = False  # the last version may be fetched
        self._cut_due = rule.push == "when_idle"  # the model directs this worker to cut; or, under
        #                                           push="when_idle", allows it
        self._none_cut = True  # by this incarnation
        self._sound_from = seq  # number of the first push that was cut after x was last replaced
        self._unsound = False  # x holds NaN or infinity: the next version replaces it
        self.renewed = 0
        self.sizes: tuple[int, int] | None = None

    @property
    def undecided(self) -> bool:
        """True while the server decides whether this worker cuts.

        Until then the worker requests no more shared data, because it would hold them while it
        waits for the version of the cut.
        """
        return self.waiting == "decision"

    @property
    def _trained(self) -> int | None:
        """End of what this worker has trained of the run's shared data."""
        return None if self._work is None else self._work.trained

    @property
    def waits_in(self) -> Phase:
        """What the compute thread waits for, as a phase of its time; "wait": for other workers."""
        if self.fetching:
            return "pull"
        return "push" if self.waiting in ("ack", "decision") else "wait"

    @property
    def idle(self) -> bool:
        """True if the network is free: no push unacknowledged, no fetch under way."""
        return not (self._sending or self.fetching)

    @property
    def starving(self) -> bool:
        """True from `starved` to `fed`, or the end of a step."""
        return self._starved

    @property
    def handed_over(self) -> bool:
        """True if the server has answered all progress."""
        return self.idle and not self._progress.steps

    # Events of the compute thread.

    def step_done(self, samples: int, seconds: float, steps: int = 1,
                  loss: float | None = None) -> list[Command]:
        """Handle the end of a step.

        Args:
            samples: examples in it.
            seconds: of compute.
            steps: mini-batches in it; more than 1 where a loop trains several at once.
            loss: their mean loss; None: not known.
        """
        if self.waiting is not None:
            raise RuleBroken(f"worker {self.worker} makes a step while it waits for "
                             f"its {self.waiting}")
        self._progress.add(steps, samples, seconds, loss)
        self._starved = False
        self.run_steps += steps
        self.run_examples += samples
        rule = self.rule
        commands: list[Command] = []
        if rule.push == "when_idle":
            adopts = self._inbox is not None
            if self._inbox is not None:
                commands.append(self._adopt(self._inbox))
            due = self._cut_due and self._progress.steps >= rule.every
            # Where versions are made faster than this worker's steps, one more is granted in each
            # of them: a worker that fetched them all would never push.
            if adopts and not (due and self._overtaken):
                fetches = self._fetch_if_due()
                self._overtaken = bool(fetches)
                commands += fetches
            if due and self.idle:
                commands.append(self._cut())
        elif rule.push == "every_step":
            if self._progress.steps >= rule.every or self._cut_due:
                commands.append(self._cut())
        elif rule.push == "on_adopt":
            if not self._sending and (self._inbox is not None or (self._none_cut and self.idle)):
                commands += self._exchange()
        elif rule.push == "on_query":
            self._queries += 1
            self.waiting = "decision"
            commands.append(CutQuery(self._queries, self._progress.steps, seconds / steps))
        elif self._cut_due and self.idle:
            commands.append(self._cut())
        return commands

    def starved(self) -> list[Command]:
        """Handle the end of the worker's shared data, with no more available for now.

        The uncut progress is pushed, because other workers may wait for it.
        """
        self._starved = True
        return self._cut_if_starved()

    def fed(self) -> None:
        """Handle new work after `starved`: training continues, together with uncut progress."""
        self._starved = False

    def finish(self) -> list[Command]:
        """Push the uncut progress, then leave; no step follows."""
        self._finishing = True
        return self._finish_if_idle()

    # Events of the communication thread.

    def received(self, message: Message) -> list[Command]:
        """Handle a message of the server, except a Model: see `fetched`."""
        match message:
            case Ack():
                return self.acked(message.granted, message.hold, message.steps, message.reason,
                                  message.examples)
            case Granted():
                return self.granted(message.version, message.request, message.follows)
            case Directed():
                return self.directed(message.direct)
            case CutDecision():
                return self.decided(message.number, message.cut)
            case Reattached():
                return self.reattached(message.joined)
            case Stop():
                return self.stop(one_line(message.reason))
            case Final():
                return self.final(message.version)
        return []

    def acked(self, granted: int | None, hold: bool = False, run_steps: int = 0,
              reason: str | None = None, run_examples: int = 0) -> list[Command]:
        """Handle the acknowledgement of the newest push.

        Args:
            granted: version that may be fetched, or None.
            hold: the model directs this worker to wait for a grant before its next step.
            run_steps: steps of all workers, those of the push included; 0: not known.
            reason: of the push's rejection; None: accepted, or not known.
            run_examples: their examples, as in `Ack`; 0: not known.
        """
        self._sending = False
        if self._work is not None and self._pushed is not None:
            self._work.answer(Offset(self._pushed))
        if reason in UNFIT and self.seq > self._sound_from:
            self._unsound = True
        self.run_steps = max(self.run_steps, run_steps + self._progress.steps)
        if run_examples:
            self.run_examples = run_examples + self._progress.samples
        if self.rule.push == "every_step":
            self._cut_due = False  # directed before this acknowledgement, for the older version
        if granted is not None:
            self._note_grant(granted, self._fetches, True)
        if self._finishing or self.stopped is not None:
            self._following = 0  # its answer is no longer needed
            if self._finishing:
                return self._finish_if_idle()
            self.waiting = None
            return []
        if self.waiting == "ack":
            wait_for_model = self.rule.wait == "model" or hold or self._grant is not None
            self.waiting = "model" if wait_for_model else None
        return [*self._fetch_if_due(), *self._cut_if_starved()]

    def granted(self, version: int, request: int = 0, follows: bool = False) -> list[Command]:
        """Handle the permission to fetch `version` or a newer one; see `Granted`."""
        self._note_grant(version, request, follows)
        return self._fetch_if_due()

    def reattached(self, joined: bool) -> list[Command]:
        """Handle a reconnection, after which messages of the server may be missing.

        Args:
            joined: this worker has joined the model again, so that earlier grants and directions
                are void.
        """
        if joined:
            self._grant = None
            self._following = 0
            self._cut_due = self.rule.push == "when_idle"
        return []

    def fetched(self, version: int) -> list[Command]:
        """Handle the complete arrival of the requested model."""
        self.fetching = 0
        self._inbox = version
        if self._grant is not None and self._grant <= version:
            self._grant = None  # this model meets that grant, too
        if self.waiting == "model":
            self.waiting = None
            return [self._adopt(version), *self._fetch_if_due()]
        return self._finish_if_idle() if self._finishing else self._cut_if_starved()

    def decided(self, number: int, cut: bool) -> list[Command]:
        """Handle the server's answer to query `number`: cut now, or continue."""
        if self.waiting != "decision" or number != self._queries:
            return []  # received before, or no longer needed
        self.waiting = None
        return [self._cut()] if cut else self._cut_if_starved()

    def directed(self, direct: Direct) -> list[Command]:
        """Handle the model's instruction; other objects handle its batch sizes."""
        if direct.cut is not None:
            self._cut_due = direct.cut
        return []

    def stop(self, reason: str) -> list[Command]:
        """Handle the end of the training: stop waiting for grants and decisions."""
        self.stopped = reason
        if self.waiting == "decision" or (self.waiting == "model" and not self.fetching):
            self.waiting = None
        return []

    def final(self, version: int) -> list[Command]:
        """Handle the permission to fetch the run's last version, which replaces the live model."""
        if self._ends:
            return []  # received before
        self._ends = True
        self._grant = version
        self._following = 0
        self._inbox = None
        self.waiting = "model"
        return self._fetch_if_due()

    # Rules for events of both threads.

    def _note_grant(self, version: int, request: int, follows: bool) -> None:
        """Note a grant.

        Args:
            version: the granted version.
            request: number of the fetch, carried by a push, that the grant answers; or 0.
            follows: the answer to that fetch follows without a further request.
        """
        if self._finishing:
            return
        held = self.version if self._inbox is None else self._inbox
        awaited = 0 < request == self._fetches and self.waiting in ("ack", "model")
        if held is not None and version <= held and not awaited:
            return  # it answers an older grant, or this worker waits for none
        self._grant = max(version, self._grant or 0)
        if follows:
            self._following = request

    def _fetch_if_due(self) -> list[Command]:
        """Fetch the granted version, if the rule requires it now and the network is free."""
        if self._sending:
            return []
        following, self._following = self._following, 0
        if self._grant is None or self._inbox is not None or self.fetching:
            return []
        if self.waiting == "model" or (self.rule.wait == "never" and not self._finishing):
            granted, self._grant = self._grant, None
            if self.rule.adopt == "return" and granted == self.version:
                self.waiting = None
                return [self._adopt(granted)]
            carried = 0 < following == self._fetches
            self._fetches += not carried
            self.fetching = self._fetches
            fetch = Fetch(self.fetching)
            return [Expect(fetch) if carried else fetch]
        return []

    def _adopt(self, version: int) -> Adopt:
        """Adopt the fetched version."""
        self.version = version
        self._inbox = None
        if self.rule.loses_steps:
            self._progress = Progress()
        self._progress.start_from(version)
        rebase = self.rule.adopt == "rebase" and self._progress.steps and not self.finished
        self.renewed += self._unsound
        if self._unsound:  # progress that is not finite would stay so on any version
            self._unsound = rebase = False
            self._progress.drop(self._trained)
            self._sound_from = self.seq
        return Adopt(version, "rebase" if rebase else "replace")

    def _exchange(self) -> list[Command]:
        """Push the progress, and adopt the fetched version, if there is one."""
        fetched = self._inbox
        if self.rule.adopt == "rebase":  # x keeps the progress: x = W + progress
            return [self._cut()] if fetched is None else [self._adopt(fetched), self._cut()]
        cut = self._cut()
        if fetched is None:  # the first time: x continues from W_0 again
            return [cut, Adopt(self._progress.base, "replace")]
        return [cut, self._adopt(fetched)]

    def _cut(self) -> Cut:
        if self._sending:
            raise RuleBroken(f"worker {self.worker} cuts push {self.seq} before push "
                             f"{self.seq - 1} is answered")
        self._pushed = self._trained
        push = self._progress.push(self.worker, self.seq, self._pushed)
        if self.sizes is not None:
            push = push._replace(batch=self.sizes[0], least=self.sizes[1])
        self.seq += 1
        self._none_cut = self._overtaken = False
        self._progress = Progress(self._progress.base if self.version is None else self.version)
        self._sending = True
        self._cut_due = self.rule.push == "when_idle"
        if self.rule.wait != "never" or self._finishing:
            self.waiting = "ack"
        self._fetches += not self._finishing
        return Cut(push, 0 if self._finishing else self._fetches, self._spans(push.dropped))

    def _spans(self, dropped: int | None) -> tuple[Span, ...]:
        """Return the positions in the push that is cut now; those up to `dropped` are in none."""
        work = self._work
        return () if work is None else work.spans(
            work.answered if dropped is None else Offset(dropped), work.trained)

    def _cut_if_starved(self) -> list[Command]:
        due = self._starved and self._progress.steps and self.idle and self.waiting is None
        return [self._cut()] if due and not self._finishing else []

    def _finish_if_idle(self) -> list[Command]:
        if not self.idle:
            self.waiting = "ack"
            return []
        if self._progress.steps:
            return [self._cut()]
        self.finished = True
        self.waiting = None
        return [Leave()]
