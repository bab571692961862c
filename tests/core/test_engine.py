"""The engine: start, stop, the end, and answers that stay the same."""

from functools import partial

import msgspec
import numpy as np
import pytest
from pushes import push

from wbsp.core.engine import Engine
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
    Range,
    SharedData,
    Stop,
    Work,
    WorkHeld,
)
from wbsp.core.rendezvous import LEAP
from wbsp.core.state import EngineState
from wbsp.core.store import Store
from wbsp.sync import (
    Accept,
    Commit,
    Direct,
    Grant,
    Push,
    Reject,
    SyncModel,
    WorkerRule,
    create,
)
from wbsp.sync.base import ContractError

push = partial(push, samples=10)


def f32(*values):
    return np.array(values, np.float32)


class Log:
    def __init__(self):
        self.lines = []

    def __call__(self, now, kind, **fields):
        self.lines.append((kind, fields))

    def kinds(self):
        return [kind for kind, _ in self.lines]

    def only(self, kind):
        [fields] = [fields for k, fields in self.lines if k == kind]
        return fields


def engine_with(name="bsp", workers=2, options=(), **settings):
    """An engine in which everyone has joined and may start."""
    log = Log()
    engine = Engine(create(name, **dict(options)), Store(f32(0, 0)), workers, log=log, **settings)
    for worker in range(workers):
        engine.join(worker, 0.0)
    return engine, log


def ack(outgoing):
    [answer] = [message for _, message in outgoing if isinstance(message, Ack)]
    return answer


def test_no_worker_starts_before_all_have_joined():
    engine = Engine(create("bsp"), Store(None), expected=3)
    assert engine.join(2, 0.0) == engine.join(0, 1.0) == []
    with pytest.raises(ValueError, match="worker 0 pushed without having been started"):
        engine.push(push(0), None, 1.5)
    assert engine.join(1, 2.0) == [(0, Granted(0)), (1, Granted(0)), (2, Granted(0))]


def test_a_worker_that_left_before_the_start_is_not_counted():
    engine = Engine(create("bsp"), Store(None), expected=2)
    engine.join(0, 0.0)
    assert engine.leave(0, 0.5, "lost") == []
    assert engine.join(1, 1.0) == []
    assert engine.start(2.0) == [(1, Granted(0))]


def test_a_late_worker_is_granted_at_once():
    engine, _ = engine_with(workers=1)
    assert engine.join(1, 5.0) == [(1, Granted(0))]


def test_only_steps_of_optimizers_with_momentum_reach_the_outer_step():
    """The engine knows each worker's optimizer from its join, and a resumed one from its state."""
    class Told(Store):
        steps = ()

        def accept(self, update, weight, square=None, steps=0):
            self.steps = (*self.steps, steps)
            super().accept(update, weight, square, steps)

    engine = Engine(create("asp"), Told(f32(0, 0)), 2)
    engine.join(0, 0.0, sgd=True)
    engine.join(1, 0.0)
    for worker, steps in ((0, 5), (1, 7)):
        engine.push(push(worker, steps=steps), f32(1, 1), 1.0)
    assert engine.store.steps == (0, 7)
    resumed = Engine(create("asp"), Told(f32(0, 0)), 2)
    resumed.restore(engine.state())
    assert [resumed.members[worker].sgd for worker in (0, 1)] == [True, False]


def test_joining_twice_is_an_error():
    engine, _ = engine_with()
    with pytest.raises(ValueError, match="worker 1 has joined already"):
        engine.join(1, 1.0)


def test_at_least_one_worker_is_expected():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        Engine(create("bsp"), Store(None), expected=0)


def test_an_answer_carries_the_pushers_grant_and_others_get_their_own_message():
    engine, _ = engine_with("bsp")
    assert engine.push(push(0), f32(2, 0), 1.0) == [
        (0, Ack(0, True, weight=0.5, steps=1, examples=10))]
    assert engine.push(push(1), f32(0, 4), 2.0) == [
        (0, Granted(1)), (1, Ack(0, True, granted=1, weight=0.5, steps=2, examples=20))]
    assert engine.store.latest.vector.tolist() == [1, 2]


def test_the_books_of_a_worker():
    engine, log = engine_with("asp", workers=1)
    engine.push(Push(0, 0, 0, 2, 64, 0.5), f32(1, 1), 1.0)
    engine.push(Push(0, 1, 1, 3, 96, 0.75), f32(1, 1), 2.0)
    member = engine.members[0]
    assert (member.steps, member.samples, member.seconds, member.pushes, member.base) == (
        5, 160, 1.25, 2, 1)
    assert (engine.steps, engine.samples) == (5, 160)
    assert log.kinds() == ["join", "start", "accept", "commit", "accept", "commit"]


