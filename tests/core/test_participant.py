"""A member's life: its shared data, its requests for more, and what the server directs."""

from random import Random

import pytest

from wbsp.core.agent import Adopt, Cut
from wbsp.core.messages import (
    Ack,
    AskWork,
    CutDecision,
    CutQuery,
    Directed,
    Fetch,
    Granted,
    LearningRate,
    Measured,
    Range,
    Reattached,
    SharedData,
    Stop,
    StopRun,
    Work,
    WorkPlace,
)
from wbsp.core.participant import Participant
from wbsp.core.rules import RuleBroken
from wbsp.sync import MODELS, Direct, WorkerRule, create

BSP = WorkerRule("every_step", "model", "replace")
PCC = WorkerRule("when_idle", "never", "rebase")
ESYNC = WorkerRule("on_query", "model", "replace")
SHARED = WorkerRule("every_step", "model", "replace", shared=True)
DATA = SharedData(20, 4, 3)
BACK = Reattached(1, True, 0, 0, None)


def member(rule=PCC, at=100, data=DATA, **more):
    """A member that has adopted W_0; its sequence begins at `at`."""
    one = Participant(3, rule, place=data and WorkPlace(data, at, 0), **more)
    assert one.received(Granted(0), 0.0) == [Fetch(1)]
    assert one.fetched(0) == [Adopt(0, "replace")]
    return one


def step(one, seconds=0.1):
    """Train the next examples; return the commands."""
    examples = one.take()
    one.step_begins()
    return one.step_done(examples[0] if examples else 4, seconds)


def cuts(commands):
    return [(one.push.samples, one.push.to, one.spans) for one in commands if isinstance(one, Cut)]


def test_work_is_requested_once_until_the_answer():
    one = member()
    assert one.due(0.0) == [AskWork(100, 0)] and one.due(4.9) == []
    assert one.due(5.0) == [AskWork(100, 0)], "again after a while"
    one.received(Work(100, 8, 16, 0), 5.1)
    assert one.due(5.2) == [] and one.take() == (4, 8)


def test_no_work_is_requested_in_a_step_during_a_decision_and_at_the_end():
    one = member(ESYNC)
    one.due(0.0), one.received(Work(100, 0, 4, 0), 0.1)
    one.take(), one.step_begins()
    assert one.due(0.2) == []
    assert [*map(type, one.step_done(4, 0.1))] == [CutQuery] and one.due(0.3) == []
    assert one.received(CutDecision(1, False), 0.4) == [] and one.due(0.5) == [AskWork(104, 0)]
    one.received(BACK, 0.6)
    assert one.due(0.6) == [AskWork(104, 0)], "over another connection"
    for end in (lambda: one.received(Stop("enough"), 0.7), one.finish):
        end(), one.received(BACK, 0.7)
        assert one.due(9.9) == []


def test_a_repeated_range_or_one_with_a_gap_changes_nothing():
    one = member()
    for work in (Work(100, 0, 4, 0), Work(100, 0, 4, 0), Work(108, 4, 8, 0)):
        one.received(work, 0.0)
    assert one.work.held == [Range(100, 0, 4)] and one.take() == (4, 0) and one.take() is None


def test_the_answer_to_a_push_frees_only_its_examples():
    one = member()
    one.received(Work(100, 0, 4, 0), 0.0), one.received(Work(104, 8, 16, 0), 0.0)
    assert cuts(step(one)) == [(4, 104, ((0, 4),))]
    assert step(one) == [] and one.work.held == [Range(100, 0, 4), Range(104, 8, 16)]
    one.received(Ack(0, True), 0.1)
    assert one.work.held == [Range(104, 8, 16)]
    assert cuts(step(one)) == [(8, 112, ((8, 16),))], "the step during the push, too"
    one.received(Ack(1, False, "too old"), 0.2)
    assert one.work.held == [] and one.work.answered == 112


def test_a_worker_without_work_pushes_its_progress_if_the_server_has_none():
    one = member()
    one.due(0.0), one.received(Work(100, 0, 8, 0), 0.1)
    step(one), step(one)
    assert one.starved() == [], "more may come"
    one.due(0.2), one.received(Work(108, 0, 0, 0), 0.3)
    assert one.starved() == [], "the push before is not answered"
    assert cuts(one.received(Ack(0, True), 0.4)) == [(4, 108, ((4, 8),))]
    one.received(Ack(1, True), 0.5)
    assert one.starved() == [] and one.due(9.9) == [], "the server says when there is more"
    one.received(Work(108, 8, 12, 1), 9.9)
    assert not one.dry and one.take() == (4, 8)


