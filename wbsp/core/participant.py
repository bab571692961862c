"""A member's life in a run: its agent, its part of the run's shared data, its requests for more.

Everything that a worker does between its admission and its leaving, without threads, sockets,
clocks and tensors: a driver turns what happens into events, and carries out the commands in their
order. The drivers are the real worker (`wbsp.worker.runtime`) and the virtual one
(`wbsp.simulate.nodes.worker`).

    events                        what the driver saw
    received(message, now)        a message of the server, except a Model
    fetched(version)              the requested version is complete
    step_begins()                 the compute thread begins a step on examples that it has taken
    step_done(samples, ...)       the step has ended
    starved()                     no step can begin, for lack of examples
    finish()                      no step follows
    due(now)                      time has passed, or another event was handled

    commands                      what the driver does
    Cut, Adopt, Leave             changes the model, between two steps
    Fetch, Expect, CutQuery       sends the one request at a time that the server answers
    AskWork                       sends a request beside it

The rules. Each is checked where it is kept, by RuleBroken; the first three by the agent.

1. No step is made while the agent waits.
2. A push is answered before the next one is cut.
3. The answered examples are trained, the trained ones were taken, and the taken ones were given.
4. Steps do not overlap, and only a step that has begun ends.
5. Work is requested between two steps, by one open request. None is requested while the server
   decides whether this worker cuts, after its stop, or after `finish`.
6. A worker without work, to which the server has none to give, pushes what it has trained, because
   others may wait for that.
7. A range, or a piece of the shared stream, that arrives again changes nothing.
"""

from __future__ import annotations

from collections import deque

from wbsp.core.agent import Agent, Command
from wbsp.core.messages import AskWork, Directed, Message, Range, Reattached, Work, WorkPlace
from wbsp.core.rules import RuleBroken
from wbsp.core.work.sequence import AGAIN, Requests, WorkSequence, mean_of
from wbsp.sync.base import Direct, WorkerRule


class Participant:
    """A member of a run, between two events.

    Attributes:
        agent: decides on cuts, fetches and adoptions.
        work: this member's part of the run's shared data; None: its data are its own.
        requests: for more work.
        batch: examples of its next step, if the server or the run's data give their number; None:
            a number of its own.
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
            again: seconds after which an unanswered request for work is repeated.
        """
        self.work = None if place is None else WorkSequence(place.at)
        self.agent = Agent(worker, rule, seq, run_steps, self.work, run_examples)
        self.requests = Requests()
        self.batch = None if place is None else place.data.batch
        self._again = again
        self._pieces: deque[tuple[int, int]] = deque()  # (examples, start) of the next steps
        self._newest = -1  # start of the newest piece
        self._step = 0.0  # seconds of a step, on average
        self._computes = False  # in a step
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
            assert self.batch is not None, "shared data have batches"
            taken = self.work.take(self.batch)
            return None if taken is None else (taken.stop - taken.start, taken.start)
        if self._pieces:
            return self._pieces.popleft()
        if self.agent.rule.shared:
            return None
        return () if self.batch is None else (self.batch,)

    def step_begins(self) -> None:
        """Handle the begin of a step."""
        if self._computes:
            raise RuleBroken(f"worker {self.agent.worker} begins a step within a step")
        self._computes = True

    def step_done(self, samples: int, seconds: float, steps: int = 1,
                  loss: float | None = None) -> list[Command]:
        """Handle the end of a step; the arguments are those of `Agent.step_done`."""
        if not self._computes:
            raise RuleBroken(f"worker {self.agent.worker} ends a step that has not begun")
        self._computes = False
        if self.work is not None:
            self.work.train(samples)
            self._step = mean_of(self._step, seconds)
        return self.agent.step_done(samples, seconds, steps, loss)

    @property
    def dry(self) -> bool:
        """True if all given examples are trained, and the server has none to give now."""
        work = self.work
        return work is not None and self.requests.none and work.trained == work.end

    def starved(self) -> list[Command]:
        """Handle the lack of examples for the next step."""
        return self.agent.starved() if self.dry else []

    def finish(self) -> list[Command]:
        """Push the uncut progress, then leave; no step follows."""
        self._finishing = True
        return self.agent.finish()

    # Events of the network and of time.

    def received(self, message: Message, now: float) -> list[Command]:
        """Handle a message of the server, except a Model: see `fetched`."""
        match message:
            case Work(at, start, stop):
                self._given(Range(at, start, stop), now)
            case Directed(direct) if direct.batch is not None:
                self._assigned(direct.batch, direct)
            case Reattached(joined=joined):
                self.requests.forget()
                if joined:
                    self._pieces.clear()
                    self._newest = -1
        return self.agent.received(message)

    def fetched(self, version: int) -> list[Command]:
        """Handle the complete arrival of the requested version."""
        return self.agent.fetched(version)

    def due(self, now: float) -> list[Command]:
        """Return the requests beside pushes and fetches that are due now, new or repeated."""
        work, agent = self.work, self.agent
        if (work is None or self.batch is None or self._computes or self._finishing
                or agent.stopped is not None or agent.undecided):
            return []
        ahead = self.requests.of_worker(work.end - work.trained, self.batch, self._step,
                                        agent.rule.wait == "never", now, self._again)
        return [] if ahead is None else [AskWork(work.end, agent.seq, ahead=ahead)]

    def _given(self, given: Range, now: float) -> None:
        """Handle a range of the shared data, or the answer that none is free now."""
        if self.work is None or given.at != self.work.end:
            return
        self.requests.answered(given.start == given.stop, now)
        self.work.give(given)

    def _assigned(self, batch: int, direct: Direct) -> None:
        """Handle the number of examples in a step, or the examples of one step."""
        if direct.start is None:
            self.batch = batch
        elif direct.start > self._newest:
            self._newest = direct.start
            self._pieces.append((batch, direct.start))