def test_the_stop_rule_counts_pushed_samples_and_stops_every_worker_once():
    engine, log = engine_with("asp", stop_samples=25)
    assert not any(isinstance(message, Stop) for _, message in engine.push(push(0), f32(1, 1), 1.0))
    assert not any(isinstance(message, Stop) for _, message in engine.push(push(1), f32(1, 1), 2.0))
    last = engine.push(push(1, 1), f32(1, 1), 3.0)
    reason = "30 samples were trained"
    assert last[-2:] == [(0, Stop(reason)), (1, Stop(reason))]
    assert engine.push(push(0, 1), f32(1, 1), 4.0) == [
        (0, Ack(1, True, granted=4, weight=0.5, steps=4, examples=40))]
    assert engine.stop("again", 5.0) == [] and engine.stop_reason == reason
    assert log.kinds().count("stop") == 1


def test_a_worker_that_joins_after_the_stop_is_stopped():
    engine, _ = engine_with()
    engine.stop("enough", 1.0)
    assert engine.join(2, 2.0) == [(2, Stop("enough"))]


def test_the_pending_rest_becomes_the_final_version():
    engine, log = engine_with("wbsp", workers=3)
    engine.push(push(0), f32(3, 3), 1.0)
    engine.stop("enough", 2.0)
    assert engine.leave(0, 3.0, "finished", finished=True) == []
    assert engine.leave(2, 3.5, "lost") == []
    assert not engine.done
    assert engine.leave(1, 4.0, "finished", finished=True) == [(0, Final(1)), (1, Final(1))]
    assert engine.done and engine.store.latest.vector.tolist() == [1, 1]
    assert log.only("commit") == {"version": 1, "merged": 1, "norm2": 2.0}


def test_a_run_ends_when_its_last_workers_are_lost_after_the_stop():
    engine, _ = engine_with("asp")
    engine.leave(0, 1.0, "finished", finished=True)
    engine.stop("enough", 2.0)
    assert engine.leave(1, 3.0, "lost") == [(0, Final(0))]
    assert engine.done


def test_a_run_does_not_end_while_the_last_worker_is_replaced():
    engine, _ = engine_with("asp")
    engine.leave(0, 1.0, "finished", finished=True)
    assert engine.leave(1, 2.0, "lost", replaced=True) == [] and not engine.done
    assert engine.state().awaited == [0, 1], "a server that resumes from here waits for it, too"
    assert engine.join(1, 2.1) == [(1, Granted(0))]
    assert engine.not_replaced(1, 2.2) == [], "it has joined"
    assert engine.leave(1, 3.0, "finished", finished=True) == [(0, Final(0)), (1, Final(0))]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_run_ends_when_the_process_that_replaces_the_last_worker_is_lost(stopped):
    engine, _ = engine_with("asp")
    engine.leave(0, 1.0, "finished", finished=True)
    engine.leave(1, 2.0, "lost", replaced=True)
    if stopped:
        assert engine.stop("enough", 2.5) == []
    assert engine.not_replaced(0, 3.0) == [] and not engine.done
    assert engine.not_replaced(1, 3.0) == [(0, Final(0))] and engine.done
    assert engine.not_replaced(1, 4.0) == []


def test_all_workers_lost_is_no_end():
    engine, _ = engine_with("asp")
    engine.leave(0, 1.0, "lost")
    assert engine.leave(1, 1.0, "lost") == [] and not engine.done
    assert engine.join(1, 2.0) == [(1, Granted(0))]


def test_a_repeated_push_gets_the_same_answer_and_changes_nothing():
    engine, log = engine_with("bsp")
    engine.push(push(0), f32(2, 2), 1.0)
    answer = engine.push(push(1), f32(2, 2), 2.0)
    before = engine.store.latest, engine.samples, engine.members[1].pushes
    assert engine.push(push(1), f32(2, 2), 3.0) == [(1, ack(answer))]
    assert (engine.store.latest, engine.samples, engine.members[1].pushes) == before
    assert log.only("duplicate") == {"worker": 1, "seq": 0}


def test_a_repeated_older_push_gets_no_answer():
    engine, _ = engine_with("asp")
    engine.push(push(0), f32(1, 1), 1.0)
    engine.push(push(0, 1), f32(1, 1), 2.0)
    assert engine.push(push(0), f32(1, 1), 3.0) == []


def test_a_seq_ahead_of_its_turn_is_an_error():
    engine, _ = engine_with("asp")
    with pytest.raises(ValueError, match="worker 0 pushed seq 2, but seq 0 was never received"):
        engine.push(push(0, 2), f32(1, 1), 1.0)
    assert engine.samples == 0


def test_a_push_of_an_unknown_worker_is_an_error():
    engine, _ = engine_with("asp")
    with pytest.raises(ValueError, match="worker 7 pushed without having been started"):
        engine.push(push(7), f32(1, 1), 1.0)
    engine.leave(0, 1.0, "lost")
    with pytest.raises(ValueError, match="worker 0 pushed without"):
        engine.push(push(0), f32(1, 1), 2.0)