def test_a_worker_that_has_work_again_pushes_at_the_end_of_a_step_and_not_within():
    one = member()
    one.due(0.0), one.received(Work(100, 0, 8, 0), 0.1)
    step(one), step(one)
    one.due(0.2), one.received(Work(108, 0, 0, 0), 0.3), one.starved()
    one.received(Work(108, 8, 12, 1), 0.4)
    one.take(), one.step_begins()
    assert one.received(Ack(0, True), 0.5) == [] and one.starved() == []
    assert cuts(one.step_done(4, 0.1)) == [(8, 112, ((4, 8), (8, 12)))]


def test_a_worker_that_waits_for_versions_asks_when_all_is_trained_and_others_in_time():
    waits, busy = member(WorkerRule("every_step", "model", "replace", every=9)), member()
    for one in (waits, busy):
        one.due(-36.0), one.received(Work(100, 0, 4, 0), 0.0)  # it has waited for the others
        step(one, 0.05)
        assert one.due(0.0) == [AskWork(104, 1 if one is busy else 0)], "as much as was trained"
        one.received(Work(104, 4, 20, 0), 0.02)  # a trip of 20 ms
        step(one, 0.05), step(one, 0.05)
        assert one.due(0.2) == [], "0.1 s left: two batches"
        step(one, 0.01)
    assert waits.due(0.3) == [] and busy.due(0.3) == [AskWork(120, 1, ahead=6)]
    step(waits, 0.01)
    assert waits.due(0.4) == [AskWork(120, 0)]


def test_a_question_is_repeated_until_its_answer_and_over_another_connection():
    one = member(data=None)
    ask = StopRun("enough")
    assert one.ask(ask, Stop, 1.0) == [ask] and one.due(5.9) == [] and one.due(6.0) == [ask]
    one.received(BACK, 7.0)
    assert one.due(7.0) == [ask] and one.due(7.1) == []
    one.received(Stop("enough"), 7.2)
    assert one.due(99.0) == []
    assert one.ask(ask, Stop, 1.0, until=3.0) == [ask] and one.due(9.0) == [], "not needed now"


def test_results_and_rates_are_sent_again_until_the_server_confirms_their_epoch():
    one = member()
    for told, other in [(Measured(1, {"loss": 0.5}), Measured(0, {})),
                        (LearningRate(1, 0.1), LearningRate(0, 1.0))]:
        assert one.ask(told, type(told), 1.0) == [told]
        one.received(other, 2.0)  # of the epoch before, over a new connection
        assert told in one.due(6.0)
        one.received(told, 7.0)
        assert told not in one.due(99.0)


def test_a_rate_is_sent_again_to_a_server_that_may_have_resumed_without_it():
    one, rate = member(), LearningRate(1, 0.1)
    one.ask(rate, LearningRate, 1.0)
    one.received(rate, 2.0)
    assert rate not in one.due(3.0)
    one.received(BACK, 4.0)
    assert rate in one.due(4.0)
    one.received(LearningRate(2, 0.2), 5.0)
    assert rate not in one.due(99.0)


@pytest.mark.parametrize("data", [None, DATA], ids=["own", "shared"])
def test_the_server_directs_the_size_of_the_next_steps(data):
    one = member(BSP, data=data)
    one.received(Work(100, 0, 20, 0), 0.0)
    assert one.take() == ((4, 0) if data else ())
    one.received(Directed(Direct(3, batch=3)), 0.0)
    assert one.take() == ((3, 4) if data else (3,))


def test_pieces_of_the_shared_stream_are_trained_once_in_their_order():
    one = member(SHARED, data=None)
    assert one.take() is None
    for start in (0, 30, 30, 0):
        one.received(Directed(Direct(3, batch=10, start=start)), 0.0)
    assert [one.take() for _ in range(3)] == [(10, 0), (10, 30), None]
    one.received(Directed(Direct(3, batch=10, start=40)), 0.0)
    one.received(BACK, 0.0)
    one.received(Directed(Direct(3, batch=5, start=0)), 0.0)
    assert [one.take() for _ in range(2)] == [(5, 0), None], "of a server that begins again"


