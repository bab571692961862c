"""The work ledger: each example exactly once an epoch in accepted pushes, under any deaths.

`World` has workers, servers that die, and what each knows; its model is the multiset of the
positions that it is made of. It says itself what must be, and compares after each event.
"""

import sys
from collections import Counter
from copy import deepcopy
from random import Random

import msgspec
import pytest
from random_events import play

from wbsp.core.messages import Range, SharedData
from wbsp.core.rules import RuleBroken
from wbsp.core.work.positions import Positions
from wbsp.core.work.sequence import WorkSequence
from wbsp.core.work.strikes import Strikes, StruckState
from wbsp.core.work_ledger import WorkLedger, WorkState
from wbsp.limits import SPANS
from wbsp.testing.once import assert_each, in_spans

DATA = SharedData(n=100, batch=10, epochs=2)


class Worker:
    def __init__(self, at, seq):
        self.work = WorkSequence(at)
        self.seq = self.first = seq
        self.kept = []  # (mark, seq, spans) of answered pushes that are not known to be durable
        self.sent = None  # seq, to
        self.attached = True

    def answer(self, accepted, mark, durable):
        spans = self.work.spans(self.work.answered, self.sent[1])
        self.work.answer(self.sent[1])
        self.kept.append((mark, self.seq, spans if accepted else []))
        self.kept = [one for one in self.kept if one[0] >= durable]
        self.seq, self.sent = self.seq + 1, None