def test_a_returning_worker_continues_with_the_ledgers_number():
    engine = Engine(create("asp"), Store(f32(0, 0)), 1)
    engine.restore(EngineState(version=0, next_seq={0: 5}, totals=(0, 0)))
    engine.join(0, 0.0)
    assert ack(engine.push(push(0, 5), f32(1, 1), 1.0)).accepted


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_rejected_and_the_barrier_continues(bad):
    engine, log = engine_with("bsp")
    answer = ack(engine.push(push(0), f32(bad, 1), 1.0))
    assert (answer.accepted, answer.reason) == (False, "not finite")
    assert engine.members[0].rejected == {"not finite": 1}
    assert log.only("reject")["reason"] == "not finite"
    outgoing = engine.push(push(1), f32(4, 4), 2.0)
    assert outgoing == [
        (0, Granted(1)), (1, Ack(0, True, granted=1, weight=0.5, steps=2, examples=20))]
    assert engine.store.latest.vector.tolist() == [2, 2]
    assert engine.push(push(0), f32(bad, 1), 3.0) == [
        (0, msgspec.structs.replace(answer, examples=20))]


class Strict(SyncModel):
    """A model that returns the given actions."""

    name = "strict"
    rule = WorkerRule(push="directed", wait="ack", adopt="replace")
    answers: list = []

    def push(self, push, now):
        return [answer(push) for answer in self.answers]

    def tick(self, now):
        return [Direct(1, cut=True)]


def strict(*answers):
    model, log = Strict(), Log()
    model.answers = answers
    engine = Engine(model, Store(f32(0, 0)), 2, log=log)
    engine.join(0, 0.0), engine.join(1, 0.0)
    return engine, log


def test_a_models_rejection_is_answered_counted_and_logged():
    engine, log = strict(lambda p: Reject(p, "too stale"))
    assert engine.push(push(0), f32(1, 1), 1.0) == [
        (0, Ack(0, False, "too stale", steps=1, examples=10))]
    assert engine.members[0].rejected == {"too stale": 1}
    assert log.only("reject")["reason"] == "too stale" and engine.store.accepted == 0


def test_pending_updates_are_committed_at_the_end():
    engine, _ = strict(lambda p: Accept(p, 0.5))
    engine.push(push(0), f32(2, 4), 1.0)
    engine.leave(1, 1.5, "lost")
    assert engine.leave(0, 2.0, "finished", finished=True) == [(0, Final(1))]
    assert engine.store.latest.vector.tolist() == [1, 2]


def test_an_order_to_hold_travels_in_the_answer_and_others_apart():
    engine, _ = strict(lambda p: Accept(p, 1.0), lambda p: Direct(0, hold=True),
                       lambda p: Direct(1, cut=True))
    assert engine.push(push(0), f32(1, 1), 1.0) == [
        (1, Directed(Direct(1, cut=True))),
        (0, Ack(0, True, hold=True, weight=1.0, steps=1, examples=10))]


def test_a_tick_carries_out_the_models_actions():
    assert strict()[0].tick(3.0) == [(1, Directed(Direct(1, cut=True)))]


@pytest.mark.parametrize("answers, wrong", [
    ([lambda p: "commit"], "strict answered with 'commit', which is not an action"),
    ([], r"strict neither accepted nor rejected Push\(worker=0"),
    ([lambda p: Grant(0)], r"strict neither accepted nor rejected Push\(worker=0"),
    ([lambda p: Commit(), lambda p: Accept(p, 1.0)], "strict committed before it accepted or"),
    ([lambda p: Accept(p, 1.0), lambda p: Reject(p, "late")], "strict answered a second time"),
    ([lambda p: Accept(p._replace(seq=7), 1.0)], r"Push\(worker=0, seq=7.*but the event was Push"),
    ([lambda p: Accept(p, float("nan"))], r"strict accepted Push\(.*with weight nan"),
    ([lambda p: Accept(p, 1.0), lambda p: Grant(7)], "worker 7 has not joined"),
    ([lambda p: Accept(p, 1.0), lambda p: Direct(7, cut=True)], "worker 7 has not joined"),
])
def test_a_model_that_breaks_the_contract_stops_at_once_and_nothing_is_applied(answers, wrong):
    engine, log = strict(*answers)
    heard = len(log.lines)
    with pytest.raises(ContractError, match=wrong):
        engine.push(push(0), f32(1, 1), 1.0)
    assert len(log.lines) == heard and not engine.store.accepted and not engine.store.latest.version
    assert engine.ledger.next_seq(0) == 0 and not engine.members[0].pushes


def test_nothing_is_accepted_where_nothing_was_pushed():
    engine, _ = strict()
    engine.model.tick = lambda now: [Accept(push(0), 1.0)]
    with pytest.raises(ContractError, match="but the event was no push"):
        engine.tick(1.0)


def test_a_carried_fetch_counts_only_with_a_grant():
    engine, _ = strict(lambda p: Accept(p, 1.0), lambda p: Commit(), lambda p: Grant(0))
    ack, model = engine.push(push(0), f32(1, 1), 1.0, fetch=5)
    assert ack == (0, Ack(0, True, granted=1, weight=1.0, steps=1, examples=10))
    assert model == (0, Model(5, engine.store.latest.version))
    assert engine.push(push(0), f32(1, 1), 2.0, fetch=5) == [ack, model]  # it was repeated
    assert len(engine.push(push(0, 1), f32(1, 1), 3.0)) == 1  # it carries none
    assert engine.fetch(1, 8) == [(1, Model(8, engine.store.latest.version))]
    engine, _ = strict(lambda p: Accept(p, 1.0))
    assert engine.push(push(0), f32(1, 1), 1.0, fetch=5) == [
        (0, Ack(0, True, weight=1.0, steps=1, examples=10))]