def test_broken_rules_are_found():
    one = member()
    with pytest.raises(RuleBroken, match="has not begun"):
        one.step_done(4, 0.1)
    one.step_begins(), one.step_dropped()
    with pytest.raises(RuleBroken, match="has not begun"):
        one.step_done(4, 0.1)
    one.received(Work(100, 0, 4, 0), 0.0)
    one.step_begins()
    with pytest.raises(RuleBroken, match="only 0 were taken"):
        one.step_done(4, 0.1)
    waits = member(BSP)
    waits.received(Work(100, 0, 8, 0), 0.0)
    step(waits)
    with pytest.raises(RuleBroken, match="while it waits for its ack"):
        step(waits)


class Server:
    """It grants, answers and gives at random; the worker does what its participant commands."""

    def __init__(self, sync, seed):
        self.random = Random(f"{sync} {seed}")
        self.one = member(create(sync).rule)
        self.push = self.ask = None  # not answered
        self.given = self.version = 0
        self.pushed = []  # positions

    def follow(self, commands):
        for command in commands:
            if isinstance(command, Cut):
                assert self.push is None
                self.push = command.push
                self.pushed += [g for span in command.spans for g in range(*span)]
            elif isinstance(command, AskWork):
                assert self.ask is None and command.have == 100 + self.given
                self.ask = command
            elif isinstance(command, CutQuery):
                cut = self.random.random() < 0.5
                self.follow(self.one.received(CutDecision(command.number, cut), 0.0))

    def step(self, now):
        one, chance = self.one, self.random.random()
        if self.push and chance < 0.4:
            self.version += 1
            push, self.push = self.push, None
            self.follow(one.received(Ack(push.seq, True, granted=self.version), now))
        elif one.agent.fetching and chance < 0.6:
            self.follow(one.fetched(self.version))
        elif (self.ask or one.requests.none) and chance < 0.8:
            self.ask = None
            at, start = 100 + self.given, self.given
            self.given += self.random.randint(0, 9)
            self.follow(one.received(Work(at, start, self.given, 0), now))
        elif one.agent.waiting is None and (examples := one.take()) is not None:
            one.step_begins()
            self.follow(one.step_done(examples[0], 0.1))
        elif one.agent.waiting is None:
            self.follow(one.starved())
            assert not (one.dry and one.agent.idle and one.work.trained > one.work.answered)
        self.follow(one.due(now))

    def end(self):
        self.follow(self.one.received(Stop("enough"), 99.0))
        while not self.one.agent.finished:
            if self.push:
                push, self.push = self.push, None
                self.follow(self.one.received(Ack(push.seq, True), 99.0))
            elif self.one.agent.fetching:
                self.follow(self.one.fetched(self.version))
            else:
                assert self.one.agent.waiting is None
                self.follow(self.one.finish())


@pytest.mark.parametrize("sync", MODELS)
def test_every_trained_example_is_in_one_push(sync):
    for seed in range(20):
        server = Server(sync, seed)
        for event in range(400):
            server.step(event / 10)
        server.end()
        assert server.pushed == [*range(server.one.work.trained - 100)] != [], seed


def test_a_batch_that_was_taken_before_a_direction_has_the_rate_of_its_own_size():
    one = member(WorkerRule("on_adopt", "never", "rebase", sizes=True))
    one.follows(1)
    one.received(Work(100, 0, 20, 0), 0.0)
    parts, reasons = [], []

    def trains(batch):
        one.step_begins()
        parts.append((batch[0], one.part))
        reasons.append(one.reason)
        one.step_done(batch[0], 0.1)

    first, ahead = one.take(), one.take()
    one.received(Directed(Direct(3, batch=2, why="for a test")), 0.0)
    trains(first)
    then = one.take()
    trains(ahead)
    one.received(Directed(Direct(3, batch=1)), 0.0)
    trains(then)
    trains(one.take())
    assert parts == [(4, 1.0), (4, 1.0), (2, 0.5), (1, 0.25)]
    assert reasons == ["", "", "", ""]  # of the third step the direction before it was
    one.received(Directed(Direct(3, batch=2, why="for a test")), 0.0)
    trains(one.take())
    assert parts[-1] == (2, 0.5) and reasons[-1] == "for a test"
    one.follows(None)
    assert one.batch == 4 and one.part == 1.0


def test_a_worker_whose_loop_cannot_follow_keeps_the_batch_without_a_line():
    one = member(WorkerRule("on_adopt", "never", "rebase", sizes=True))
    one.received(Work(100, 0, 20, 0), 0.0)
    one.received(Directed(Direct(3, batch=2)), 0.0)
    assert one.take() == (4, 0) and one.part == 1.0
    one.step_begins()
    [cut] = [one for one in one.step_done(4, 0.1) if isinstance(one, Cut)]
    assert cut.push.batch is None