class World:
    def __init__(self, seed, poison=False):
        self.random = random = Random(seed)
        self.n, self.epochs = random.randint(1, 200), random.randint(1, 4)
        self.ledger = WorkLedger(SharedData(self.n, 1, self.epochs))
        self.poison = random.randrange(self.n) if poison else None  # an example that makes NaN
        self.model, self.given_up = Counter(), Counter()
        self.seqs = {}  # worker -> seq that is due
        self.answers = {}  # worker -> seq, accepted, mark: of its newest push
        self.mark = self.durable = 0
        self.workers = dict.fromkeys(range(random.randint(1, 5)))
        self.awaited = set()  # of a restarted server, which gives nothing before
        self.saved = self.copy()
        self.count = Counter()

    def copy(self):
        there = {index for index, worker in self.workers.items() if worker}
        return deepcopy((msgspec.to_builtins(self.ledger.state(), str_keys=True), self.model,
                         self.given_up, self.seqs, self.answers, self.mark + 1, there))

    def checkpoint(self):
        self.saved = self.copy()
        self.mark += 1
        self.durable = self.mark

    def crash(self):
        state, self.model, self.given_up, self.seqs, self.answers, mark, there = deepcopy(
            self.saved)
        state = msgspec.convert(state, WorkState, str_keys=True)
        self.ledger = WorkLedger(state.data, state)
        self.mark = self.durable = mark
        self.awaited = there
        for worker in self.workers.values():
            if worker:
                worker.attached = False

    def attach(self, index, me):
        due = max(self.seqs.get(index, 0), me.first)
        if due < me.seq:  # these decisions are lost here
            spans = [span for _, seq, spans in me.kept if seq >= due for span in spans]
            news = in_spans(spans)
            valid = self.ledger.resent(spans)
            taken = any(self.model[g] or self.given_up[g] for g in news)
            assert valid != taken, "void for nothing, or not void"
            if valid:
                self.model.update(news)
            self.count["void"] += not valid
            me.kept = [(self.mark, seq, spans if valid else []) for _, seq, spans in me.kept
                       if seq >= due]
        self.seqs[index] = max(due, me.seq, self.seqs.get(index, 0))
        self.ledger.claim(index, me.work.answered, me.work.held)
        self.awaited.discard(index)
        me.attached = True

    def push(self, index, me):
        seq, to = me.sent
        due = max(self.seqs.get(index, 0), me.first)
        if seq == due:
            mine = [g for r in me.work.held for g in range(r.start, r.stop)
                    if r.at + g - r.start < to]
            owns = self.ledger.owns(index, to)
            own = Counter(g for r in self.ledger._holders[index].held if r.own
                          for g in range(r.start, r.stop) if r.at + g - r.start < to)
            assert owns or Counter(mine) - own, "refused for nothing"
            finite = not any(g % self.n == self.poison for g in mine)
            accepted = owns and finite and self.random.random() < 0.85
            self.count["accepted" if accepted else "rejected" if owns else "not its own"] += 1
            if accepted:
                self.model.update(mine)
            lost = self.ledger.settle(index, to, accepted, finite)
            self.given_up += in_spans(lost)
            self.seqs[index], self.answers[index] = seq + 1, (seq, accepted, self.mark)
        if self.random.random() < 0.1:  # the answer is lost, and with it the connection
            me.attached = False
            return
        answered, accepted, mark = self.answers[index]
        assert answered == seq
        me.answer(accepted, mark, self.durable)

    def ask(self, index, me):
        have = me.work.end
        if not self.ledger.gives_from(index, have):
            given = self.ledger.known(index, have)
            assert given is not None
        elif self.awaited or (given := self.ledger.give(index, self.random.randint(1, 40))) is None:
            return
        assert given.at == have and given.start // self.n == (given.stop - 1) // self.n
        if self.random.random() < 0.9:
            assert me.work.give(given) and not me.work.give(given)

    def step(self):
        random, ledger = self.random, self.ledger
        index = random.choice([*self.workers])
        me, chance = self.workers[index], random.random()
        if me is None:
            if chance < 0.3:
                self.workers[index] = Worker(ledger.open(index), self.seqs.get(index, 0))
                self.awaited.discard(index)
        elif not me.attached:
            if chance < 0.2:
                self.attach(index, me)
            elif chance < 0.23:  # it is given up
                ledger.lost(index)
                self.awaited.discard(index)
        elif chance < 0.3:
            self.ask(index, me)
        elif chance < 0.6:
            while random.random() < 0.7 and me.work.take(random.randint(1, 10)):
                pass
            me.work.train(random.randint(0, me.work.taken - me.work.trained))
        elif chance < 0.9:
            if me.sent is None and me.work.trained > me.work.answered:
                me.sent = me.seq, me.work.trained
            if me.sent:
                self.push(index, me)
        elif chance < 0.92 and self.faults:
            self.workers[index] = None  # the process dies
            ledger.lost(index)
            self.awaited.discard(index)
            self.count["deaths"] += 1
        elif chance < 0.94 and self.faults:
            me.attached = False  # a line breaks; perhaps the server notices
            if random.random() < 0.5:
                ledger.lost(index)
                self.awaited.discard(index)
        elif chance < 0.97:
            self.checkpoint()
        elif chance < 0.975 and self.faults:
            self.crash()
            self.count["crashes"] += 1
        elif self.awaited and random.random() < 0.05:
            late = random.choice([*self.awaited])
            ledger.lost(late)
            self.awaited.discard(late)
            if self.workers[late]:
                self.workers[late].attached = False

    def check(self):
        assert self.ledger.done == (self.model + self.given_up).total()
        """Each position is in one place, and the done ones are those in the model."""
        ledger = self.ledger
        places = ledger.free.spans + [(r.start, r.stop) for holder in ledger._holders.values()
                                      for r in holder.held if r.own]
        undone = [g for span in places for g in range(*span)]
        assert len(undone) == len(set(undone)), "a position in two places"
        assert sorted(places) == sorted({*places})
        assert set(undone) == {g for span in ledger.undone.spans for g in range(*span)}
        assert ledger.free.count == sum(b - a for a, b in ledger.free.spans)
        done = Counter(set(range(self.n * self.epochs)) - set(undone))
        assert done == self.model + self.given_up
        assert ledger.given_up == self.given_up.total()

    def run(self):
        play(self, lambda: self.ledger, 100_000, 3000)
        assert_each(self.model + self.given_up, self.n * self.epochs)
        return self.count