def test_the_fetch_of_a_waiting_worker_is_kept_until_its_grant():
    engine, _ = engine_with("bsp", workers=3)
    assert len(engine.push(push(0), f32(3, 0), 1.0, fetch=7)) == 1
    assert len(engine.push(push(1), f32(3, 0), 2.0)) == 1  # it carries none
    assert engine.push(push(2), f32(3, 0), 3.0, fetch=9)[:-2] == [
        (0, Granted(1, 7, True)), (0, Model(7, 1)), (1, Granted(1))]
    engine.push(push(0, 1), f32(3, 0), 4.0, fetch=8)
    assert engine.fetch(0, 10) == [(0, Model(10, 1))]  # it has asked itself meanwhile
    engine.push(push(1, 1), f32(3, 0), 5.0, fetch=11)
    engine.leave(1, 6.0, "lost")
    assert engine.push(push(2, 1), f32(3, 0), 7.0, fetch=12)[:-2] == [(0, Granted(2))]
    engine.push(push(0, 2), f32(3, 0), 8.0, fetch=13)
    engine.stop("enough", 9.0)
    assert engine.push(push(2, 2), f32(3, 0), 10.0)[0] == (0, Granted(3)), "it waits no more"


def test_a_worker_that_returns_to_its_version_is_sent_none():
    engine, _ = strict(lambda p: Accept(p, 1.0), lambda p: Grant(0))
    engine.model.rule = WorkerRule("every_step", "model", "return")
    assert engine.push(push(0), f32(1, 1), 1.0, fetch=5) == [
        (0, Ack(0, True, granted=0, weight=1.0, steps=1, examples=10))]
    engine.model.answers = [lambda p: Accept(p, 1.0)]
    engine.push(push(0, 1), f32(1, 1), 2.0, fetch=6)
    engine.model.tick = lambda now: [Grant(0)]
    assert engine.tick(3.0) == [(0, Granted(0, 6))]


class Asked(SyncModel):
    """Lets a worker cut at its third uncut step, and directs worker 1 at every question."""

    name, rule = "asked", WorkerRule("on_query", "model", "replace")

    def __init__(self):
        super().__init__()
        self.heard = []

    def query(self, worker, steps, seconds, now):
        self.heard.append((worker, steps, seconds, now))
        return [Direct(1, cut=True), Direct(0, cut=steps >= 3)]


def test_a_cut_query_is_decided_by_the_model():
    engine = Engine(model := Asked(), Store(None), 2)
    with pytest.raises(ValueError, match="worker 0 asked without having been started"):
        engine.query(0, CutQuery(1, 1, 0.5), 0.0)
    engine.join(0, 0.0), engine.join(1, 0.0)
    assert engine.query(0, CutQuery(1, 1, 0.5), 1.0) == [(1, Directed(Direct(1, cut=True))),
                                               (0, CutDecision(1, False))]
    assert engine.query(0, CutQuery(2, 3, 0.5), 3.0)[-1] == (0, CutDecision(2, True))
    assert model.heard == [(0, 1, 0.5, 1.0), (0, 3, 0.5, 3.0)]


def test_after_the_stop_no_worker_is_directed_to_cut():
    engine = Engine(model := Asked(), Store(None), 2)
    engine.join(0, 0.0), engine.join(1, 0.0)
    engine.stop("enough", 1.0)
    assert engine.query(0, CutQuery(1, 9, 0.5), 2.0) == [(0, CutDecision(1, False))]
    assert not model.heard


DATA = SharedData(100, 10, 2)


def sharing(name="asp", workers=2, data=DATA, **settings):
    """An engine of workers that share data, which begin."""
    log = Log()
    engine = Engine(create(name), Store(f32(0, 0)), workers, log=log, **settings)
    for worker in range(workers):
        assert engine.open(worker, data, 0).at == 0
        engine.join(worker, 0.0)
    return engine, log


def given(outgoing, worker):
    [work] = [message for index, message in outgoing
              if index == worker and isinstance(message, Work)]
    return work.start, work.stop


@pytest.mark.parametrize(("data", "first", "epochs", "reason"), [
    (None, 0, None, "worker 2 has data of its own, and the run's workers share theirs"),
    (DATA._replace(n=99), 0, None, "its n is 99, and the run's 100"),
    (DATA._replace(batch=20), 0, None, "its batch is 20, and the run's 10"),
    (DATA._replace(seed=1), 0, None, "its seed is 1, and the run's 0"),
    (DATA._replace(order="other"), 0, None, "its order is other, and the run's feistel-1"),
    (DATA._replace(epochs=3), 0, None, "trains epochs=3, and the run has 2"),
    (DATA, 1, None, "would end after 1 more epochs, and the run has 2 left of 2"),
    (DATA, 0, 3, "would end after 2 more epochs, and the run has 3 left of 3")])
