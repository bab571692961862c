"""A member's life in a run: its agent, its part of the run's shared data, its requests for more.

Everything that a worker does between its admission and its leaving, without threads, sockets,
clocks and tensors: a driver turns what happens into events, and carries out the commands in their
order. The drivers are the real worker (`wbsp.worker.runtime`, behind a lock in
`wbsp.worker.shared_participant`), the virtual one (`wbsp.simulate.nodes.worker`), and real and
virtual sites (`wbsp.core.site.worker`), whose shared data are `wbsp.core.site.work`.

    events                        what the driver saw
    received(message, now)        a message of the server, except a Model
    fetched(version)              the requested version is complete
    step_begins()                 the compute thread begins a step on examples that it has taken
    step_done(samples, ...)       the step has ended
    step_dropped()                the step trains nothing: its data had ended
    starved()                     no step can begin, for lack of examples
    finish()                      no step follows
    due(now)                      time has passed, or another event was handled

    commands                      what the driver does
    Cut, Adopt, Leave             changes the model, between two steps
    Fetch, Expect, CutQuery       sends the one request at a time that the server answers
    AskWork, and what is asked    sends a further request, with the next `due`

The rules. What a driver or a server could break is checked, by RuleBroken: 1 and 2 by the agent, 3
by the work sequence, 4 here. The others hold by what is decided here.

1. No step is made while the agent waits.
2. A push is answered before the next one is cut.
3. The answered examples are trained, the trained ones were taken, and the taken ones were given.
4. Only a step that has begun ends.
5. Work is requested between two steps, by one open request. None is requested while the server
   decides whether this worker cuts, after its stop, or after `finish`.
6. A worker without work, to which the server has none to give, pushes what it has trained, because
   others may wait for that; and only between two steps, because a step belongs to one push.
7. A range, or a piece of the shared stream, that arrives again changes nothing.
8. A request is repeated until its answer arrives, and at once over another connection.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from wbsp.core.agent import Agent, Command
from wbsp.core.messages import (
    AskWork,
    Directed,
    LearningRate,
    Measured,
    Message,
    Range,
    Reattached,
    Work,
    WorkHeld,
    WorkPlace,
)
from wbsp.core.rules import RuleBroken
from wbsp.core.work.sequence import AGAIN, Requests, WorkSequence, mean_of
from wbsp.limits import Offset
from wbsp.sync.base import Direct, WorkerRule


class _Asked(NamedTuple):
    """A request that is not answered."""

    request: Message
    due: float  # seconds
    until: float  # seconds, from when on no answer is needed


def _answers(request: Message, message: Message) -> bool:
    """Return whether a message of the type that answers a request does so."""
    if isinstance(request, Measured | LearningRate) and isinstance(
            message, Measured | LearningRate):
        return message.epoch >= request.epoch
    return True


class Participant:
    """A member of a run, between two events.

    Attributes:
        agent: decides on cuts, fetches and adoptions.
        work: this member's part of the run's shared data; None: its data are its own.
        requests: for more work.
        batch: examples of its next step, if the server or the run's data give their number; None:
            a number of its own.
        why: the server's reason for `batch`, if it gave one.
        computes: a step has begun, and not ended.
        answers: the newest answer to a request of `ask`, by its type.
    """

    def __init__(self, worker: int, rule: WorkerRule, seq: int = 0, run_steps: int = 0,
                 place: WorkPlace | None = None, run_examples: int = 0, again: float = AGAIN):
        """Begin as a member.

        Args:
            worker: index of this member.
            rule: the synchronization model's rule for workers.
            seq: number of its first push.
            run_steps, run_examples: as in `Agent`.
            place: where it begins in the run's shared data, if its data are shared.
            again: seconds after which an unanswered request is repeated.
        """
        self.work = None if place is None else WorkSequence(place.at)
        self.agent = Agent(worker, rule, seq, run_steps, self.work, run_examples)
        self.requests = Requests()
        self.batch = None if place is None else place.data.batch
        self.why = ""
        # The batch that is trained and those directed since, each with the offset in `work` from
        # which it is taken.
        self._changes = deque([(Offset(0), self.batch or 0)])
        self.computes = False
        self._data = None if place is None else place.data
        self._again = again
        self._asked: dict[type[Message], _Asked] = {}  # by the type of the answer
        self.answers: dict[type[Message], Message] = {}
        self._rate: LearningRate | None = None  # the newest that this member has set for all
        self._pieces: deque[tuple[int, int]] = deque()  # (examples, start) of the next steps
        self._newest = -1  # start of the newest piece
        self._step = 0.0  # seconds of a step, on average
        self._finishing = False

    # Events of the compute thread.

    def take(self) -> tuple[int, ...] | None:
        """Take the examples of the next step.

        Returns:
            Their number and first position, in data or a stream that is shared; their number alone,
            if the server directs it; nothing, if this member chooses it. None: they have not
            arrived.
        """
        if self.work is not None:
            taken = self.take_batch()
            return None if taken is None else (taken.stop - taken.start, taken.start)
        if self.agent.rule.shared or self._pieces:
            return self.take_piece()
        return () if self.batch is None else (self.batch,)

    def take_piece(self) -> tuple[int, int] | None:
        """Take number and first position of the next step's examples in the shared stream."""
        return self._pieces.popleft() if self._pieces else None

    def take_batch(self) -> Range | None:
        """Take the next batch of the shared data, if it has arrived."""
        return None if self.work is None or self.batch is None else self.work.take(self.batch)

    def step_begins(self) -> None:
        """Handle the begin of a step; one that has begun before, and not ended, is dropped."""
        self.computes = True
        self.agent.fed()

    def step_dropped(self) -> None:
        """Handle the end of a step that has trained nothing."""
        self.computes = False

    def step_done(self, samples: int, seconds: float, steps: int = 1,
                  loss: float | None = None) -> list[Command]:
        """Handle the end of a step; the arguments are those of `Agent.step_done`."""
        if not self.computes:
            raise RuleBroken(f"worker {self.agent.worker} ends a step that has not begun")
        self.computes = False
        if self.work is not None:
            self.work.train(samples)
            self._step = mean_of(self._step, seconds)
        return self.agent.step_done(samples, seconds, steps, loss)

    def follows(self, least: int | None) -> None:
        """Note whether its loop trains the numbers of examples that the server directs, with a
        learning rate that goes with them.

        least: the fewest; None: it does not
        """
        data = self._data
        able = least is not None and data is not None and self.agent.rule.sizes
        self.agent.sizes = (data.batch, least) if able and data and least else None
        if self.agent.sizes is None and data is not None:
            self.batch = data.batch
            self._changes = deque([(Offset(0), data.batch)])

    @property
    def part(self) -> float:
        """The examples of the step that begins, or has begun, in those of the run's batch.

        Its rate goes with them. A batch that was taken before a direction has the size before it.
        """
        sizes, work = self.agent.sizes, self.work
        if sizes is None or work is None:
            return 1.0
        while len(self._changes) > 1 and self._changes[1][0] <= work.trained:
            self._changes.popleft()
        return self._changes[0][1] / sizes[0]

    @property
    def reason(self) -> str:
        """Why the step of `part` has its batch; empty: no reason is known, or it was taken before
        the direction that gave one."""
        return self.why if self.part and len(self._changes) <= 1 else ""

    @property
    def dry(self) -> bool:
        """True if all given examples are trained, and the server has none to give now."""
        work = self.work
        return work is not None and self.requests.none and work.trained == work.end

    def starved(self) -> list[Command]:
        """Handle the lack of examples for the next step."""
        if self.work is None or self.computes or not self.dry:
            return []
        return self.agent.starved()

    def hand_over(self) -> list[Command]:
        """Push the uncut progress before the next step, until `agent.handed_over`."""
        return self.agent.starved()

    def ask(self, request: Message, answer: type[Message], now: float, until: float = math.inf
            ) -> list[Command]:
        """Send a request, and again after a while: see `due`.

        Args:
            request: any request but a push or a fetch.
            answer: a message of this type ends it, and is in `answers` then. Results and rates
                are answered when all workers receive them, or those of a later epoch.
            now: seconds.
            until: seconds, from when on no answer is needed.
        """
        self.answers.pop(answer, None)
        if isinstance(request, LearningRate):
            self._rate = request
        self._asked[answer] = _Asked(request, now + self._again, until)
        return [request]

    def finish(self) -> list[Command]:
        """Push the uncut progress, then leave; no step follows."""
        self._finishing = True
        return self.agent.finish()

    # Events of the network and of time.

    def received(self, message: Message, now: float) -> list[Command]:
        """Handle a message of the server, except a Model: see `fetched`."""
        asked = self._asked.get(type(message))
        if asked is not None and _answers(asked.request, message):
            del self._asked[type(message)]
            self.answers[type(message)] = message
        match message:
            case Work(at, start, stop):
                self._given(Range(at, start, stop), now)
            case Directed(direct) if direct.batch is not None:
                if self._data is None or self.agent.sizes is not None or not self.agent.rule.sizes:
                    self._assigned(direct.batch, direct)
            case Reattached(joined=joined):
                self.requests.forget()
                self._asked = {answer: asked._replace(due=now)
                               for answer, asked in self._asked.items()}
                if joined:
                    self._pieces.clear()
                    self._newest = -1
                    if self._rate is not None:  # perhaps no state of the server before had it
                        self._asked[LearningRate] = _Asked(self._rate, now, math.inf)
        return self.agent.received(message)

    def fetched(self, version: int) -> list[Command]:
        """Handle the complete arrival of the requested version."""
        return self.agent.fetched(version)

    def due(self, now: float) -> list[Command]:
        """Return the requests that are due now, new or repeated, without pushes and fetches."""
        commands: list[Command] = []
        for answer, asked in self._asked.items():
            if asked.due <= now < asked.until:
                self._asked[answer] = asked._replace(due=now + self._again)
                commands.append(asked.request)
        work, agent = self.work, self.agent
        if (work is None or self.batch is None or self.computes or self._finishing
                or agent.stopped is not None or agent.undecided):
            return commands
        ahead = self.requests.of_worker(work.end - work.trained, self.batch, self._step,
                                        agent.rule.wait == "never", now, self._again)
        if ahead is not None:
            commands.append(AskWork(work.end, agent.seq, ahead=ahead))
        return commands

    def held(self) -> WorkHeld | None:
        """Return its part of the shared data, for a server that it attaches to."""
        work, data = self.work, self._data
        if work is None or data is None:
            return None
        end = work.trained if self._finishing else work.end
        return WorkHeld(data, work.answered, [
            Range(r.at, r.start, min(r.stop, r.position(end))) for r in work.held
            if r.at < end])

    def _given(self, given: Range, now: float) -> None:
        """Handle a range of the shared data, or the answer that none is free now."""
        if self.work is None or given.at != self.work.end:
            return
        self.requests.answered(given.start == given.stop, now)
        self.work.give(given)

    def _assigned(self, batch: int, direct: Direct) -> None:
        """Handle the number of examples in a step, or the examples of one step."""
        if direct.start is None:
            if self.work is not None and self.batch is not None and batch != self.batch:
                self._changes.append((self.work.taken, batch))
            self.batch, self.why = batch, direct.why or ""
        elif direct.start > self._newest:
            self._newest = direct.start
            self._pieces.append((batch, direct.start))