@pytest.mark.parametrize("poison", [False, True], ids=["", "with an example that makes NaN"])
def test_each_example_is_once_an_epoch_in_the_model(poison):
    total = Counter()
    for seed in range(40):
        world = World(seed, poison)
        total += world.run()
        assert poison or not world.given_up
        assert world.given_up.keys() <= set(range(world.n * world.epochs)) and (
            not poison or sum(g % world.n == world.poison for g in world.given_up) == world.epochs)
    assert all(total[kind] for kind in ("accepted", "rejected", "not its own", "void", "deaths",
                                        "crashes"))


def test_a_range_ends_where_its_epoch_does():
    ledger = WorkLedger(DATA)
    ledger.open(0)
    assert ledger.give(0, 80) == Range(0, 0, 80)
    assert ledger.left() == 20
    assert ledger.give(0, 80) == Range(80, 80, 100)
    assert ledger.give(0, 80) == Range(100, 100, 180)


def test_a_lost_answer_is_repeated():
    ledger = WorkLedger(DATA)
    ledger.open(0)
    first = ledger.give(0, 10)
    assert not ledger.gives_from(0, 0) and ledger.known(0, 0) == first
    assert ledger.gives_from(0, 10) and ledger.known(0, 10) is None
    with pytest.raises(ValueError, match="worker 0 has work up to 11, and was given 10"):
        ledger.known(0, 11)


def test_the_work_of_a_lost_worker_belongs_to_others_when_it_returns():
    ledger = WorkLedger(DATA)
    ledger.open(0), ledger.open(1)
    mine = ledger.give(0, 10)
    ledger.lost(0)
    assert ledger.give(1, 5) == Range(0, 0, 5)
    ledger.claim(0, 0, [mine])
    assert not ledger.owns(0, 10) and not ledger.owns(0, 1) and ledger.owns(1, 5)
    ledger.settle(0, 10, False)
    assert ledger.give(1, 5) == Range(5, 5, 10)


def test_work_that_is_taken_back_goes_to_others():
    ledger = WorkLedger(DATA)
    ledger.open(0), ledger.open(1)
    ledger.give(0, 10)
    ledger.settle(0, 4, True)
    ledger.take_back(0)
    assert ledger.give(1, 10) == Range(0, 4, 10 + 4)
    assert ledger.held(0) == 6 and not ledger.owns(0, 10)
    ledger.settle(0, 10, False)
    assert ledger.undone.spans == [(4, 200)] and ledger.free.spans == [(14, 200)]


def test_work_that_an_earlier_server_accepted_overrides_work_that_is_held():
    ledger = WorkLedger(DATA)
    ledger.claim(1, 0, [Range(0, 0, 20)])
    assert ledger.resent([(10, 15)])
    assert ledger.owns(1, 10) and not ledger.owns(1, 11)
    assert not ledger.resent([(14, 16)])
    for spans in [(20, 30), (25, 35)], [(30, 30)], [(195, 201)]:
        with pytest.raises(ValueError, match="there are 200, each once"):
            ledger.resent(spans)


@pytest.mark.parametrize(("answered", "held"), [
    (0, [Range(5, 0, 10)]), (0, [Range(0, 95, 105)]), (0, [Range(0, 10, 10)]),
    (0, [Range(0, 195, 201)]), (0, [Range(0, 0, 10), Range(11, 10, 20)])])
def test_impossible_holdings_are_refused(answered, held):
    ledger = WorkLedger(DATA)
    with pytest.raises(ValueError, match="cannot be"):
        ledger.claim(0, answered, held)
    assert ledger.free.count == 200


def test_a_push_that_no_worker_can_have_made_changes_nothing():
    ledger = WorkLedger(DATA)
    ledger.open(0)
    ledger.give(0, 10)
    with pytest.raises(ValueError, match="came to 11 in its work, but has 0 to 10"):
        ledger.owns(0, 11)