def test_a_worker_with_other_data_is_refused_with_the_difference(data, first, epochs, reason):
    engine = Engine(create("asp"), Store(f32(0, 0)), 3, epochs=epochs)
    engine.open(0, DATA._replace(epochs=epochs or 2), 0)
    engine.join(0, 0.0)
    with pytest.raises(ValueError, match=reason):
        engine.open(2, data, first)


def test_epochs_are_of_data_that_all_share():
    engine = Engine(create("asp"), Store(f32(0, 0)), 1, epochs=3)
    with pytest.raises(ValueError, match="--epochs=3 of the server counts passes over data that "
                                         "all workers share, and worker 0 has data of its own"):
        engine.open(0, None, 0)


def test_a_learning_rate_counts_for_an_epoch_that_the_run_has_begun():
    engine, _log = sharing("asp", data=SharedData(20, 10, 9))
    assert engine.set_rate(0, LearningRate(0, 0.5), 0.0) == [], "nothing was given"
    given(engine.ask_work(0, AskWork(0, 0), 0.0), 0)
    for epoch in (1, 8, 9, 1 << 53):
        assert engine.set_rate(0, LearningRate(epoch, 0.5), 0.0) == [], epoch
    assert engine.set_rate(0, LearningRate(0, 0.5), 0.0) == [
        (worker, LearningRate(0, 0.5)) for worker in (0, 1)]
    assert engine.set_rate(1, LearningRate(0, 0.25), 0.0) == [], "the first one counts"
    alone = Engine(create("asp"), Store(f32(0, 0)), 1)
    alone.open(0, None, 0)
    alone.join(0, 0.0)
    assert alone.set_rate(0, LearningRate(0, 0.5), 0.0) == [], "it has no epochs"


def test_a_resumed_run_sends_results_and_rates_that_workers_may_have_missed():
    engine, _log = sharing("asp", data=SharedData(4, 4, 9))
    work = given(engine.ask_work(0, AskWork(0, 0), 0.0), 0)
    engine.push(push(0, 0, 0, 1, to=work[1] - work[0]), f32(1, 0), 0.0)
    told = Measured(0, {"loss": 0.5}), LearningRate(0, 0.25)
    engine.measure(0, told[0], 0.0), engine.set_rate(0, told[1], 0.0)
    resumed = Engine(create("asp"), Store(f32(0, 0), engine.store.latest.version), 2)
    resumed.restore(engine.state())
    sent = []
    for worker in (0, 1):
        resumed.open(worker, SharedData(4, 4, 9), 0)
        sent += resumed.join(worker, 0.0)
    assert [one for one in sent if one.message in told] == [
        (worker, one) for worker in (0, 1) for one in told]


def test_a_push_has_no_more_examples_than_its_worker_was_given():
    engine, _ = sharing("asp")
    start, stop = given(engine.ask_work(0, AskWork(0, 0), 0.0), 0)
    engine.push(push(0, to=stop - start)._replace(samples=1 << 40), f32(1, 1), 1.0)
    assert engine.members[0].samples == engine.samples == stop - start


def test_work_arrives_with_the_grant_where_workers_wait_for_versions():
    engine, _ = sharing("bsp")
    assert given(engine.ask_work(0, AskWork(0, 0), 0.0), 0) == (0, 10)
    assert given(engine.ask_work(1, AskWork(0, 0), 0.0), 1) == (10, 20)
    told = engine.push(push(0, to=10), f32(1, 1), 1.0)
    assert engine.ask_work(0, AskWork(10, 1), 1.0) == [] and ack(told).accepted
    assert given(engine.push(push(1, to=10), f32(1, 1), 2.0), 0) == (20, 30)


def test_a_worker_is_given_work_for_a_round_trip_and_at_most_its_share_of_the_rest():
    engine, _ = sharing("pcc")
    assert given(engine.ask_work(0, AskWork(0, 0, ahead=64), 0.0), 0) == (0, 70)
    assert given(engine.ask_work(1, AskWork(0, 0, ahead=64), 0.0), 1) == (70, 100)
    assert given(engine.ask_work(0, AskWork(70, 0, ahead=64), 0.0), 0) == (100, 130)
    assert given(engine.ask_work(0, AskWork(100, 0, ahead=64), 0.0), 0) == (130, 140)


@pytest.mark.parametrize("validate, stop", [("newest", 140), ("wait", 100)])
def test_a_range_of_a_site_may_reach_into_an_epoch_that_may_begin(validate, stop):
    engine, _ = sharing("pcc", data=DATA._replace(validate=validate))
    assert given(engine.ask_work(0, AskWork(0, 0, ahead=50), 0.0), 0) == (0, 50)
    assert given(engine.ask_work(1, AskWork(0, 0, 10, 90), 0.0), 1) == (50, stop)


def test_no_work_is_given_while_a_push_is_in_transit():
    engine, _ = sharing("asp")
    engine.ask_work(0, AskWork(0, 0), 0.0)
    assert engine.ask_work(0, AskWork(10, 1), 1.0) == []
    assert given(engine.push(push(0, to=10), f32(1, 1), 2.0), 0) == (10, 20)


