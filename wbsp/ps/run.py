"""A run of training from its W_0 to its last file: checkpoints, evaluations, stop and end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from wbsp import timeouts
from wbsp.core.engine import Engine
from wbsp.core.messages import Measured
from wbsp.core.results import Results
from wbsp.core.store import Store
from wbsp.core.work.strikes import STRIKES
from wbsp.process.throttle import Throttle
from wbsp.ps.checkpoint.epoch_versions import EpochVersions
from wbsp.ps.checkpoint.snapshots import Snapshots
from wbsp.ps.checkpoint.state import RunState
from wbsp.ps.checkpoint.writer import CHECKPOINT, Checkpoints
from wbsp.ps.config import Above, Model, Reporter
from wbsp.ps.dispatcher import Dispatcher
from wbsp.ps.evaluation import METRICS, EvaluatorError, EvaluatorWatch
from wbsp.ps.full_disk import FullDisk
from wbsp.ps.readers import OfRun
from wbsp.ps.starving import Starving
from wbsp.ps.training_loss import TrainingLoss
from wbsp.runlog.awaited import Awaited, named
from wbsp.runlog.console import Status
from wbsp.sync.base import UNFIT, SyncModel
from wbsp.tensors.layout import TensorSpec

_NAMED = 5  # workers in one line, at most
_STILL = 60.0  # seconds without a sign of work, until a worker is named
_NOTICE = 15.0  # seconds between two lines on one subject
_LOOK = 0.05  # seconds between two checks of the evaluator, after training


class Run:
    """A run with its engine; used by the event loop.

    Attributes:
        store: its first version is the one that the run begins or resumes from.
        state: of that version's checkpoint; None: the run begins.
        watch: of the evaluator; None: versions are not evaluated.
        on_fault: as in `Engine`.
        above: for a site, the server above; None: this server is not a site's.
        hasty: a signal or a failure ends the run early.
    """

    def __init__(self, model: SyncModel, store: Store, layout: list[TensorSpec],
                 state: RunState | None, reporter: Reporter, dispatcher: Dispatcher,
                 watch: EvaluatorWatch | None, on_fault: Callable[[BaseException], bool],
                 above: Above | None = None):
        self._config = config = dispatcher.info.config
        frozen = dispatcher.info.frozen
        self._reporter = reporter
        self._dispatcher = dispatcher
        self._clock = clock = reporter.clock
        self._unfit = Throttle(_NOTICE)
        self._starving = Starving()
        self._results = Results(config.goals)
        self._awaited = Awaited(reporter.say)
        self._awaited_sites = Awaited(reporter.say)
        self._trains_since = None if state is None else state.trains_since  # time of the run
        self.hasty = self._incomplete = False
        self._over = state is not None and state.over  # all workers have the final version
        self._ended_before = None if state is None else state.stopped  # and why
        self.engine = Engine(model, store, config.worker_num, config.stop_samples,
                             log=self._log, on_fault=on_fault, epochs=config.epochs,
                             stop_steps=config.stop_steps)
        if state is not None:
            self._go_on(state)
        self._above = above
        if above is not None:
            info, vector = dispatcher.info, store.whole().result().snapshot.vector
            assert vector is not None, "what is whole has its tensors"
            above.begin(self.engine, state, Model(vector, layout, frozen, info.layers, info.local,
                                                  entries=info.entries),
                        lambda: dispatcher.sessions.signs)
        self._replication = dispatcher.replication
        self.checkpoints = Checkpoints(reporter.folder, self.engine, config.check_period,
                                       self._checkpoint_begins, reporter.say, dispatcher.on)
        self._watch = watch
        epochs = EpochVersions(reporter.folder, self.engine, dispatcher.on)
        self.snapshots = Snapshots(self.engine, self._state, layout, frozen, self.checkpoints,
                                   self._replication, epochs)
        self._replication.begin(self.snapshots, anew=state is None)
        self._first: FullDisk | None = None  # as long as W_0 could not be saved
        if state is None:
            # before any decision: without W_0 no restarted server could use the resend buffers
            self.snapshots.write(clock.run())
            if not self.engine.ledger.durable:
                self._first = FullDisk(reporter.say, reporter.folder)
        self._training_loss = TrainingLoss(config.check_period, dispatcher.sessions.reports,
                                           self._take_training_loss)
        self._epoch = 0  # the newest complete one
        self._epoch_loss = TrainingLoss(math.inf, dispatcher.sessions.reports, self._take_loss)
        self._readers = dispatcher.readers
        self._looked_back = False  # at earlier results, which may have ended the run
        self._told_of_goals = not config.goals.named
        self._stopping_since: float | None = None
        self._trained_since: float | None = None  # all shared data are trained since then
        self._lacks_since: float | None = None  # no connected worker can train the rest since then
        self._done_since: float | None = None
        self._doubted_since: float | None = None  # after training: another server may serve the run
        self._leaves_above: float | None = None
        self._stopped_above: float | None = None  # time at which that was known
        self._none_comes = False  # this process knows that no other worker will join
        self._dismissed = False  # further workers are too late
        self._waits_for_standby = Throttle(_NOTICE)
        self._last = FullDisk(reporter.say, reporter.folder)
        self._requests = dispatcher.begin(self.engine, layout,
                                          lambda: self._first is None)
        self._readers.begin(OfRun(
            self.engine, self.checkpoints, epochs, self._results, self._take_found,
            self._tell_measured, None if state is None else state.best, above))
        if self.engine.rendezvous.ended:  # others may have its final version, and end with that
            dispatcher.entrance.dismiss("the run has ended")
            for worker in dispatcher.info.series.have:
                self._requests.has_final(worker)
        if self._over:
            self._reporter.say("the run has ended, except for its last files")
            dispatcher.entrance.expect_lost()
        if not self._over and self.engine.rendezvous.ended:
            # The list of processes that call `fit` again is saved only at a run's end. Until then,
            # each of them may.
            series = dispatcher.info.series
            for worker in series.lost(config.worker_num):
                series.lives(worker)
        if self._over or (self.engine.rendezvous.ended and not self.engine.rendezvous.owed):
            if not self.engine.started:
                self._requests.replies.send(self.engine.start(clock.run()))

    def hasten(self, reason: str, failed: bool) -> None:
        """End early: a checkpoint first, no more evaluations, and all workers finish.

        A run that `failed` ends with that reason even if its workers had finished by then, because
        their last pushes may have been rejected.
        """
        self.hasty = True
        self.checkpoints.hurry()
        self._stop_evaluator(reason)
        if not self.engine.done:
            self._stop(reason, ends=not failed)
        elif failed:
            self.engine.fail(reason)

    def expect_no_more(self) -> None:
        """Wait for no worker that is not here."""
        self._none_comes = True

    def woke(self, seconds: float) -> None:
        """Extend timeouts by the seconds of a suspension of this process, or of waiting for shards.
        """
        self._requests.woke(seconds)
        if self._stopping_since is not None:
            self._stopping_since += seconds
        if self._done_since is not None:
            self._done_since += seconds
        if self._doubted_since is not None:
            self._doubted_since += seconds
        for disk in (self._first, self._last):
            if disk is not None:
                disk.woke(seconds)
        if self._trained_since is not None:
            self._trained_since += seconds
        if self._lacks_since is not None:
            self._lacks_since += seconds

    @property
    def version(self) -> int:
        """Number of the newest version."""
        return self.engine.store.latest.version

    def timers(self, alone: float) -> bool | None:
        """Do the periodic work: timeouts, checkpoints, evaluations.

        Args:
            alone: seconds without a connected worker.

        Returns:
            Whether the run has ended well; None while it continues.

        Raises:
            EvaluatorError: the evaluator failed, or its network is not the run's.
        """
        engine = self.engine
        now = self._clock.now()
        run_time = self._clock.run()
        self._look_at_evaluator()
        self._dispatcher.poll_standby()
        if self._replication.superseded is not None:
            self._reporter.say(f"stopping: {self._replication.superseded}")
            return False
        if self._first is not None and not self.hasty and (
                reason := self._save_first(now, self._first)) is not None:
            return self._fail(reason)
        if self._above is not None:
            self._go_on_above(self._above, now, run_time)
        if engine.done:
            self.checkpoints.hurry()
            self.snapshots.poll(run_time)
            safe = self._settled and self.checkpoints.settled and self._replication.settled
            if safe:
                self._requests.replies.farewell()  # the final version is safe before it is fetched
                if self._above is not None:
                    self._above.farewell()
            return self._ending(now, safe)
        self._start_or_tick(now, run_time)
        self._requests.replies.send(engine.silent(self._dispatcher.sessions.asleep(), run_time))
        self.snapshots.poll(run_time)
        self._reporter.log.attempt("the mean training loss", self._training_loss.poll, run_time)
        self._readers.poll()
        self._look_at_target()
        self._look_at_time(run_time)
        if engine.stop_reason is not None and self._stopping_since is None:
            self._stopping_since = now
            self._reporter.say(f"stopping: {engine.stop_reason}")
        if self._stopping_since is not None:
            self._press(now, self._stopping_since)
        elif alone > self._config.connect_timeout:
            self._reporter.say("no worker was connected for "
                               f"{self._config.connect_timeout:g} s; ending the run")
            if engine.rendezvous.ended and not engine.started:  # the final version is saved
                self._requests.replies.send(engine.start(run_time))
                return None
            return self._fail("no worker left")
        elif not len(self._dispatcher.sessions):
            self._awaited.wait(self._absent, "to reconnect", self._config.connect_timeout - alone,
                               "this run ends", now)
        elif engine.started and engine.work is not None and engine.work.ledger.over:
            self._await_ends(now)
        elif engine.started and (still := self._dispatcher.sessions.still(_STILL)):
            self._awaited.wait(still, f"to continue (no sign of work for {_STILL:g} s)", None,
                               "training continues; end its process if it hangs", now)
        book = self._reporter.log.attempt
        book("the tally of pushes", self._reporter.log.tally, run_time, self.version,
             engine.members)
        book("the line on the run's state", self._show, run_time)
        return None

    def _save_first(self, now: float, disk: FullDisk) -> str | None:
        """Try to save W_0, before any worker is admitted; return why the run ends without it.

        A full disk is waited for as for the final version.
        """
        due = disk.due(now)
        if due:
            self._dispatcher.wait(now)
            if self._replication.alone:
                self.snapshots.write(self._clock.run())
        if self.engine.ledger.durable:
            self._first = None
        elif due and not disk.failed("workers join once the first version is saved", now):
            reason = ("the first version could not be saved: free some space on the disk of "
                      f"{self._reporter.folder}, and start this server again")
            self._dispatcher.send_all_off(reason)
            return reason
        return None

    def hear_above(self) -> None:
        """Handle news from the server above at once. Raises `AboveError`."""
        if self._above is not None:
            self._go_on_above(self._above, self._clock.now(), self._clock.run())

    def _go_on_above(self, above: Above, now: float, run_time: float) -> None:
        """Do a site's work with the server above.

        Raises:
            AboveError: that is lost.
        """
        engine = self.engine
        if engine.done and not above.settled:
            above.finish(engine.stop_reason if self.hasty else None)
            self._leaves_above = self._leaves_above or now
            if self.hasty and now - self._leaves_above > timeouts.INTERRUPTED:
                above.give_up(f"the server above did not answer within {timeouts.INTERRUPTED:g} s")
        above.poll()
        for told in above.told():
            self._requests.replies.send(engine.measure(None, told, run_time) if isinstance(
                told, Measured) else engine.set_rate(None, told, run_time))
        if above.stopped is not None and engine.stop_reason is None and not (
                engine.done or self._awaits_own(now)):
            self._stop(f"the server above: {above.stopped}")
        if (mark := above.hurries) is not None:
            self.checkpoints.demand(mark)
        self._requests.go_on()

    def _awaits_own(self, now: float) -> bool:
        """Return True while a resumed site waits for its workers, to send them the run's end.
        """
        self._stopped_above = self._stopped_above or now
        engine = self.engine
        return (engine.rendezvous.resumed and not engine.started
                and now - self._stopped_above < timeouts.REATTACH)

    @property
    def _settled(self) -> bool:
        """Return whether this is no site, or one that has ended above."""
        return self._above is None or self._above.settled

    def finish(self, well: bool, wanted: Callable[[], bool]) -> bool:
        """Write the last files, the newest version first.

        A good end also evaluates the last version and saves it as a model, while that is `wanted`.
        A server that was superseded writes nothing, because another one ends the run.

        Returns:
            True if all files were written, and no required worker is missing.
        """
        now = self._clock.run()
        if self._replication.superseded is not None:
            self._reporter.log.event(now, "superseded", reason=self._replication.superseded)
            return False
        for worker in self.engine.active:  # after two failures
            self.engine.leave(worker, now, "the server failed")
        if well:
            self._reporter.say("saving the final version")
        self.engine.store.settle()
        if not self._over or self.checkpoints.failed:
            self._write_last(now)
        if well and not self.checkpoints.failed:
            self._dismiss()
        missing = self.missing if well else {}
        good = not (self.checkpoints.failed or (missing and self._config.fail_if_lost)
                    or (well and self._lacks_work))
        follows = well and good and self._dispatcher.sessions.series.goes_on
        self._dispatcher.sessions.planes.end(self._reason, follows)
        if well:
            self._complete(wanted)
        self._replication.end(self._reason, follows)
        log = self._reporter.log
        log.attempt("the mean training loss", self._training_loss.tell)
        newest = self.version
        console = self._reporter.console
        console.release()
        reason = self._reason
        if missing and self.engine.stop_reason is None:
            reason = f"all other workers finished; missing: {_some(missing)}"
        summary = log.attempt(
            "the summary", log.summary, now, self.engine.members,
            self._dispatcher.sessions.reports, newest, self._accuracy_of(newest), reason, missing)
        if summary is not None:
            console.result(summary)
        work = self.engine.work
        if self._above is None and work is not None and work.ledger.undone.count:
            undone, (n, epochs) = work.ledger.undone.count, (work.data.n, work.data.epochs)
            console.result(f"not trained: {undone:,} of {n * epochs:,} examples ({epochs} epochs "
                           f"of {n:,}; {work.ledger.epoch} complete)")
        results = self._results
        if well and results.goals.named and results.newest is None and results.best is None:
            flags = " and ".join(f"--{flag}={goal}" for flag, goal in results.goals.named.items())
            console.result(f"no version was evaluated, so {flags} had no effect "
                           "(docs/how-to/evaluation.md)")
        if missing:
            lacks = work is None or work.ledger.undone.count > 0  # others train shared data
            console.result(f"missing at the end: {_some(missing)}" + lacks * (
                "; the final version lacks the rest of "
                f"{'its' if len(missing) == 1 else 'their'} work"))
        return good

    @property
    def missing(self) -> dict[int, str]:
        """Return the workers that have not finished in good order -> why.

        Workers whose processes had no fit left for this run are not among them.
        """
        members = self.engine.members
        gone = self._dispatcher.sessions.series.gone
        return {worker: (member.gone or "it did not reconnect") if member else "it never joined"
                for worker in range(self._config.worker_num)
                if not ((member := members.get(worker)) and member.finished)
                and (member or worker not in gone)}

    @property
    def _lacks_work(self) -> bool:
        """Return whether a resumed run has ended without work that was lost with its server.

        Its workers had finished, and the process that was to do that work did not return.
        """
        engine = self.engine
        return (self._above is None and engine.rendezvous.resumed and engine.stop_reason is None
                and engine.work is not None and engine.work.ledger.undone.count > 0)

    @property
    def _absent(self) -> list[int]:
        """Return the workers that a run without any waits for."""
        rendezvous = self.engine.rendezvous
        if rendezvous.ended and not self.engine.started:
            return sorted(rendezvous.owed - rendezvous.have)
        return list(self.missing)

    @property
    def _reason(self) -> str:
        return self.engine.stop_reason or "all workers finished"

    def abandon(self) -> None:
        """End all work on versions; versions that are not written are lost."""
        self.engine.store.give_up()
        self.checkpoints.abandon()

    def _go_on(self, state: RunState) -> None:
        """Resume from a `_state`."""
        self.engine.restore(state, self._dispatcher.info.rival)
        self._dispatcher.sessions.resume(state.reports)
        self._dispatcher.info.resume(state)
        if state.awaited is None or state.awaited or state.owed:  # also for one that came later
            self._dispatcher.sessions.indices.keep(range(self._config.worker_num),
                                                   self._clock.now())
        self._reporter.log.resume(state.elapsed, state.version, state.staleness or {},
                                state.failures)

    def _write_last(self, now: float) -> None:
        """Write the last version."""
        self.snapshots.finish(now)
        if self.checkpoints.failed:
            self._reporter.say(f"version {self.version} could not be saved in "
                               f"{self._reporter.folder / CHECKPOINT}")

    def _checkpoint_begins(self, now: float, version: int) -> None:
        """Log a checkpoint before its file exists."""
        self._reporter.log.event(now, "checkpoint", version=version)
        self._reporter.log.flush()

    def _state(self, now: float) -> RunState:
        """Return all but the tensors of a checkpoint or snapshot made at `now`."""
        log = self._reporter.log
        info = self._dispatcher.info
        state = self.engine.state()
        # A run that was interrupted or failed may continue, with new processes, too.
        ended = state.ended and not (self.hasty or self._incomplete)
        awaited = state.awaited
        # A server that resumes from here needs the workers that may follow the standby, too.
        if awaited is not None and (voters := self._replication.voters) and not (
                self._dismissed and ended):
            awaited = sorted(voters.union(awaited))
        return RunState(**vars(state) | {"ended": ended, "awaited": awaited},
                        elapsed=now, over=self._over,
                        stopped=self._ended_before or (
                            self.engine.stop_reason if ended else None),
                        trains_since=self._training_since(now),
                        staleness=log.staleness, failures=dict(log.failures),
                        reports=dict(self._dispatcher.sessions.reports),
                        places=dict(info.owners), layers=info.layers, local=info.local,
                        entries=info.entries,
                        best=self._results.best,
                        above=None if self._above is None else self._above.state())

    def _start_or_tick(self, now: float, run_time: float) -> None:
        engine = self.engine
        config = self._config
        alarm = engine.model.alarm
        if not engine.lacks_work:
            self._lacks_since = None
        if not engine.started and engine.stop_reason is None:
            rendezvous = engine.rendezvous
            patience = timeouts.REATTACH if self._requests.returned else config.connect_timeout
            here = [*{*engine.active, *rendezvous.left, *rendezvous.have}]
            gone = self._dispatcher.sessions.series.gone.difference(here)
            # Others wait for the next run in place of those that would fetch this one's version.
            new = self._dispatcher.entrance.new_processes() if rendezvous.ended else 0
            why = None
            if len(here) + len(gone) + new >= config.worker_num:
                why = ("the processes of the others have ended" if gone or new else
                       "all are here, and have finished")
            elif self._none_comes:
                why = "no other will come"
            elif now - self._requests.first_came > patience:
                why = f"no other joined within {patience:g} s"
            if here and why is not None and engine.lacks_work:
                self._begins_anew(run_time)
            elif (here or new) and why is not None:
                if new:  # they are expected next, in place of these
                    self._dispatcher.sessions.series.replaced(
                        set(range(config.worker_num)).difference(here))
                self._reporter.say(
                    f"ending the run with {len(here)} of {config.worker_num} workers: {why}"
                    if rendezvous.ended else
                    f"starting with {len(here)} of {config.worker_num} workers: {why}")
                self._requests.replies.send(engine.start(run_time))
            elif here and rendezvous.ended:
                self._awaited.wait(self._absent, "to fetch the final version",
                                   patience - (now - self._requests.first_came), "this run ends",
                                   now)
            elif here:
                away = set(range(config.worker_num)).difference(here, gone)
                self._awaited.wait(away, "to join", patience - (now - self._requests.first_came),
                                   "training begins with the others", now)
            else:
                self._awaited.wait(*self._dispatcher.sessions.unready(), None, "training begins",
                                   now)
        elif engine.lacks_work:
            self._await_rest(now, run_time)
        elif alarm is not None and run_time >= alarm:
            self._requests.replies.send(engine.tick(run_time))

    def _await_rest(self, now: float, run_time: float) -> None:
        """Wait for new processes of lost workers: all others have finished, and work is left."""
        sessions = self._dispatcher.sessions
        if self._lacks_since is None or any(session.plane is None for session in sessions):
            self._lacks_since = now  # one that is here builds its model
        if not len(sessions):
            return  # they may reconnect
        away = [worker for worker in self.missing if worker not in sessions.series.gone]
        left = self._lacks_since + timeouts.REATTACH - now
        if self._none_comes or not self._awaited.wait(
                away, f"to train the rest ({self._undone})", left,
                "those that have finished are to be started again, to train it", now):
            self._lacks_since = None
            self._begins_anew(run_time)

    @property
    def _undone(self) -> str:
        work = self.engine.work
        assert work is not None, "the run has shared data"
        return f"{work.ledger.undone.count:,} of {work.data.n * work.data.epochs:,} examples"

    def _begins_anew(self, run_time: float) -> None:
        """Let new processes of workers train examples that were lost after all had finished."""
        sessions, undone = self._dispatcher.sessions, self._undone
        workers = self.engine.await_anew(run_time)
        self._reporter.say(f"{undone} were lost with ended processes, after {named(workers)} had "
                           "finished: start these workers again, and they train them")
        for worker in workers:
            if (session := sessions.of(worker)) is not None:
                self._dispatcher.send_off(session, f"it had finished when {undone} of the run were "
                                          "lost with ended processes: start it again, and it "
                                          "trains them")
        self._requests.begin_anew()

    def _press(self, now: float, since: float) -> None:
        """After the stop, drop workers whose last push does not arrive."""
        if not self.hasty:
            self._dispatcher.lose_idle(since, timeouts.LAST_PUSH, False)
            away, left = self._dispatcher.idle_for(since, timeouts.LAST_PUSH, False)
            if away:
                self._awaited.wait(away, "to send the last updates", left,
                                   "this run ends without them", now)
            else:
                self._await_ends(now)
        elif now - since > timeouts.INTERRUPTED:
            for worker in self.engine.active:
                if session := self._dispatcher.sessions.of(worker):
                    self._dispatcher.send_off(
                        session, f"did not finish within {timeouts.INTERRUPTED:g} s")

    def _await_ends(self, now: float) -> None:
        """Wait for workers that have not left although all data are trained; drop those that hang.
        """
        self._trained_since = self._trained_since or now
        away, what, left = self._dispatcher.lose_hanging(self._trained_since)
        then = "this run ends" + ("" if left is None else " without that")
        self._awaited.wait(away, what, left, then, now)

    def _ending(self, now: float, safe: bool) -> bool | None:
        """Wait, after training, until the workers that want the final version have it.

        It is sent when it is `safe`; the workers' timeout starts then. `Replication` gives up a
        standby that receives none of it, and the disk writes it or fails.
        """
        if self._done_since is None:
            self._done_since = now
            self._waits_for_standby.rest(now)
        # Once the final version was safe, the standby has the same one.
        if self._replication.doubt is not None and not (self.hasty or self._dismissed):
            self._done_since = now
            return self._await_verdict(now)
        self._doubted_since = None
        if safe or self.hasty:
            self._dismiss()
        copying = self._replication.copying and not (safe or self.hasty)
        if self.checkpoints.writing or copying or not self._settled:
            self._done_since = now
            if copying and self._waits_for_standby.due(now):
                self._reporter.say("sending the final version to the standby; workers receive it "
                                   "then")
        if self._settled:
            for worker in self._dispatcher.lose_idle(self._done_since, timeouts.GOODBYE, True):
                self._requests.give_up(worker)
            away, left = self._dispatcher.idle_for(self._done_since, timeouts.GOODBYE, True)
            if away:
                self._awaited.wait(away, "to fetch the final version", left, "this run ends", now)
            else:
                self._await_ends(now)
        if len(self._dispatcher.sessions) or self._replication.expected() or not self._settled:
            return None
        if not self.hasty and (self._awaits_sites(now, self._done_since)
                               or self._dispatcher.entrance.awaits_retry(now)):
            return None
        if not self.hasty and self._readers.awaited(self.version):
            return None
        if not (self._over or self.hasty):
            self._dispatcher.entrance.expect_nameless()
            if self._dispatcher.sessions.series.unsaved and self._last.goes_on(now):
                return None  # the processes that call `fit` again are saved before the run is over
            self._close_book()
        return None if self._tries_to_save(now) else True

    def _await_verdict(self, now: float) -> bool | None:
        """Wait until it is known which server serves; a run that may have ended elsewhere fails."""
        if self._doubted_since is None:
            self._doubted_since = now
        standby = f"the standby at {self._replication.holder}"
        left = self._doubted_since + timeouts.PRIMARY_MISSING - now
        if self._awaited.wait(standby, "to answer, or half of the workers to vote for this server",
                              left, "this server ends with code 1", now):
            return None
        reason = f"not known whether {standby} has taken over, and ended this run"
        self._reporter.say(
            f"stopping: {reason}: if it has, its folder has the result; if not, start this server "
            "(--resume), that standby and the workers again")
        self._dispatcher.send_all_off(reason)
        return self._fail(reason)

    def _dismiss(self) -> None:
        """Refuse further workers: the final version is safe."""
        if not self._dismissed:
            self._dismissed = True
            self._dispatcher.entrance.dismiss(
                f"the run has ended ({self.engine.stop_reason or 'done'})", self.engine.ends)
            # Those that wait for an index ask again before the last files are written.
            self._dispatcher.entrance.expect_nameless()

    def _awaits_sites(self, now: float, since: float) -> bool:
        """Return whether a site that had finished was lost, and may return for the final version.

        Its workers wait for that, so its server is started again, or its standby takes over.
        """
        left = {site: max(lost, since) + timeouts.REATTACH - now
                for site, lost in self._requests.unserved.items()}
        away = [site for site, seconds in left.items() if seconds > 0]
        return self._awaited_sites.wait(away, "to return for the final version",
                                        max(left.values(), default=0.0), "this run ends", now)

    def _close_book(self) -> None:
        """Note that all workers have the final version.

        A server that resumes from here waits for no worker, and writes the last files.
        """
        self._over = True
        self.engine.store.settle()
        self._write_last(self._clock.run())
        self._replication.all_have_it()

    def _tries_to_save(self, now: float) -> bool:
        """Return whether the final version is not saved, as where the disk is full, but may be."""
        if self.hasty or not self.checkpoints.failed:
            return False
        if self._last.due(now):
            self.snapshots.write(self._clock.run())
            return self.checkpoints.failed and self._last.failed(
                "the final version is not saved", now)
        return True

    def _fail(self, reason: str) -> bool:
        """End a run that lacks its workers, and can be resumed with others; return False."""
        self._incomplete = True
        self._stop(reason)
        return False

    def _stop(self, reason: str, ends: bool = False) -> None:
        self._requests.replies.send(self.engine.stop(reason, self._clock.run(), ends))
        self._stopping_since = self._clock.now()

    def _show(self, time_: float) -> None:
        engine = self.engine
        sessions = self._dispatcher.sessions
        # an old one would look like the newest
        newest = None if self._watch and self._watch.missing else self._results.newest
        version, found, _ = newest or (None, {}, 0.0)
        limit = self._config.stop_samples
        done = engine.samples / max(limit, 1) if limit < math.inf else None
        self._reporter.console.update(Status(
            time_, engine.store.latest.version, engine.members, sessions.reports, done,
            self._training_loss.newest, version, found.get("loss"), found.get("accuracy"),
            found.get("bits_per_byte"), sessions.silence))

    def _take_found(self, t: float, version: int, metrics: Mapping[str, float], best: bool,
                    own: bool) -> None:
        """Handle results of a version of `t`; `own`: of the server's own evaluator."""
        log, members = self._reporter.log, self.engine.members
        if own:  # the line on the run's state has them
            loss, accuracy, top5 = (metrics.get(name, math.nan) for name in METRICS)
            others = {name: value for name, value in metrics.items() if name not in METRICS}
            log.evaluation(t, version, loss, accuracy, top5, members,
                           self._dispatcher.sessions.reports, others)
        else:
            log.evaluated(t, version, metrics, members)
            words = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
            self._reporter.say(f"version {version:,}: {words or 'no metric'}"
                               + (" (the best so far)" if best else ""))
        for flag, goal in self._results.lacking(metrics).items():
            what = "does not end the run" if flag == "target" else "keeps no version"
            self._reporter.say(
                f"no evaluation reports {goal.metric!r}; reported: {', '.join(sorted(metrics))}; "
                f"so --{flag}={goal} {what}: restart this server with --resume and one of these "
                "names")
        self._end_by(self._results.reason)

    def _end_by(self, reason: str | None) -> None:
        """End the run for this reason, unless it has ended, or the reason is None."""
        if reason is not None and not self.engine.done:
            self._requests.replies.send(self.engine.stop(reason, self._clock.run()))

    def _tell_measured(self, measured: Measured) -> None:
        """Send a reader's results of an epoch's version to all workers."""
        self._requests.replies.send(self.engine.measure(None, measured, self._clock.run()))

    def _look_at_target(self) -> None:
        """Warn at the begin of training if a goal needs evaluations and no process makes any."""
        if not self.engine.started:
            return
        if not self._looked_back:
            self._looked_back = True
            self._end_by(self._results.reason)
        work = self.engine.work  # of shared data, workers validate
        if self._told_of_goals or (work is not None and not work.ledger.epoch):
            return
        self._told_of_goals = True
        if not self._readers.some:
            config = self._config
            what = (f"--target={config.target} does not end it" if config.target is not None else
                    f"--best_patience={config.best_patience} does not end it"
                    if config.best_patience is not None else
                    f"--best={config.best} keeps none")
            self._reporter.say(
                f"no process evaluates this run's versions yet, so {what}: start a process that "
                f'reads wbsp.versions("{config.host}:{config.port}") and reports its results '
                "(docs/how-to/evaluation.md)")

    def _look_at_time(self, run_time: float) -> None:
        """Training that has lasted for as long as it may ends."""
        since = self._training_since(run_time)
        if since is not None and run_time - since >= self._config.until:
            self._end_by(f"{self._config.until:g} s of training are over")

    def _training_since(self, run_time: float) -> float | None:
        """Return the run's time at which training began; None: it has not.

        The first checkpoint may come before the first look at the time, and must have it, too.
        """
        if self._trains_since is None and self.engine.started:
            self._trains_since = run_time
        return self._trains_since

    def _accuracy_of(self, version: int) -> float | None:
        """Return the accuracy of this version, 0..1, if it was evaluated last, else None."""
        return self._results.of(version, "accuracy")

    def _take_loss(self, loss: float, samples: int) -> None:
        """Add to the mean loss since the epoch before was complete."""
        if math.isfinite(loss):
            self.engine.note(self._epoch, {"loss": loss})

    def _take_training_loss(self, loss: float, samples: int) -> None:
        self._reporter.log.training(self._clock.run(), self.version, loss, samples,
                                    self.engine.members, self._dispatcher.sessions.reports)

    def _look_at_evaluator(self) -> None:
        """Continue without an evaluator that has failed.

        Raises:
            EvaluatorError: it does not fit the run.
        """
        if self._watch is None:
            return
        try:
            self._watch.look(self._readers.own_work)
        except EvaluatorError as error:
            if error.fatal or not self._readers.ready:
                raise
            target = self._config.target_accuracy
            unseen = ("" if target == math.inf else
                      f"; --target_accuracy={target:g} can no longer be checked")
            self._reporter.say(f"continuing without evaluations: {error}{unseen}")
            self._stop_evaluator(str(error))

    def _stop_evaluator(self, reason: str) -> None:
        if self._watch is not None:
            self._watch.stop(reason)

    def _complete(self, wanted: Callable[[], bool]) -> None:
        """Wait until the final version is evaluated, and saved as a model."""
        watch = self._watch
        if watch is None:
            return
        try:
            while watch.missing is None and not self._readers.own_has_all:
                if not wanted():
                    raise EvaluatorError("interrupted")
                watch.look(self._readers.own_work)
                self._dispatcher.on.clock.sleep(_LOOK)
        except EvaluatorError as error:
            watch.stop(str(error))
        if reason := watch.missing:
            accuracy = self._accuracy_of(self.version)
            what = "no model.keras" if accuracy is not None else "no final accuracy, no model.keras"
            self._reporter.say(f"{what}: {reason}; {CHECKPOINT} holds the final version")

    def _log(self, t: float, kind: str, /, **fields: Any) -> None:
        """Log an event of the engine.

        Rejected updates that are not finite or too large, and starving workers, are also printed.
        """
        if kind == "duplicate":
            self._dispatcher.sessions.log.tell(f"worker {fields['worker']}, repeated pushes",
                                               kind=kind, **fields)
            return
        log = self._reporter.log
        log.event(t, kind, **fields)
        if kind != "commit":  # nothing follows it, and there are many
            log.attempt(f"the work that follows an event of kind {kind}", self._follow, t, kind,
                        fields)

    def _follow(self, t: float, kind: str, fields: dict[str, Any]) -> None:
        """Handle an event of the engine for the other parts of the server."""
        if kind == "measured" and fields["worker"] is not None:
            self._readers.worker_found(fields["epoch"], fields["values"])
        elif kind == "join":
            self._readers.joined(fields["worker"])
        elif kind == "epoch":
            self._epoch = fields["epoch"] - 1
            self._epoch_loss.tell()
            if self._above is None:
                self._readers.epoch_is_trained()
                self.snapshots.request(t)
            self._reporter.say(f"epoch {fields['epoch']} of {fields['epochs']} is trained, by "
                               f"version {fields['version']:,}")
        elif kind == "give_up":
            self._reporter.say(f"skipping examples {fields['start']:,} to {fields['stop'] - 1:,} "
                               "of the run's work: pushes with them were not finite on two "
                               f"workers, or {STRIKES} times on the only one")
        elif kind == "silent":
            self._reporter.say(f"worker {fields['worker']} has been silent for "
                               f"{timeouts.WORKER_ASLEEP:g} s, and the others have nothing else to "
                               "train: they train its examples")
        elif kind == "sick":
            self._let_go(fields["worker"], fields["all"])
        elif kind == "accept":
            self._starving.accepted(fields["worker"])
        elif kind == "reject":
            self._rejected(t, fields["worker"], fields["seq"], fields["reason"])

    def _let_go(self, worker: int, every: bool) -> None:
        rest = ("no other worker is sound, either: ending the run" if every else
                "the others continue, and train its examples" if self.engine.work is not None else
                "the others continue without it")
        self._reporter.say(
            f"letting worker {worker} go: its last {STRIKES} pushes were not finite, or too large, "
            f"each of other examples and from a sound version; {rest}")

    def _rejected(self, t: float, worker: int, seq: int, reason: str) -> None:
        if reason in UNFIT and self._unfit.due(t):
            self._reporter.say(f"worker {worker}: push {seq} was rejected: {reason} "
                      f"({self.engine.members[worker].rejected[reason]:,} so far)")
        if (found := self._starving.rejected(worker, reason, t)) is not None:
            pushes, seconds = found
            lost = "is lost" if self.engine.work is None else "is repeated by others"
            self._reporter.say(
                f"worker {worker} starves: {self.engine.model.name} has accepted none of its last "
                f"{pushes:,} pushes, of {seconds:.0f} s ({reason}). Its work {lost}: end it, or "
                "choose another synchronization model or option (docs/reference/models)")


def _some(missing: dict[int, str]) -> str:
    """Return the first few workers with the reasons why they are missing, as text."""
    first = [f"worker {worker} ({why})" for worker, why in list(missing.items())[:_NAMED]]
    more = len(missing) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")