def test_examples_are_given_up_after_three_pushes_of_the_only_worker_and_no_others():
    ledger = WorkLedger(DATA)
    ledger.open(0)
    for start in (0, 10):  # those that were not finite come last in their epoch
        given = ledger.give(0, 10)
        assert given[1:] == (start, start + 10)
        assert not ledger.settle(0, given.end, start > 0, finite=start > 0)
    while (given := ledger.give(0, 10))[1:] != (0, 10):
        assert given.start < 100 and not ledger.settle(0, given.end, True, True)
    for time in range(2):
        lost = ledger.settle(0, given.end, False, finite=False)
        assert lost == [(0, 10)] * time
        given = ledger.give(0, 10)
    assert ledger.given_up == 10 and ledger.epoch == 1
    for _ in range(10):  # late: free again for ever
        assert given[1:] == (100, 110) and not ledger.settle(0, given.end, False)
        given = ledger.give(0, 10)


def test_examples_are_given_up_once_two_workers_have_proven_sound():
    ledger = WorkLedger(DATA)
    ledger.open(0), ledger.open(1)
    for worker in range(2):  # the other one tries them
        given = ledger.give(worker, 10, others=(0, 1))
        assert given[1:] == (0, 10) and not ledger.settle(worker, given.end, False, False)
    given = ledger.give(0, 10, others=(0, 1))
    assert given[1:] == (10, 20) and not ledger.settle(0, given.end, True, True)
    given = ledger.give(1, 10, others=(0, 1))
    assert given[1:] == (20, 30) and ledger.settle(1, given.end, True, True) == [(0, 10)]


def test_a_sick_workers_pushes_do_not_count_against_examples():
    ledger = WorkLedger(DATA)
    ledger.open(0), ledger.open(1)
    for start in (0, 10, 20):
        given = ledger.give(0, 10, others=(0, 1))
        assert given[1:] == (start, start + 10)
        assert not ledger.doubts(0, ledger.pushed(0, given.end))
        ledger.settle(0, given.end, False, finite=False)
    assert ledger.doubts(0, [(5, 6)]) and not ledger.doubts(1, [(5, 6)])
    ledger.forgive(0), ledger.lost(0)
    given = ledger.give(1, 10)
    assert given[1:] == (0, 10) and not ledger.settle(1, given.end, False, finite=False)
    given = ledger.give(1, 10)
    assert given[1:] == (10, 20) and not ledger.settle(1, given.end, True, True)
    assert not ledger.given_up


def test_strikes_survive_a_restart():
    ledger = WorkLedger(DATA)
    ledger.open(0), ledger.open(1)
    given = ledger.give(0, 10)
    ledger.settle(0, given.end, False, finite=False)
    state = msgspec.convert(msgspec.to_builtins(ledger.state(), str_keys=True), WorkState,
                            str_keys=True)
    ledger = WorkLedger(DATA, state)
    ledger.claim(0, 10, []), ledger.claim(1, 0, [])
    assert ledger.doubts(0, [(0, 10)])
    assert ledger.give(0, 10, others=(0, 1)) == Range(10, 10, 20)
    assert ledger.give(1, 10, others=(0, 1)) == Range(0, 0, 10)
    ledger.settle(1, 10, False, finite=False)
    assert not ledger.settle(0, 20, True, True)
    given = ledger.give(1, 10)
    assert ledger.settle(1, given.end, True, True) == [(0, 10)] and ledger.given_up == 10


def test_the_state_of_an_earlier_release_is_read():
    old = {"data": msgspec.to_builtins(DATA), "undone": [[10, 200]], "sequences": {"0": [10, 10]},
           "strikes": [[[0, 30]], [[0, 30]], [[0, 10]]]}
    ledger = WorkLedger(DATA, msgspec.convert(old, WorkState, str_keys=True))
    assert ledger.given_up == 10 and not ledger.doubts(0, [(10, 30)])