def test_examples_assigned_to_others_are_rejected_under_every_model():
    engine, _ = sharing("asp")
    engine.ask_work(0, AskWork(0, 0), 0.0)
    engine.leave(0, 1.0, "lost")
    assert given(engine.ask_work(1, AskWork(0, 0), 1.0), 1) == (0, 10)
    engine.attach(0, 0, False, False, 2.0, WorkHeld(DATA, 0, [Range(0, 0, 10)]))
    answer = ack(engine.push(push(0, to=10), f32(1, 1), 3.0))
    assert not answer.accepted and answer.reason == "its examples were given to others"


def test_dropped_examples_are_free_again_and_the_rest_of_the_push_is_done():
    engine, _ = sharing("pcc", 1)
    engine.ask_work(0, AskWork(0, 0), 0.0), engine.ask_work(0, AskWork(10, 0), 0.0)
    for impossible in (21, 31):
        with pytest.raises(ValueError, match="worker 0 came to 20 in its work, and dropped all up"):
            engine.push(push(0, to=20, dropped=impossible), f32(1, 1), 1.0)
    assert ack(engine.push(push(0, to=20, dropped=10), f32(1, 1), 1.0)).accepted
    assert given(engine.ask_work(0, AskWork(20, 1), 2.0), 0)[0] == 0
    assert engine.work.ledger.undone.spans == [(0, 10), (20, 200)]


def test_the_run_ends_when_all_epochs_are_trained_and_continues_with_more():
    engine, log = sharing("asp", 1)
    for seq in range(20):
        at = 10 * seq
        assert given(engine.ask_work(0, AskWork(at, seq), float(seq)), 0) == (at, at + 10)
        told = engine.push(push(0, seq, to=at + 10), f32(1, 1), float(seq))
    assert (0, Stop("all 2 epochs are trained")) in told
    assert [fields["epoch"] for kind, fields in log.lines if kind == "epoch"] == [1, 2]
    later = Engine(create("asp"), Store(f32(20, 20), 20), 1, epochs=3)
    later.restore(engine.state())
    assert later.open(0, DATA._replace(epochs=3), 2).epoch == 2
    later.join(0, 0.0)
    assert given(later.ask_work(0, AskWork(200, 20), 0.0), 0) == (200, 210)
    fewer = Engine(create("asp"), Store(f32(20, 20), 20), 1, epochs=1)
    with pytest.raises(ValueError, match="--epochs=1: the run to resume has 2"):
        fewer.restore(engine.state())


def resumed(*here, rival=False):
    """An engine that resumes version 5 of three workers; these have reconnected with version 6."""
    log = Log()
    engine = Engine(create("asp"), Store(f32(0, 0), 5), 3, log=log)
    engine.restore(EngineState(version=3, next_seq={0: 1, 1: 1, 2: 1}, totals=(3, 3),
                               awaited=[0, 1, 2]), rival)
    for worker in here:
        engine.attach(worker, 6, False, False, 1.0)
    if not engine.started:
        engine.start(2.0)
    return engine, log


def test_version_numbers_leap_where_an_absent_worker_may_know_them():
    engine, log = resumed(0, 1)
    first = engine.store.latest.version
    assert first == 5 + LEAP
    engine.push(Push(0, 1, 6, 1, 1, 1.0), f32(1, 1), 3.0)
    assert log.only("accept")["base"] == first - 1, "it is stale by one version, not by a million"
    engine.attach(2, 8, False, False, 4.0)
    assert engine.store.latest.version == first + 1


def test_version_numbers_leap_where_another_server_may_give_them():
    """Any of the workers may go back to that one, which does not know of this one yet."""
    engine, _ = resumed(0, 1, 2, rival=True)
    assert engine.store.latest.version == 5 + LEAP


def test_version_numbers_continue_if_all_workers_reconnect():
    engine, _ = resumed(0, 1, 2)
    assert engine.store.latest.version == 7


def test_new_processes_train_examples_lost_after_all_workers_had_finished():
    """Their loops have ended, so the old ones cannot; without the work, they get no final version.
    """
    data = SharedData(8, 4, 1, 0)
    engine = Engine(create("asp"), Store(f32(0, 0)), 2)
    for worker in (0, 1):
        engine.open(worker, data, 0)
        engine.join(worker, 0.0)
    later = Engine(create("asp"), Store(f32(0, 0)), 2)
    later.restore(engine.state())
    for worker in (0, 1):
        assert not later.attach(worker, 0, True, False, 1.0, WorkHeld(data, 0, []))
        assert not later.started and later.lacks_work
    assert later.await_anew(2.0) == [0, 1] and not later.rendezvous.left
    later.open(0, data, 0)
    assert not later.join(0, 3.0), "the other one is awaited, too"
    assert not later.lacks_work
    told = later.start(4.0) + later.ask_work(0, AskWork(0, 0), 5.0)
    assert given(told, 0)[0] == 0


