"""The parameter server without its sockets: events, decisions, and their effects.

Every event goes through three steps. The model decides, and its answer becomes records without
tensors (`wbsp.core.decisions`); the engine applies the records to the store and the book-keeping,
which cannot fail; and each worker is sent its part of them (`wbsp.core.messages`).

The real server and the virtual-time cluster both drive this object, so that both behave alike. It
receives events (join, leave, push, time) with the time in seconds, and returns the messages to the
workers, in order. It never blocks, and reads no clock.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import partial
from typing import Any, TypeVar

import numpy as np
from msgspec.structs import replace

from wbsp.core.decisions import (
    Accepted,
    Adopted,
    Committed,
    Failed,
    Record,
    Rejected,
    Resent,
    acknowledge,
    check_alarm,
    decide,
    decide_cut,
    joined,
    left,
    outgoing_of,
)
from wbsp.core.ledger import Ledger
from wbsp.core.messages import (
    Ack,
    AskWork,
    CutDecision,
    CutQuery,
    Directed,
    Final,
    Granted,
    LearningRate,
    LetGo,
    Measured,
    Model,
    Outgoing,
    Reattached,
    SharedData,
    Stop,
    ToWorker,
    WorkHeld,
    WorkPlace,
)
from wbsp.core.rendezvous import LEAP, Rendezvous
from wbsp.core.shared_work import SharedWork, is_finite
from wbsp.core.state import EngineState, Newest
from wbsp.core.stats import AnsweredWork, Member, count_rejected
from wbsp.core.store import Store
from wbsp.core.work.strikes import STRIKES, Health
from wbsp.core.work_ledger import NOT_OWN
from wbsp.limits import one_line
from wbsp.sync.base import UNFIT, Action, Commit, Direct, Push, SyncModel
from wbsp.tensors.blocks import Blocks, floats
from wbsp.tensors.ops import bound, squared

T = TypeVar("T")
_EPOCHS = 1000  # newest epochs whose results are kept
_SICK = (
    f"the last {STRIKES} pushes of worker {{worker}} were not finite, or too large, each of other "
    "examples and from a sound version: what this process keeps for itself is at fault, such as "
    "its optimizer's moments. The run {then}; start it again, and clip gradients or lower the "
    "learning rate if that returns")
BEFORE = "by an earlier server"  # the reason of rejections that only workers have reported


class Engine:
    """A model, a store and a ledger; used by one thread.

    Training starts when `expected` workers have joined, or when `start` is called: they begin
    together from W_0. After `stop_samples` pushed samples over all workers, or `stop_steps` steps,
    or when all work of the shared data is done, every worker is sent a Stop. When the last active
    worker has finished, the pending rest becomes the final version.

    Attributes:
        log: log(now, kind, **fields) is called for every event.
        epochs: over the data that all workers share, if the server sets them; None: the workers'
            loops set them.
        on_fault: called with an error that the model raised, or its breach of contract. True:
            `Failed` replaces the model, and the workers finish; False: the error is raised.
        failed: the run has ended because all workers were sick, or all examples were given up.
        trained: samples of the pushes that this object has accepted; `samples` also counts those of
            earlier servers.
        accepted: number of the pushes that this object has accepted.
    """

    def __init__(self, model: SyncModel, store: Store, expected: int = 1,
                 stop_samples: float = float("inf"), log: Callable[..., None] | None = None,
                 on_fault: Callable[[BaseException], bool] = lambda error: False,
                 epochs: int | None = None, stop_steps: float = float("inf")):
        if expected < 1:
            raise ValueError(f"worker_num must be at least 1, not {expected}")
        self.model = model
        self.store = store
        self.ledger = Ledger()
        self.rendezvous = Rendezvous(expected)
        self.stop_samples = stop_samples
        self.log = log or (lambda *_, **__: None)
        self.on_fault = on_fault
        self._on_version: Callable[[float], None] | None = None
        self._settled: Callable[[], bool] = lambda: True
        self._seen = store.latest.version  # the newest version that the observer knows
        self.health = Health()
        self.work: SharedWork | None = None  # None: no worker has joined, or each has its own data
        self._epochs = epochs
        self._stop_steps = stop_steps
        self.measured: Measured | None = None  # of the newest epoch
        self.rate: LearningRate | None = None  # the newest that a worker has set for all
        self.found: dict[int, dict[str, float]] = {}  # newest epochs -> their metrics by name
        self._first = 0  # this server's first version; models read earlier ones as `_first` - 1
        self._void: set[int] = set()  # workers that resent a sum that is not in the model: `Resent`
        self.members: dict[int, Member] = {}
        self._out_of_turn = False  # the engine, and not the model, has committed the newest version
        self._here: set[int] = set()  # the active workers: counting them must not cost O(N)
        self._replaced: set[int] = set()  # workers whose next process is about to join
        # worker that waits for a grant -> number of the fetch that its push left, version it has
        self._left: dict[int, tuple[int, int]] = {}
        self._at_rest: list[Callable[[float], None]] = []
        self._logged_norm = 0  # version; the log has the norms of the sums up to this one
        self.started = False
        self.stop_reason: str | None = None
        self.failed = False
        self.ends = False
        self.done = False
        self.steps = 0
        self.samples = 0
        self.trained = self.accepted = 0

    @property
    def newest(self) -> Newest:
        """What a checkpoint would hold."""
        return Newest(self.store.latest.version, self._ended, self._ended and self._settled())

    @property
    def _ended(self) -> bool:
        """True if all workers have finished, here or since an earlier server.

        A server that resumes such a run waits only for workers without the last version; its own
        state must record the end, too, because it may be lost meanwhile.
        """
        return self.done or (self.rendezvous.ended and not self.started)

    @property
    def active(self) -> list[int]:
        """Workers that have joined and not left, in ascending order."""
        return sorted(self._here)

    @property
    def present(self) -> int:
        """Number of workers that have joined and not left; any thread may ask."""
        return len(self._here)

    def open(self, worker: int, data: SharedData | None, first_epoch: int,
             held: WorkHeld | None = None) -> WorkPlace | None:
        """Return where in the shared data a worker that is about to join begins, or None.

        Args:
            worker: index of the worker.
            data: the data that all workers share; None: the worker has its own.
            first_epoch: epochs that its loop has completed.
            held: what a resumed site holds of the data; None: this is none.

        Raises:
            ValueError: its data are not the run's; one line.
        """
        me, own = f"worker {worker}", "give its fit the data of hook.examples"
        if data is not None and self._on_version is not None and self.work is None:
            raise ValueError(f"{me} brings data that all workers share, and the first worker of "
                             "this site has data of its own: give all of them hook.examples, or "
                             "none")
        if data is None:
            if self.work is not None:
                raise ValueError(f"{me} has data of its own, and the run's workers share theirs "
                                 f"({self.work.data.n:,} examples): {own}")
            if self._epochs is not None:
                raise ValueError(f"--epochs={self._epochs} of the server counts passes over data "
                                 f"that all workers share, and {me} has data of its own: {own}, or "
                                 "start the server without --epochs")
            return None
        self._share(worker, data if self._epochs is None else data._replace(epochs=self._epochs))
        assert self.work is not None
        try:
            place = self.work.open(worker, data, first_epoch, self._epochs)
            if held is not None and held.site:
                due = self.ledger.next_seq(worker)
                place = place._replace(own=self.work.claim_all(worker, held, place.at, due))
            return place
        except ValueError:
            if not self.members:  # the run's data are not known yet
                self.work = None
            raise

    def _share(self, worker: int, data: SharedData) -> None:
        """Make this data the run's shared data, if it has none.

        Raises:
            ValueError: the run cannot share them; one line.
        """
        if self.work is not None:
            return
        rule, me = self.model.rule, f"worker {worker}"
        if rule.batch not in (None, data.batch):
            raise ValueError(f"{me} brings data in batches of {data.batch}, and {self.model.name} "
                             f"makes its batches of {rule.batch} on average: start the server with "
                             f"--sync_option=batch={data.batch}, or give batch_size={rule.batch}")
        if rule.loses_steps:
            raise ValueError(f"{me} brings data that all workers share, each example once an "
                             f"epoch, and {self.model.name} with adopt=replace loses steps: choose "
                             "adopt=rebase, or give each worker data of its own")
        if self.members:
            raise ValueError(f"{me} brings data that all workers share, and the others have data "
                             "of their own: give all of them hook.examples, or none")
        self.work = SharedWork(data, rule)

    def join(self, worker: int, now: float, sgd: bool = False) -> list[Outgoing]:
        """Handle a worker that joins; its grant follows at once, or when all have joined.

        Args:
            worker: index of the worker.
            now: seconds.
            sgd: its updates are sums of gradients times a rate.
        """
        member = self.members.setdefault(worker, Member())
        if member.active:
            raise ValueError(f"worker {worker} has joined already")
        self._replaced.discard(worker)
        member.joins(sgd)
        self._here.add(worker)
        self.health.left(worker)  # this process is another one
        self.log(now, "join", worker=worker, version=self.store.latest.version,
                 **({"sgd": True} if sgd else {}))
        if self.stop_reason is not None:
            return [Outgoing(worker, self._stop(self.stop_reason))]
        if self.started:
            self.rendezvous.enter_round(worker, self.members, self._here)
            return self._carry_out(lambda model: joined(
                model, worker, model.join(worker, now)), now) + (
                    self._told_so_far(worker) + self._stop_if_due(now) + self.feed(now))
        return self.start(now) if self.rendezvous.complete(self._here) else []

    def owes(self, worker: int) -> bool:
        """Return whether a worker had finished, in a run that has ended.

        All that it has trained is in the last version, so a new process of it needs only that.
        """
        resumed = self.rendezvous.ended and not self.started
        member = self.members.get(worker)
        return (resumed and worker in self.rendezvous.owed) or (
            (resumed or self.done) and member is not None and member.finished)

    def join_for_last(self, worker: int, now: float) -> list[Outgoing]:
        """Handle a new process of a worker that `owes` names; it trains nothing, and leaves."""
        self.members.setdefault(worker, Member()).is_done(True)
        self.log(now, "join", worker=worker, version=self.store.latest.version, finished=True)
        return [Outgoing(worker, self._stop(self.stop_reason or "done"))]

    def start(self, now: float) -> list[Outgoing]:
        """Start, or resume, with the workers that have joined."""
        self.started = True
        self.log(now, "start", workers=self.active)
        if self.rendezvous.leaps(self._here):
            self._first = max(self.store.latest.version + LEAP, self.rendezvous.floor)
        self._raise_version(max(self._first, self.rendezvous.floor), now)
        told = self._carry_out(lambda model: self.rendezvous.join(
            model, self.active, self.members, now), now)
        outgoing = [*self.rendezvous.answers, *told]
        if not self._here:
            if self.rendezvous.ended:  # they had finished, whether they have reconnected or not
                for worker in self.rendezvous.owed:
                    if worker in self.members:
                        self.members[worker].is_done(True)
            return outgoing + self._conclude(now)
        if self.stop_reason is not None:
            return outgoing + self._tell_all(self._stop(self.stop_reason))
        for worker in self.active:  # they may have missed them with an earlier server
            outgoing += self._told_so_far(worker)
        return outgoing + self._stop_if_due(now) + self.feed(now)

    @property
    def lacks_work(self) -> bool:
        """True if work of a resumed run is undone, and all workers that are here have finished.

        It was lost with processes that had taken it. The workers' loops have ended, so that only
        new processes can do it. False for sites: they would have to train with workers that have
        gone, and the run ends without that work.
        """
        work = self.work
        return (self.rendezvous.resumed and not self.rendezvous.ended and not self.done
                and self.stop_reason is None and self._on_version is None
                and not self._here and work is not None and not work.ledger.over
                and not work.of_sites and (not self.started or self._some_finished))

    def await_anew(self, now: float) -> list[int]:
        """Wait for new processes of the workers that have finished; return these."""
        self.rendezvous.begin_anew()
        workers = sorted(worker for worker, member in self.members.items() if member.finished)
        for worker in workers:
            self.members[worker].is_done(False)
            self.log(now, "leave", worker=worker, reason="its work was lost", finished=False)
        return workers

    def resend(self, worker: int, work: AnsweredWork, update: np.ndarray | Blocks | None,
               now: float, square: float = 0.0, held: WorkHeld | None = None) -> None:
        """Handle a resent sum of pushes that an earlier server had decided on and lost.

        The model is not consulted, because it decided before the restart.

        Args:
            worker: index of the worker.
            work: metadata of the pushes.
            update: the sum of weight * update, float32 [size]; None: all were rejected.
            now: seconds.
            square: as in `push`.
            held: as in `attach`.

        Raises:
            ValueError: no member could have sent the sum.
        """
        self.store.check(update)
        due = self.ledger.next_seq(worker)
        square = square if update is None else squared(floats(update))
        if work.first != due or work.pushes < 1:
            raise ValueError(f"worker {worker} sent {work} again, but push {due} is due")
        if reason := self.store.objection(1.0, bound(square)):
            raise ValueError(f"worker {worker} sent a sum of pushes again that is {reason}")
        work = work._replace(rejected=self._given(work.rejected))
        record = Resent(worker, work)
        if not self._still_undone(worker, work, held):
            self._void.add(worker)
            record = Resent(worker, work := work.void(NOT_OWN), 0.0)
        self.members.setdefault(worker, Member()).count_all(work)
        self.steps += work.steps
        self.samples += work.samples
        self.trained += work.samples - work.unused
        self.accepted += work.pushes - sum(work.rejected.values())
        self.ledger.replay(worker, work.last)
        self._apply([record], now, update=update, square=square)

    def _still_undone(self, worker: int, work: AnsweredWork, held: WorkHeld | None) -> bool:
        """Return False if other workers have done a part of a resent sum's work since.

        Raises:
            ValueError: no server can have given the work.
        """
        if held is not None:
            self._share(worker, held.data)
        if self.work is None:
            return True
        return self.work.ledger.resent(work.accepted)

    def attach(self, worker: int, newest: int, left: bool, waits: bool,
               now: float, held: WorkHeld | None = None) -> list[Outgoing]:
        """Handle a worker of this run that reconnects and continues; its `resend` came before.

        Args:
            worker: index of the worker.
            newest: version that it has.
            left: it has finished.
            waits: it waits for a version, and is not in mid-step.
            now: seconds.
            held: its part of the shared data.

        Raises:
            ValueError: no member could be in this state.
        """
        earlier = self.members.get(worker)
        for_last = not left and self.owes(worker)
        if (earlier is not None and earlier.active) or (self.done and not (left or for_last)):
            raise ValueError(f"worker {worker} reattached, but takes part already or is too late")
        if held is not None:
            self._share(worker, held.data)
        own, epochs = [], 0
        if self.work is not None:
            if held is None or self.work.disagrees(held.data):
                raise ValueError(f"worker {worker} attached again with other data than the run's")
            own = self.work.claim(worker, held, left or for_last, waits,
                                  self.ledger.next_seq(worker))
            epochs = self.work.ledger.epoch
        if for_last:  # the server before had admitted it for that, too
            return [Outgoing(worker, Reattached(0, True, *self.ledger.safe(worker), None, own=own,
                                                epochs=epochs)),
                    *self.join_for_last(worker, now)]
        member = self.members.setdefault(worker, Member())
        member.returns(left)
        if not left:
            self._here.add(worker)
        if self.model.rule.wait == "model" and not (left or waits):
            self.rendezvous.is_busy(worker)
        self.log(now, "reattach", worker=worker, version=newest, finished=left)
        safe, mark = self.ledger.safe(worker)
        ack = self.ledger.answer(worker)
        if ack is not None:  # its grant is void
            ack = replace(ack, granted=None, hold=False, durable=self.ledger.durable)
        void = worker in self._void
        self._void.discard(worker)
        answer = Outgoing(worker, Reattached(0, True, safe, mark, ack, void=void,
                                             own=own, epochs=epochs))
        if not self.started:
            known = left and newest <= self.store.latest.version  # it needs no newer version
            self.rendezvous.came_back(answer, newest if known else newest + 1, left)
            # All that reconnected may have finished while another worker still has more.
            trained = self._here or self.work is None or self.work.ledger.over
            due = self.stop_reason is not None or (
                trained and self.rendezvous.complete(self._here))
            return self.start(now) if due else []
        if left:
            return [answer, *([self._final(worker)] if self.done else [])]
        self.rendezvous.enter_round(worker, self.members, self._here)
        self._raise_version(newest + 1, now)
        stop = [] if self.stop_reason is None else [
            Outgoing(worker, self._stop(self.stop_reason))]
        return [answer, *self._carry_out(lambda model: joined(
            model, worker, model.rejoin(worker, 0, now)), now), *stop,
                *self._told_so_far(worker), *self._stop_if_due(now), *self.feed(now)]

    def has_final(self, worker: int, now: float) -> list[Outgoing]:
        """Handle a worker that comes to a resumed run for the next one: it has the last version, if
        this one has ended; or its process has ended, and another one has come."""
        rendezvous = self.rendezvous
        if self.started or not rendezvous.ended:
            return []
        rendezvous.has_last(worker)
        return self.start(now) if rendezvous.complete(self._here) else []

    def leave(self, worker: int, now: float, reason: str, finished: bool = False,
              replaced: bool = False) -> list[Outgoing]:
        """Handle a worker that finished in good order or was lost; the others continue.

        `replaced`: its next process is about to join, so that the run does not end without it;
        otherwise `not_replaced` follows.
        """
        if replaced:
            self._replaced.add(worker)
        member = self.members[worker]
        member.leaves(finished, reason)
        self._here.discard(worker)
        self._left.pop(worker, None)
        self.health.left(worker)
        self.rendezvous.leave(worker)
        if self.work is not None:
            self.work.left(worker)
        self.log(now, "leave", worker=worker, reason=reason, finished=finished)
        if self.done:  # too late for training, but it may have the last version
            return [self._final(worker)] if finished else []
        if finished and self.rendezvous.ended and not self.started:
            self.rendezvous.finishes(worker)
            return self.start(now) if self.rendezvous.complete(self._here) else []
        # Workers that leave after the stop still count, so that the others' last pushes keep their
        # weights; else one late update would move the final version N times too far.
        told = finished and self.stop_reason is not None
        outgoing: list[Outgoing] = []
        if worker in self.model.active and not told:
            outgoing = self._carry_out(lambda model: left(
                model, worker, model.leave(worker, now)), now)
        if self._over:
            outgoing += self._conclude(now)
        return outgoing + self.feed(now)

    def not_replaced(self, worker: int, now: float) -> list[Outgoing]:
        """Handle the loss of a process that was about to join, see `leave`; others do not count."""
        if worker not in self._replaced:
            return []
        self._replaced.discard(worker)
        return self._conclude(now) if self._over and not self.done else []

    @property
    def _over(self) -> bool:
        """All workers have left, no process of theirs is about to join, and none is waited for."""
        return not self._here and not self._replaced and (
            self.stop_reason is not None
            or (self.started and self._some_finished and not self.lacks_work))

    @property
    def _some_finished(self) -> bool:
        return any(member.finished for member in self.members.values())

    def push(self, push: Push, update: np.ndarray | Blocks | None, now: float, fetch: int = 0,
             square: float | None = None) -> list[Outgoing]:
        """Handle a complete push.

        Args:
            push: its metadata.
            update: float32 [store.size]; the engine owns it from here on.
            now: seconds.
            fetch: number of the fetch that the push carries. If the answer grants a version, the
                Model follows; otherwise it follows the grant that the worker waits for, if any.
            square: squared norm of the update; None: not known yet.

        Raises:
            ValueError: no member could have sent the push; nothing has changed.
            ContractError: the model broke its contract.
        """
        self.store.check(update)
        worker = push.worker
        if self.ledger.seen(worker, push.seq):
            self.log(now, "duplicate", worker=worker, seq=push.seq)
            ack = self.ledger.answer(worker)
            return [] if ack is None or ack.seq != push.seq else self._answer(push, ack, fetch)
        member = self._started(worker, "pushed")
        self._left.pop(worker, None)
        if push.base_version < self._first:  # the versions since are not known
            push = push._replace(base_version=self._first - 1)
        if square is None and update is not None:
            square = squared(floats(update))
        most, owns = bound(square or 0.0), self._owns(push)
        if self.work is not None:
            push = push._replace(samples=min(push.samples, self.work.examples(push)))
        batch = None
        if self.work is not None and self._on_version is None and push.batch is not None:
            batch = self.work.data.batch  # the workers of a site keep the script's
        push = push._replace(norm2=self.norm2(square), batch=batch)
        newest = self.store.latest.version
        records = self._ask(lambda model: self._decide(model, model.push(push, now), push, most,
                                                       owns))
        member.count(push.steps, push.samples, push.seconds, push.base_version)
        self.steps += push.steps
        self.samples += push.samples
        self._apply(records, now, push, update, square)
        ack, others = acknowledge(push, records, self.ledger.mark, self.steps)
        self.trained += push.samples if ack.accepted else 0
        self.accepted += ack.accepted
        self.ledger.record(worker, push.seq, ack)
        waits = ack.granted is None and (ack.hold or self.model.rule.wait == "model")
        if waits and fetch and self.stop_reason is None and self.model.rule.wait != "never":
            self._left[worker] = fetch, push.base_version
        finite, new = is_finite(push, ack.accepted, ack.reason), True
        fresh = finite is not False or self.health.fresh(worker, push.base_version,
                                                         self.model.rule.adopt == "return")
        if self.work is not None:
            counts = fresh or self.health.stuck(worker)
            due, new = self._settle(self.work, push, ack, finite if counts else None, waits, now)
            if due:
                self._apply([Committed(self.store.latest.version + 1)], now)
                self._out_of_turn = True
        if finite is False:
            self.health.unfit(worker, push.base_version, fresh, new, newest)
        elif finite:
            self.health.finite(worker)
        for other in self.work.ledger.pardoned if self.work is not None else ():
            self.health.pardon(other)
        self._rest(now)
        stop = self._stop_if_due(now)  # before the versions: a stopped worker needs none
        return [*self._with_versions(others), *self._answer(push, ack, fetch), *stop,
                *self._let_go(now), *self.feed(now)]

    def silent(self, workers: set[int], now: float) -> list[Outgoing]:
        """Note which workers have not been heard of for a while.

        What they hold of the shared data is given to workers that have nothing else to train.
        """
        if self.work is None or self.stop_reason is not None:
            return []
        taken, told = self.work.silent(workers & self._here, now)
        for worker in taken:
            self.log(now, "silent", worker=worker)
        return told

    def _let_go(self, now: float) -> list[Outgoing]:
        """Let go of sick workers; if that is all of them, end the run."""
        if self.stop_reason is not None:
            return []
        told: list[Outgoing] = []
        sick = self.health.sick(self._here)
        every = bool(sick) and len(sick) == len(self._here)
        if every:
            self.failed = self.ends = True
            self.stop_reason = "the pushes of all workers were not finite: nothing can be trained"
            self.log(now, "stop", reason=self.stop_reason, version=self.store.latest.version)
        for worker in sick:
            if self.work is not None:
                self.work.ledger.forgive(worker)
            self.log(now, "sick", worker=worker, all=every)
            told.append(Outgoing(worker, LetGo(_SICK.format(
                worker=worker, then="ends, because no worker is sound" if every else
                "continues without it"))))
            told += self.leave(worker, now, "sick: its pushes were not finite")
        return told

    @property
    def examples(self) -> int:
        """Examples that all workers have pushed; of shared data, those that need no training."""
        return self.samples if self.work is None else self.work.ledger.done

    def norm2(self, square: float | None) -> float | None:
        """Return a squared norm in the digits that the model receives.

        Sums on other machines, and of the parts of shards, may differ in the ninth digit.
        """
        return None if square is None or not math.isfinite(square) else float(f"{square:.5g}")

    def _owns(self, push: Push) -> bool:
        """Return whether its worker owned all examples of this push.

        Raises:
            ValueError: no worker can have made the push.
        """
        if (push.to is None and push.spans is None) != (self.work is None):
            raise ValueError(f"worker {push.worker} pushed with other data than the run's")
        return self.work is None or self.work.owns(push)

    def _settle(self, work: SharedWork, push: Push, ack: Ack, finite: bool | None, waits: bool,
                now: float) -> tuple[bool, bool]:
        """Settle the examples of an answered push; `waits`: its worker waits for a grant.

        `finite`: as in `SharedWork.pushed`.

        Returns:
            Whether the pending sum must become a version out of turn, because it is validated
            before training continues, or because no push follows; and whether the examples are
            new, as in `Health.unfit`.
        """
        before = work.ledger.epoch
        given_up, new = work.pushed(push, ack.accepted, finite, waits, now)
        for start, stop in given_up:
            self.log(now, "give_up", worker=push.worker, start=start, stop=stop)
        if (epoch := work.ledger.epoch) > before:  # with what is pending
            version = self.store.latest.version + bool(self.store.accepted)
            self.log(now, "epoch", epoch=epoch, epochs=work.data.epochs, version=version)
        due = work.ledger.over or (epoch > before and work.data.validate == "wait")
        return due and self.store.accepted > 0, new

    def ask_work(self, worker: int, ask: AskWork, now: float) -> list[Outgoing]:
        """Handle a worker's request for more work.

        Raises:
            ValueError: no member could send the request.
        """
        if self.owes(worker):  # there is none
            return []
        if self.work is None or worker not in self._here:
            raise ValueError(f"worker {worker} asked for work, but the run has no shared data")
        if self.stop_reason is not None:
            return []
        sends = ask.pushes > self.ledger.next_seq(worker)
        return self.work.ask(worker, ask.have, sends, now, ask.least, ask.ahead)

    def measure(self, worker: int | None, measured: Measured, now: float) -> list[Outgoing]:
        """Handle the results of an epoch's version, from a worker or a reader (None).

        The first results of a complete epoch count.
        """
        if (self.work is None or measured.epoch >= self.work.ledger.epoch
                or (self.measured is not None and self.measured.epoch >= measured.epoch)):
            return []
        self.measured = measured
        self.note(measured.epoch, measured.values)
        self.log(now, "measured", worker=worker, epoch=measured.epoch, values=measured.values)
        return self._tell_all(measured)

    def set_rate(self, worker: int | None, rate: LearningRate, now: float) -> list[Outgoing]:
        """Handle a learning rate that a worker sets for all; the first of an epoch counts.

        The epoch is one that the run has begun.

        Args:
            worker: index of the worker; None: the server above has sent the rate.
        """
        if self.work is None or (self.rate is not None and self.rate.epoch >= rate.epoch) or (
                worker is not None and rate.epoch >= self.work.ledger.begun):
            return []
        self.rate = rate
        self.log(now, "learning_rate", worker=worker, epoch=rate.epoch, rate=rate.rate)
        return self._tell_all(rate)

    def _told_so_far(self, worker: int) -> list[Outgoing]:
        """Return the messages that all have been sent, for a worker that joins later."""
        return [Outgoing(worker, one) for one in (self.measured, self.rate) if one is not None]

    def note(self, epoch: int, values: Mapping[str, float]) -> None:
        """Record an epoch's results."""
        self.found.setdefault(epoch, {}).update(values)
        if len(self.found) > _EPOCHS:
            del self.found[min(self.found)]

    def feed(self, now: float) -> list[Outgoing]:
        """Give work to the workers that have requested it; due at a site that has new work."""
        if self.work is None or self.stop_reason is not None:
            return []
        return self.work.feed(now)

    def fetch(self, worker: int, number: int) -> list[Outgoing]:
        """Handle a request for the newest version; the answer carries its `number`.

        Without an answer, the worker requests again when it is granted a version.
        """
        self._left.pop(worker, None)
        early = worker in self._here & self.rendezvous.ahead and self.stop_reason is None
        return [] if early else [Outgoing(worker, Model(number, self.store.latest.version))]

    def query(self, worker: int, query: CutQuery, now: float) -> list[Outgoing]:
        """Handle a worker's question whether to cut.

        Raises:
            ValueError: no member could ask it.
        """
        self._started(worker, "asked")
        if self.model.rule.push != "on_query":
            raise ValueError(f"worker {worker} asked whether to cut, but {self.model.name} has no "
                             "push='on_query'")
        cut = False
        outgoing: list[Outgoing] = []
        if self.stop_reason is None:
            cut, records = self._ask(lambda model: decide_cut(
                model, self.rendezvous.due(model.query(worker, query.steps, query.seconds, now)),
                self.store.latest.version, self.members, worker))
            self._apply(records, now)
            self._rest(now)
            outgoing = self._with_versions(outgoing_of(records))
        return [*outgoing, Outgoing(worker, CutDecision(query.number, cut)), *self.feed(now)]

    def tick(self, now: float) -> list[Outgoing]:
        """Handle the model's alarm time."""
        return self._carry_out(lambda model: model.tick(now), now) + self.feed(now)

    def observe(self, on_version: Callable[[float], None], settled: Callable[[], bool]) -> None:
        """Have a site observe its versions.

        Args:
            settled: returns whether no version from above follows.
            on_version: called with the time at the end of an event that made a version, with
                nothing pending and before its messages are returned. It may `adopt`.
        """
        self._on_version, self._settled = on_version, settled

    def share_data(self, work: SharedWork) -> None:
        """Give the workers examples of these data, which a site has from the server above."""
        self.work = work

    def fail(self, reason: str) -> None:
        """Note why a run that is over has failed; the first reason counts."""
        self.stop_reason = self.stop_reason or reason

    def adopt(self, vector: np.ndarray | None, above: int, now: float) -> None:
        """Make a version of version `above` of the server above, while nothing is pending.

        The workers get it with their next grant.

        Args:
            vector: that version with this site's uncut progress, float32 [size]; the store owns it
                from here on. None: without tensors.
            above: number of the version there.
            now: seconds.
        """
        version = self.store.latest.version + 1
        self._apply([Adopted(version, above)], now, update=vector)
        self._seen = version
        self._ask(partial(_hear, version, None, now))

    def complete(self, now: float) -> None:
        """Commit the pending updates although the model has not: no push follows for now."""
        if self.store.accepted:
            self._apply([Committed(self.store.latest.version + 1)], now)
            self._rest(now)

    def stop(self, reason: str, now: float, ends: bool = False) -> list[Outgoing]:
        """Stop all workers; the first reason counts. `ends`: as in `Stop`."""
        if self.stop_reason is not None:
            return []
        self.stop_reason = reason
        self.ends = ends
        self._left.clear()
        self.log(now, "stop", reason=reason, version=self.store.latest.version)
        if self.rendezvous.answers and not self.started:
            return self.start(now)
        if not self._here:
            return [] if self._replaced else self._conclude(now)
        return self._tell_all(self._stop(reason))

    def at_rest(self, act: Callable[[float], None], now: float) -> None:
        """Call `act`(time) as soon as nothing is pending: now, or at the end of an event.

        Repeated requests cause one call. `state` is then that of the newest version. Such a moment
        follows every commit, and may end with the next push.
        """
        if act not in self._at_rest:
            self._at_rest.append(act)
        self._rest(now)

    def state(self) -> EngineState:
        """Return a copy of the state to resume from, without the newest version's tensors."""
        ledger = self.ledger
        members = self.members
        awaited = self.rendezvous.awaited
        owed = {w for w, m in members.items() if self.done and m.finished}
        if self.started:
            awaited = set() if self.done else self._replaced.union(
                w for w, m in members.items() if m.active or m.finished)
        elif self.rendezvous.ended:
            owed |= self.rendezvous.owed - self.rendezvous.have
        return EngineState(
            version=self.store.latest.version, next_seq=ledger.state(),
            totals=(self.steps, self.samples),
            members={worker: member.state() for worker, member in members.items()},
            work=None if self.work is None else self.work.ledger.state(),
            doubts={worker: copy(doubt) for worker, doubt in self.health.doubts.items()},
            rate=None if self.rate is None else (self.rate.epoch, self.rate.rate),
            measured=None if self.measured is None else (
                self.measured.epoch, self.measured.values),
            found={epoch: dict(values) for epoch, values in self.found.items()},
            mark=ledger.mark,
            answers={worker: (ack.seq, ack.accepted, ack.reason, ack.weight, ack.mark)
                     for worker, ack in ledger.answers().items()},
            awaited=None if awaited is None else sorted(awaited), ended=self._ended,
            owed=sorted(owed))

    def restore(self, state: EngineState, rival: bool = False) -> None:
        """Resume from a `state`, also from one of an older release; `rival`: as in `Rendezvous`.

        Raises:
            ValueError: the state does not fit this run; one line.
        """
        if state.work is not None:
            self.work = SharedWork(state.work.data, self.model.rule, state.work)
            if self._epochs is not None:
                self.work.ledger.extend(self._epochs)
        self.health = Health(state.doubts)
        self.rate = None if state.rate is None else LearningRate(*state.rate)
        self.measured = None if state.measured is None else Measured(*state.measured)
        self.found = {epoch: dict(values) for epoch, values in state.found.items()}
        answers = {worker: Ack(seq, accepted, reason, weight=weight, mark=mark)
                   for worker, (seq, accepted, reason, weight, mark) in state.answers.items()}
        self.ledger = Ledger(state.next_seq, answers, state.mark)
        self.rendezvous = Rendezvous(self.rendezvous.expected, state.awaited, state.ended,
                                     state.owed, resumed=True, rival=rival)
        self.steps, self.samples = state.totals
        self.members = {worker: Member(**vars(totals)) for worker, totals in state.members.items()}

    def _given(self, rejected: dict[str, int]) -> dict[str, int]:
        """Return `rejected` by reasons that this server or its checkpoint has given.

        Reasons that only a worker reports count as `BEFORE`, because a worker must not invent
        reasons.
        """
        known = UNFIT.union(*(member.rejected for member in self.members.values()))
        given = Counter[str]()
        for reason, pushes in rejected.items():
            given[reason if reason in known else BEFORE] += pushes
        return dict(given)

    def _rest(self, now: float) -> None:
        """End an event: report versions to the model, make the calls that wait until nothing is
        pending."""
        for version, square in self.store.new_norms():
            norm2 = self.norm2(square)
            self._ask(partial(_hear, version, norm2, now))
            if norm2 is not None and version > self._logged_norm:  # shards say it later
                self.log(now, "norm", version=version, norm2=norm2)
        newest = self.store.latest.version
        if self._on_version is not None and newest > self._seen and not self.store.accepted:
            self._seen = newest
            self._on_version(now)
        if self._at_rest and not self.store.accepted:
            acts = self._at_rest
            self._at_rest = []
            for act in acts:
                act(now)

    def _started(self, worker: int, what: str) -> Member:
        member = self.members.get(worker)
        # a worker that joined after the stop is a member, but the model does not know it
        if member is None or not member.active or worker not in self.model.active:
            raise ValueError(f"worker {worker} {what} without having been started")
        return member

    def _answer(self, push: Push, ack: Ack, fetch: int) -> list[Outgoing]:
        """Return the answer to a push, and the granted version if the push carried a fetch.

        The answer states which pushes are durable by now. It has no version that the worker has.
        """
        granted, worker = ack.granted, push.worker
        due = fetch and granted is not None and not self._returns(granted, push.base_version)
        told = replace(ack, durable=self.ledger.durable, examples=self.examples)
        return [Outgoing(worker, told),
                *(self.fetch(worker, fetch) if due else [])]

    def _returns(self, granted: int, held: int) -> bool:
        """Return whether a grant makes a worker return to version `held`, which it has."""
        return self.model.rule.adopt == "return" and granted <= held

    def _with_versions(self, outgoing: Iterable[Outgoing]) -> list[Outgoing]:
        """Add the version after each grant to a worker whose push left its fetch here."""
        told: list[Outgoing] = []
        for worker, message in outgoing:
            fetch, held = self._left.pop(worker, (0, 0)) if isinstance(message, Granted) else (0, 0)
            if not isinstance(message, Granted) or not fetch:
                told.append(Outgoing(worker, message))
                continue
            follows = not self._returns(message.version, held)
            told.append(Outgoing(worker, Granted(message.version, fetch, follows)))
            if follows:
                told += self.fetch(worker, fetch)
        return told

    def _stop(self, reason: str) -> Stop:
        """Return the order to end a run that has ended for this reason."""
        return Stop(reason, self.ends, self.work is not None and not self.work.ledger.over)

    def _tell_all(self, message: ToWorker) -> list[Outgoing]:
        return [Outgoing(worker, message) for worker in self.active]

    def _final(self, worker: int) -> Outgoing:
        return Outgoing(worker, Final(self.store.latest.version))

    def _stop_if_due(self, now: float) -> list[Outgoing]:
        reason = None if self.work is None else self.work.ended
        if self.samples >= self.stop_samples:
            reason = f"{self.samples:,} samples were trained"
        elif self.steps >= self._stop_steps:
            reason = f"{self.steps:,} steps were trained"
        if reason is None or self.stop_reason is not None:
            return []
        self.failed = self.work is not None and self.work.ledger.hopeless
        return self.stop(reason, now)

    def _raise_version(self, floor: int, now: float) -> None:
        """Commit a version of number `floor` or higher, from which all workers continue.

        It is new to workers that have versions of an earlier server, and holds all resent sums.
        """
        newest = self.store.latest.version
        if floor > newest or (self.store.accepted and not self.model.active):
            self._apply([Committed(max(newest + 1, floor))], now)

    def _conclude(self, now: float) -> list[Outgoing]:
        if self.store.accepted:
            self._apply([Committed(self.store.latest.version + 1)], now)
        self.done = True
        return [self._final(w) for w, member in sorted(self.members.items()) if member.finished]

    def _ask(self, event: Callable[[SyncModel], T]) -> T:
        """Return what `event` makes of the model's answer; if that fails, of `Failed`'s answer."""
        try:
            answer = event(self.model)
            check_alarm(self.model)
            return answer
        except (Exception, SystemExit) as error:  # user code may raise anything
            if not self.on_fault(error):
                raise
            self.model = Failed(self.model, self._here)
            return event(self.model)

    def _decide(self, model: SyncModel, actions: Iterable[Action], push: Push | None = None,
                most: float = 0.0, owns: bool = True) -> list[Record]:
        if self.work is not None:  # its ledger assigns the examples
            actions = (action._replace(start=None) if isinstance(action, Direct) else action
                       for action in actions)
        return decide(model, self.rendezvous.due(actions, push), self.store.latest.version,
                      self.members, push,
                      lambda weight: self.store.objection(weight, most) or (
                          None if owns else NOT_OWN))

    def _carry_out(self, event: Callable[[SyncModel], Iterable[Action]], now: float
                   ) -> list[Outgoing]:
        """Decide and apply the model's answer to an event other than a push."""
        def answer(model: SyncModel) -> Iterable[Action]:
            actions = event(model)
            if self.store.accepted or not self._out_of_turn:
                return actions
            # the sum that it commits is that version
            return [action for action in actions if not isinstance(action, Commit)]
        records = self._ask(lambda model: self._decide(model, answer(model)))
        self._apply(records, now)
        self._rest(now)
        return self._with_versions(outgoing_of(records))

    def _apply(self, records: Iterable[Record], now: float, push: Push | None = None,
               update: np.ndarray | Blocks | None = None, square: float | None = None) -> None:
        """Apply the records to the store, and log them; `update` and `square` as in `push`."""
        for record in records:
            merged = self.store.accepted
            if isinstance(record, Committed):
                self._out_of_turn = False
            self.store.apply(record, update, square)
            self.store.reach.follow(record, bound(square or 0.0))
            if isinstance(record, Outgoing):
                self._told(record.worker, record.message)
            elif isinstance(record, Rejected):
                count_rejected(self.members[record.worker].rejected, record.reason)
            event = event_of(record, push, self.store.latest.version, merged, self.ledger.mark,
                             self._norm_of(record))
            if event is not None:
                self.log(now, event[0], **event[1])

    def _norm_of(self, record: Record) -> float | None:
        """Return the squared norm of the sum of which this record made a version, if known now."""
        if not isinstance(record, Committed) or not self.store.norms:
            return None
        version, square = self.store.norms[-1]
        if version != record.version or square is None:
            return None
        self._logged_norm = version
        return self.norm2(square)

    def _told(self, worker: int, message: ToWorker) -> None:
        """Note the decision that a message carries to a worker."""
        if isinstance(message, Granted):
            self.rendezvous.granted(worker)
            if self.work is not None:
                self.work.granted(worker)
        elif isinstance(message, Directed) and message.direct.batch and self.work is not None:
            self.work.directed(worker, message.direct.batch)