def test_more_epochs_continue_where_the_first_have_ended():
    ledger = WorkLedger(DATA)
    ledger.open(0)
    while given := ledger.give(0, 100):
        ledger.settle(0, given.end, True)
    assert ledger.over and ledger.epoch == 2
    ledger.extend(3)
    assert not ledger.over and ledger.epoch == 2
    assert ledger.give(0, 10) == Range(200, 200, 210)


@pytest.mark.parametrize("state", [
    WorkState(DATA, [(0, 300)], {}), WorkState(DATA, [], {0: (5, 4)}),
    WorkState(DATA, [(5, 10), (10, 12)], {}),
    WorkState(DATA, [(5, 5)], {})])
def test_a_state_that_cannot_be_is_refused(state):
    with pytest.raises(ValueError, match="work|apart|empty"):
        WorkLedger(DATA, state)


def test_positions_are_a_set():
    random, positions, known = Random(0), Positions(), set()
    for _ in range(3000):
        start = random.randrange(60)
        stop = start + random.randint(1, 12)
        span = set(range(start, stop))
        if not span & known and random.random() < 0.7:
            positions.add(start, stop)
            known |= span
        elif random.random() < 0.5:
            positions.remove(start, stop)
            known -= span
        assert {g for part in positions.within(start, stop) for g in range(*part)} == known & span
        assert positions.holds(start, stop) == (span <= known)
        assert positions.count == len(known) == len(
            {g for part in positions.spans for g in range(*part)})
        assert Positions(positions.spans).spans == positions.spans


@pytest.mark.parametrize("most", [3, 40])  # one by one, and by a merge
def test_many_spans_are_added_and_removed_as_one_by_one(most):
    random, positions, known = Random(most), Positions(), set()
    for _ in range(600):
        starts = [random.randrange(300) for _ in range(random.randint(0, most))]
        others = [(start, start + random.randint(1, 9)) for start in starts]  # they may overlap
        spanned = {g for span in others for g in range(*span)}
        without, whole = positions.without(others), positions.with_all(others)
        assert {g for part in positions.spans for g in range(*part)} == known
        for found, right in ((without, known - spanned), (whole, known | spanned)):
            assert {g for part in found.spans for g in range(*part)} == right
            assert found.count == len(right)
            assert Positions(found.spans).spans == found.spans  # apart, and in order
        positions, known = (without, known - spanned) if random.random() < 0.6 else (
            whole, known | spanned)


def steps_of(act):
    """How many functions and generators of Python an act enters: its work, on any machine."""
    entered = 0

    def note(frame, event, arg):
        nonlocal entered
        entered += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(before)
    return entered


def fragments(size, accepted, finite):
    """The work of a server on a push of `size` spans, and on the end of the site that sent it."""
    ledger = WorkLedger(SharedData(8 * size, 4, 2))
    for worker in (0, 1):
        ledger.open(worker)
    worked = 0
    for worker in (0, 1, 0):
        given = ledger.give(worker, 2 * size, across=True, others=(0, 1))
        if given is None:
            continue
        spans = [(g, g + 1) for g in range(given.start, given.stop, 2)]
        worked += steps_of(lambda worker=worker, spans=spans: (
            ledger.owns_all(worker, spans), ledger.doubts(worker, spans),
            ledger.settle_all(worker, spans, accepted, finite)))
    worked += steps_of(lambda: ledger.lost(0))
    ledger.open(0)
    worked += steps_of(lambda: ledger.claim_all(0, ledger.end(0), [
        (g, g + 1) for g in range(1, 2 * size, 2)]))
    return worked + steps_of(lambda: ledger.resent([
        (g, g + 1) for g in range(6 * size, 8 * size, 2)]))


@pytest.mark.parametrize("accepted, finite", [(True, True), (True, None), (False, None),
                                              (False, False)])