def lonely(site=False):
    """A resumed run whose worker 1 had finished, and whose worker 0, with the rest, dies."""
    data, log = SharedData(8, 4, 1, 0), Log()
    engine = Engine(create("asp"), Store(f32(0, 0)), 2)
    for worker in (0, 1):
        engine.open(worker, data, 0)
        engine.join(worker, 0.0)
    later = Engine(create("asp"), Store(f32(0, 0)), 2, log=log)
    later.restore(engine.state())
    later.attach(1, 0, True, False, 1.0, WorkHeld(data, 0, [], site=site))
    later.attach(0, 0, False, False, 1.0, WorkHeld(data, 0, [Range(0, 0, 4)]))
    assert later.started and not later.lacks_work
    return later, later.leave(0, 2.0, "no message for 5 s"), data


def test_a_run_waits_for_the_next_process_of_one_that_dies_after_all_others_have_finished():
    engine, told, data = lonely()
    assert not (told or engine.done) and engine.lacks_work
    assert not engine.state().ended
    place = engine.open(0, data, 0)
    engine.join(0, 3.0)
    assert not engine.lacks_work
    told = engine.ask_work(0, AskWork(place.at, 0), 4.0)
    assert given(told, 0) == (0, 4), "it trains what the process before has lost"


def test_finished_workers_train_the_rest_anew_if_no_other_joins():
    engine, _, data = lonely()
    assert engine.await_anew(40.0) == [1]
    assert not engine.lacks_work, "nobody has finished now"
    engine.open(1, data, 0)
    engine.join(1, 41.0)
    assert given(engine.ask_work(1, AskWork(0, 0), 42.0), 1) == (0, 4)


def test_a_run_of_sites_ends_without_the_work_of_one_that_dies_last():
    engine, told, _ = lonely(site=True)
    assert engine.done and told == [(1, Final(engine.store.latest.version))]


def test_sites_do_not_train_examples_lost_after_all_had_finished():
    """Their workers have left; a reconnecting site states that it is one, before any report."""
    data = SharedData(8, 4, 1, 0)
    engine = Engine(create("asp"), Store(f32(0, 0)), 1)
    engine.open(0, data, 0)
    engine.join(0, 0.0)
    later = Engine(create("asp"), Store(f32(0, 0)), 1)
    later.restore(engine.state())
    later.attach(0, 0, True, False, 1.0, WorkHeld(data, 0, [], site=True))
    assert not (later.started or later.work.ledger.over or later.lacks_work)


class Listener(SyncModel):
    """BSP of two, which records the norms that it receives."""

    name = "listener"
    rule = WorkerRule("every_step", "model", "replace")

    def __init__(self):
        super().__init__()
        self.norms = []

    def push(self, push, now):
        self.norms.append(push.norm2)
        due = [Commit(), Grant(0), Grant(1)] if len(self.norms) % 3 == 2 else []
        return [Accept(push, 0.5), *due]

    def committed(self, version, norm2, now):
        self.norms.append((version, norm2, now))


def listening(store):
    log = Log()
    engine = Engine(Listener(), store, 2, log=log)
    for worker in range(2):
        engine.join(worker, 0.0)
    return engine, log


def test_a_model_receives_the_norms_of_pushes_and_of_a_versions_sum():
    engine, log = listening(Store(f32(0, 0)))
    engine.push(push(0), f32(3, 4), 1.0)
    engine.push(push(1)._replace(norm2=7.0), f32(3, -4), 2.0)  # a worker's report does not count
    assert engine.model.norms == [25.0, 25.0, (1, 9.0, 2.0)]
    assert [fields["norm2"] for kind, fields in log.lines if kind in ("accept", "commit")] == [
        25.0, 25.0, 9.0]


def test_norms_have_five_digits():
    engine, _ = listening(Store(f32(0)))
    engine.push(push(0), f32(1.2345678), 1.0)
    assert engine.model.norms == [1.5242]


def test_a_model_receives_no_norm_of_an_update_that_is_not_finite():
    engine, _ = listening(Store(f32(0)))
    engine.push(push(0), f32(np.nan), 1.0)
    assert engine.model.norms == [None] and engine.members[0].rejected == {"not finite": 1}


def test_a_model_receives_no_norm_without_tensors():
    engine, log = listening(Store(None))
    for worker in range(2):
        engine.push(push(worker), None, 1.0)
    assert engine.model.norms == [None, None, (1, None, 1.0)]
    assert not [fields for _, fields in log.lines if "norm2" in fields]


def test_a_late_norm_is_reported_at_the_next_event_and_logged():
    """As with shards, which measure their ranges."""
    engine, log = listening(Store(None))
    for worker in range(2):
        engine.push(push(worker), None, 1.0)
    engine.store.norms.append((1, 9.0))
    engine.tick(2.0)
    assert engine.model.norms[-1] == (1, 9.0, 2.0)
    assert log.only("norm") == {"version": 1, "norm2": 9.0}


def test_an_error_in_a_models_handling_of_a_norm_is_the_models_fault():
    class Broken(Listener):
        def committed(self, version, norm2, now):
            raise ZeroDivisionError

    faults = []
    engine = Engine(Broken(), Store(f32(0)), 2, on_fault=lambda error: not faults.append(error))
    for worker in range(2):
        engine.join(worker, 0.0)
    for worker in range(2):
        engine.push(push(worker), f32(1), 1.0)
    assert [type(error) for error in faults] == [ZeroDivisionError]
    assert engine.store.latest.version == 1