def event_of(record: Record, push: Push | None, version: int, merged: int, mark: int,
             norm2: float | None) -> tuple[str, dict[str, Any]] | None:
    """Return kind and fields of a record's event in the log, or None if it has none.

    Args:
        record: a decision.
        push: the push of the record, if any.
        version: the newest one.
        merged: updates in the committed version.
        norm2: squared norm of their sum, if known.
    """
    if isinstance(record, Committed):
        return "commit", {"version": record.version, "merged": merged, **_norm(norm2)}
    if isinstance(record, Outgoing) and isinstance(record.message, Directed):
        direct = record.message.direct
        return None if direct.why is None else ("batch", {
            "worker": record.worker, "batch": direct.batch, "why": one_line(direct.why)})
    if isinstance(record, Adopted):
        return "adopt", {"version": record.version, "above": record.above}
    if isinstance(record, Resent):
        work = {name: value for name, value in record.work._asdict().items()
                if name not in ("accepted", "unused") or value}
        return "resent" if record.weight else "void", {
            "worker": record.worker, **work, "mark": mark, "version": version}
    if push is None or not isinstance(record, Accepted | Rejected):
        return None
    who = {"worker": push.worker, "seq": push.seq, "base": push.base_version}
    work = {"steps": push.steps, "samples": push.samples, "seconds": push.seconds}
    if isinstance(record, Accepted):
        return "accept", {**who, "version": version, **work, "weight": record.weight,
                          **_norm(push.norm2)}
    return "reject", {**who, "reason": record.reason, **work, "version": version}


def _hear(version: int, norm2: float | None, now: float, model: SyncModel) -> None:
    model.committed(version, norm2, now)


def _norm(norm2: float | None) -> dict[str, float]:
    return {} if norm2 is None else {"norm2": norm2}