def test_the_work_on_a_push_grows_with_its_spans_and_no_faster(accepted, finite):
    assert fragments(1200, accepted, finite) < 2 * 1.5 * fragments(600, accepted, finite)


def test_a_site_holds_no_more_ranges_than_a_message_can_name():
    ledger = WorkLedger(SharedData(1 << 20, 4, 1))
    ledger.open(0)
    for _ in range(2):
        given = ledger.give(0, 2 * SPANS, across=True)
        spans = [(g, g + 1) for g in range(given.start, given.stop, 2)]
        if given.start:
            with pytest.raises(ValueError, match="site 0 leaves it with more than 32,768 ranges"):
                ledger.owns_all(0, spans)
        else:
            assert ledger.owns_all(0, spans)
            ledger.settle_all(0, spans, True)


def test_a_push_beyond_the_search_limit_doubts_the_compared_examples():
    n = 1 << 20
    ledger = WorkLedger(SharedData(n, 4, 9))
    ledger.open(0)
    ledger.open(1)
    first = ledger.give(0, n // 2)
    ledger.settle(0, first.stop, False, finite=False)
    assert ledger.doubts(0, [(first.start, first.start + 8)])
    assert not ledger.doubts(0, [(n - 8, n)])
    assert ledger.doubts(0, [(n, 2 * n)])  # a whole epoch has all examples


def test_the_worker_takes_trains_and_is_answered_in_order():
    work = WorkSequence(30)
    assert work.take(5) is None
    assert work.give(Range(30, 90, 100)) and work.give(Range(40, 0, 4))
    assert [work.take(8) for _ in range(4)] == [
        Range(30, 90, 98), Range(38, 98, 100), Range(40, 0, 4), None]
    with pytest.raises(RuleBroken, match="a step trained 15 examples, and only 14 were taken"):
        work.train(15)
    work.train(8), work.train(4)
    with pytest.raises(RuleBroken, match="a push up to 43 is answered, and 30 to 42 was trained"):
        work.answer(43)
    assert work.spans(30, 42) == ((90, 100), (0, 2)) and work.spans(36, 39) == ((96, 99),)
    work.answer(42)
    assert work.held == [Range(42, 2, 4)] and work.spans(42, 44) == ((2, 4),)
    work.train(2), work.answer(44)
    assert not work.held


# Rules that are checked where they are kept.


@pytest.mark.parametrize(("start", "stop"), [(10, 20), (5, 11), (19, 25), (0, 30), (12, 13),
                                             (3, 3), (4, 2)])
def test_a_position_is_added_once(start, stop):
    positions = Positions([(10, 20)])
    with pytest.raises(RuleBroken, match=f"{start} ... {stop - 1} are added to a set that has"):
        positions.add(start, stop)
    assert positions.spans == [(10, 20)] and positions.count == 10
    positions.add_all([(start, stop)])
    assert positions.count == len({*range(10, 20), *range(start, stop)})


@pytest.mark.parametrize("spoil", [
    lambda ledger: ledger.free.add(0, 10), lambda ledger: ledger.undone.remove(3, 4)],
    ids=["free", "done"])
@pytest.mark.parametrize("accepted", [True, False])
def test_only_held_positions_are_settled(spoil, accepted):
    ledger = WorkLedger(DATA)
    ledger.open(0)
    assert ledger.give(0, 10) == Range(0, 0, 10)
    spoil(ledger)
    with pytest.raises(RuleBroken, match="push of worker 0 settles positions 0 ... 9"):
        ledger.settle(0, 10, accepted)


@pytest.mark.parametrize("state", [
    StruckState([[], [(0, 5)], []]), StruckState([[(0, 5)], [], []], [(4, 6)])],
    ids=["twice and not once", "doubted and never struck"])
def test_strikes_that_no_pushes_have_made_are_no_state(state):
    with pytest.raises(ValueError, match="in none"):
        Strikes({0: state})