def test_a_site_adopts_at_the_end_of_its_step_and_its_workers_get_that_version():
    engine, log = engine_with("bsp")
    made = []

    def on_version(now):
        assert not engine.store.accepted
        made.append(engine.store.latest.version)
        engine.adopt(f32(7, 7), 40, now)

    engine.observe(on_version, lambda: False)
    engine.push(Push(0, 0, 0, 1, 1, 1.0), f32(1, 1), 1.0)
    assert made == []
    answer = engine.push(Push(1, 0, 0, 1, 1, 1.0), f32(1, 1), 2.0)
    assert made == [1], "not again for the version that it has adopted"
    assert ack(answer).granted == 1
    assert engine.store.latest.version == 2 and (engine.store.latest.vector == 7).all()
    assert log.only("adopt") == {"version": 2, "above": 40}
    for worker in range(2):
        engine.push(Push(worker, 1, 2, 1, 1, 1.0), f32(2, 2), 3.0)
    assert made == [1, 3]


def test_the_last_version_of_a_site_comes_from_above_after_its_workers_have_finished():
    engine, _ = engine_with("bsp")
    settled = False
    engine.observe(lambda now: None, lambda: settled)
    for worker in range(2):
        engine.leave(worker, 1.0, "finished", finished=True)
    assert engine.newest == (0, True, False) > (0, False, False), "a checkpoint must have it"
    engine.adopt(f32(7, 7), 40, 2.0)
    settled = True
    assert engine.newest == (1, True, True)


def test_an_adopted_version_bounds_the_next_ones():
    engine, _ = engine_with("asp", workers=1)
    engine.observe(lambda now: None, lambda: False)
    engine.adopt(f32(9e37, 9e37), 1, 1.0)
    answer = engine.push(Push(0, 0, 1, 1, 1, 1.0), f32(2e37, 2e37), 2.0)
    assert ack(answer).reason == "too large"


def test_the_pushes_of_a_sick_worker_are_counted_across_a_restart():
    bad = np.array([np.nan, 0], np.float32)

    def exchange(engine, seqs, values):
        told = []
        for seq in seqs:
            for worker, value in enumerate((values, f32(1, 1))):
                made = Push(worker, seq, engine.store.latest.version, 1, 1, 0.1)
                told += engine.push(made, value.copy(), 1.0 + seq)
        return [(worker, message) for worker, message in told if isinstance(message, LetGo)]
    engine, _ = engine_with("asp")
    assert not exchange(engine, (0, 1), bad)
    again, log = Engine(create("asp"), Store(f32(0, 0), engine.store.latest.version), 2), Log()
    again.log = log
    again.restore(engine.state())
    for worker in range(2):
        again.attach(worker, again.store.latest.version, False, False, 2.0)
    (one, message), = exchange(again, (2,), bad)
    assert one == 0 and "the last 3 pushes of worker 0 were not finite" in message.reason
    assert again.active == [1] and not again.failed
    assert log.only("sick") == {"worker": 0, "all": False}


def test_a_resumed_run_that_has_ended_records_that_in_its_state():
    """Its server may be lost, too, while it waits for workers without the last version."""
    engine = Engine(create("asp"), Store(f32(0, 0)), 2)
    for worker in (0, 1):
        engine.join(worker, 0.0)
    for worker in (0, 1):
        engine.leave(worker, 1.0, "finished", finished=True)
    assert engine.newest == (0, True, True)
    for _ in range(2):
        later = Engine(create("asp"), Store(f32(0, 0)), 2)
        later.restore(engine.state())
        assert later.newest == (0, True, True) and not later.started
        assert (later.rendezvous.ended, later.rendezvous.owed) == (True, {0, 1})
        assert later.owes(0), "it gets that version, and trains nothing"
        engine = later


def ended():
    """Two workers have finished, and a server resumes before they have the last version."""
    before = Engine(create("asp"), Store(f32(0), 0), 2)
    for worker in (0, 1):
        before.join(worker, 0.0)
    for worker in (0, 1):
        before.leave(worker, 1.0, "finished", finished=True)
    assert before.done
    return again(before)


def again(before):
    """A server that resumes from the state of another one."""
    engine = Engine(create("asp"), Store(f32(0), before.store.latest.version), 2)
    engine.restore(before.state())
    return engine


def test_a_server_that_waits_at_the_end_records_which_workers_have_the_last_version():
    engine = ended()
    engine.has_final(1, 2.0)
    assert again(engine).rendezvous.owed == {0}


def test_a_process_admitted_for_the_last_version_receives_it_from_the_next_server():
    engine = ended()
    answer, stop = (one.message for one in engine.attach(0, 0, False, False, 2.0))
    assert answer.joined and isinstance(stop, Stop)
    assert engine.owes(0) and not engine.active
    assert not engine.leave(0, 3.0, "finished", finished=True)
    assert {type(one.message) for one in engine.attach(1, 0, True, False, 4.0)} >= {Final}
