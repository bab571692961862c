"""The work of sites: each example exactly once an epoch in what the server above has accepted,
whichever worker, site or server dies, and when.

`World` has a server above, sites and their workers, and what each knows. A site's progress is the
multiset of the positions that it is made of.
"""

from collections import Counter
from copy import deepcopy
from random import Random

import msgspec
import numpy as np
import pytest
from random_events import play

from wbsp.core.agent import Cut
from wbsp.core.engine import Engine
from wbsp.core.messages import Range, SharedData, Stop, Withdrawn, Work, WorkPlace
from wbsp.core.rules import RuleBroken
from wbsp.core.site.work import SiteLedger, SiteWork, SiteWorkState
from wbsp.core.site.worker import SiteWorker
from wbsp.core.store import Store
from wbsp.core.work.positions import Positions
from wbsp.core.work.sequence import WorkSequence
from wbsp.core.work_ledger import WorkLedger, WorkState
from wbsp.sync import create
from wbsp.sync.base import Push
from wbsp.testing.once import assert_each, in_spans

DATA = SharedData(n=100, batch=10, epochs=2)


def plain(state):
    return msgspec.to_builtins(state, str_keys=True)


class Site:
    """A process of a site.

    uncut, sent: positions of which its progress, and its newest cut, are made
    cut: seq and positions of the newest cut, until it is answered
    kept: (mark, seq, spans) of answered cuts that are not known to be durable above
    """

    def __init__(self, data, saved=None):
        state, beside, self.uncut, self.sent, self.seq, self.cut = saved or (
            None, None, Counter(), Counter(), 0, None)
        self.ledger = SiteLedger(
            data, state and msgspec.convert(state, WorkState, str_keys=True),
            msgspec.convert(beside, SiteWorkState) if beside else SiteWorkState())
        self.end = 0
        self.saves = False  # the newest cut is in a checkpoint
        self.left = saved is not None  # the newest cut may have arrived above
        self.attached, self.workers, self.kept = False, {}, []

    def save(self):
        self.saves = True
        return deepcopy((plain(self.ledger.state()), plain(SiteWorkState(
            0, list(self.ledger.uncut.spans), list(self.ledger.sent.spans))), self.uncut, self.sent,
            self.seq, self.cut))

    def answer(self, accepted, mark, durable):
        seq, spans = self.cut
        self.ledger.answered(accepted)
        self.kept = [one for one in [*self.kept, (mark, seq, spans if accepted else ())]
                     if one[0] >= durable]
        self.cut, self.sent = None, Counter()


class World:
    def __init__(self, seed):
        self.random = random = Random(seed)
        self.n, self.epochs = random.randint(1, 150), random.randint(1, 3)
        self.data = SharedData(self.n, 1, self.epochs)
        self.top = WorkLedger(self.data)
        self.model, self.seqs, self.answers = Counter(), {}, {}
        self.mark = self.durable = 0
        self.sites = dict.fromkeys(range(random.randint(1, 3)))
        self.checkpoints = dict.fromkeys(self.sites)  # of each site
        self.awaited, self.count, self.away = set(), Counter(), (-1, 0)
        self.saved = self.copy()

    def copy(self):
        there = {index for index, site in self.sites.items() if site}
        return deepcopy((plain(self.top.state()), self.model, self.seqs, self.answers,
                         self.mark + 1, there))

    def checkpoint(self):
        self.saved = self.copy()
        self.mark += 1
        self.durable = self.mark

    def crash(self):
        state, self.model, self.seqs, self.answers, self.mark, self.awaited = deepcopy(self.saved)
        state = msgspec.convert(state, WorkState, str_keys=True)
        self.top, self.durable = WorkLedger(state.data, state), self.mark
        for site in self.sites.values():
            if site:
                site.attached = False
        self.count["crashes"] += 1
        if self.awaited and self.random.random() < 0.5:  # it comes too late
            late = self.random.choice([*self.awaited])
            self.top.lost(late)
            self.awaited.discard(late)
            self.away = late, self.random.randint(0, 600)

    def join(self, index):
        """A new process, or one that resumes from its checkpoint."""
        saved = deepcopy(self.checkpoints[index])
        me = self.sites[index] = Site(self.data, saved)
        place = WorkPlace(self.data, self.top.open(index), 0)
        due = self.seqs.get(index, 0)
        own = []
        if saved is not None:
            claimed, sent = me.ledger.claimed(True)
            spans = Positions(claimed)
            if due < me.seq:
                spans = spans.with_all(sent)
            own = self.top.claim_all(index, place.at, spans.spans)
        if me.cut is not None:
            if me.cut[0] < due:
                me.ledger.answered(True)
            else:
                me.ledger.take_back_cut()
                me.uncut += me.sent
            me.cut, me.sent = None, Counter()
        me.seq = due
        if saved is not None:
            me.ledger.keep(own)
        me.end, me.attached = place.at, True
        self.awaited.discard(index)

    def attach(self, index, me):
        """The line is back, perhaps to a server that was restarted."""
        due, answered = self.seqs.get(index, 0), me.seq - (me.cut is not None)
        if due < answered:
            spans = [span for _, seq, spans in me.kept if seq >= due for span in spans]
            valid = self.top.resent(sorted(spans))
            assert valid != any(self.model[g] for g in in_spans(spans))
            if valid:
                self.model += in_spans(spans)
            self.count["void"] += not valid
            me.kept = [(self.mark, seq, spans if valid else ()) for _, seq, spans in me.kept
                       if seq >= due]
            due = answered
        self.seqs[index] = max(due, answered)
        claimed, sent = me.ledger.claimed(me.left)
        spans = Positions(claimed)
        if self.seqs[index] < me.seq - (me.cut is not None and not me.left):
            spans = spans.with_all(sent)
        own = self.top.claim_all(index, me.end, spans.spans)
        self.awaited.discard(index)
        me.ledger.keep(own)
        me.attached = True
        if me.cut is not None and me.saves and self.seqs[index] > me.cut[0]:
            _, accepted, mark = self.answers[index]
            me.answer(accepted, mark, self.durable)

    def push(self, index, me):
        seq, spans = me.cut
        me.left = True
        if seq == self.seqs.get(index, 0):
            mine = Positions().with_all((r.start, r.stop) for r in self.top._holders[index].held
                                         if r.own)
            owns = self.top.owns_all(index, spans)
            assert owns == (not in_spans(spans) - in_spans(mine.spans))
            accepted = owns and self.random.random() < 0.85
            self.count["accepted" if accepted else "rejected" if owns else "not its own"] += 1
            if accepted:
                self.model += me.sent
            self.top.settle_all(index, spans, accepted)
            self.seqs[index], self.answers[index] = seq + 1, (seq, accepted, self.mark)
        if self.random.random() < 0.1:  # the answer is lost, and with it the connection
            me.attached = False
            return
        answered, accepted, mark = self.answers[index]
        assert answered == seq
        me.answer(accepted, mark, self.durable)

    def ask(self, index, me):
        if not self.top.gives_from(index, me.end):
            given = self.top.known(index, me.end)
            assert given is not None
        elif self.awaited or (given := self.top.give(
                index, self.random.randint(1, 40), across=self.random.random() < 0.5)) is None:
            return
        assert given.at == me.end
        if self.random.random() < 0.1:
            return  # it is lost, and asked for again
        me.ledger.grant(given.start, given.stop)
        me.end = given.end

    def inside(self, me):
        """Something happens among a site's workers."""
        random, ledger = self.random, me.ledger
        index, chance = random.randrange(2), random.random()
        work = me.workers.get(index)
        if work is None or (chance < 0.03 and self.faults):  # it dies, and is restarted
            me.workers[index] = WorkSequence(ledger.open(index))
        elif chance < 0.35:
            if ledger.gives_from(index, work.end) and (
                    given := ledger.give(index, random.randint(1, 20))):
                work.give(given)
        elif chance < 0.7:
            if taken := work.take(random.randint(1, 10)):
                work.train(taken.stop - taken.start)
        elif work.trained > work.answered:
            to = work.trained
            owns = ledger.owns(index, to)
            accepted = owns and random.random() < 0.9
            ledger.settle(index, to, accepted)
            spans = work.spans(work.answered, to)
            work.answer(to)
            if accepted:
                me.uncut += in_spans(spans)

    def cut(self, index, me):
        if me.cut is None and me.ledger.uncut.spans:
            spans = me.ledger.cut()
            assert in_spans(spans) == me.uncut, "a cut is of whole pushes"
            me.cut, me.sent, me.uncut = (me.seq, spans), me.uncut, Counter()
            me.seq += 1
            me.saves = me.left = False

    def step(self):
        random = self.random
        index = random.choice([*self.sites])
        me, chance = self.sites[index], random.random()
        if self.away[0] == index and self.away[1] > 0:
            self.away = index, self.away[1] - 1
            return
        if me is None:
            if chance < 0.2:
                self.join(index)
        elif chance < 0.55:
            self.inside(me)
        elif chance < 0.6:
            self.cut(index, me)
        elif chance < 0.65:
            self.checkpoints[index] = me.save()
        elif not me.attached:
            if chance < 0.67:
                self.attach(index, me)
            elif chance < 0.72 and self.faults:
                self.top.lost(index)  # it is given up
                self.awaited.discard(index)
        elif chance < 0.73:
            self.ask(index, me)
        elif chance < 0.85:
            if me.cut is not None and me.saves:
                self.push(index, me)
        elif chance < 0.858 and self.faults:
            self.sites[index] = None  # its server dies
            self.top.lost(index)
            self.awaited.discard(index)
            self.count["deaths"] += 1
        elif chance < 0.875 and self.faults:
            me.attached = False  # the line breaks; perhaps the server above notices
            if random.random() < 0.5:
                self.top.lost(index)
        elif chance < 0.88:
            me.ledger.dropped()
            me.uncut = Counter()
        elif chance < 0.92:
            self.checkpoint()
        elif chance < 0.925 and self.faults:
            self.crash()
        elif self.awaited and random.random() < 0.3:
            late = random.choice([*self.awaited])
            self.top.lost(late)
            self.awaited.discard(late)
            if self.sites[late]:
                self.sites[late].attached = False

    def check(self):
        assert self.model == Counter(set(range(self.n * self.epochs)) - set(
            in_spans(self.top.undone.spans)))
        for site in filter(None, self.sites.values()):
            ledger = site.ledger
            assert in_spans(ledger.uncut.spans) == site.uncut
            assert in_spans(ledger.sent.spans) == site.sent
            apart = in_spans([*ledger.undone.spans, *ledger.uncut.spans, *ledger.sent.spans])
            assert not apart or max(apart.values()) == 1
            held = [(r.start, r.stop) for holder in ledger._holders.values() for r in holder.held
                    if r.own]
            assert in_spans([*ledger.free.spans, *held]) == in_spans(ledger.undone.spans)

    def run(self):
        play(self, lambda: self.top, 200_000, 4000)
        assert_each(self.model, self.n * self.epochs)
        return self.count


def test_each_example_is_once_an_epoch_in_the_model_above():
    total = Counter()
    for seed in range(20):
        total += World(seed).run()
    assert all(total[kind] for kind in ("accepted", "rejected", "not its own", "deaths", "crashes"))


@pytest.fixture
def ledger():
    """A site that was given 0 ... 39, of which worker 0 holds 0 ... 9."""
    ledger = SiteLedger(DATA, None, SiteWorkState())
    ledger.grant(0, 40)
    ledger.open(0)
    assert ledger.give(0, 10) == Range(0, 0, 10)
    return ledger


def test_a_cut_names_the_positions_accepted_since_the_last_cut(ledger):
    ledger.open(1)
    assert ledger.give(1, 10) == Range(0, 10, 20)
    ledger.settle(1, 10, True)
    assert ledger.cut() == ((10, 20),)
    ledger.settle(0, 10, True)
    ledger.answered(True)
    assert ledger.cut() == ((0, 10),)


def test_no_cut_is_taken_while_the_last_one_is_unanswered(ledger):
    ledger.settle(0, 10, True)
    ledger.cut()
    with pytest.raises(RuleBroken, match="while 10 positions of its cut before are not answered"):
        ledger.cut()


def test_positions_rejected_above_may_be_given_again(ledger):
    ledger.settle(0, 10, True)
    ledger.cut()
    ledger.grant(0, 10)  # before the answer has come
    assert ledger.undone.spans == [(10, 40)]
    ledger.answered(False)
    assert ledger.undone.spans == [(0, 40)] and ledger.give(0, 10) == Range(10, 0, 10)


def test_given_up_positions_are_in_the_next_cut(ledger):
    ledger.keep([(0, 10)])
    for _ in range(3):
        ledger.settle(0, ledger.end(0), False, finite=False)
        ledger.give(0, 10)
    assert ledger.given_up == 10 and ledger.cut() == ((0, 10),)


def test_positions_given_to_others_are_not_owned(ledger):
    ledger.keep([(5, 8), (50, 60)])
    assert ledger.undone.spans == [(5, 8), (50, 60)] and ledger.free.spans == [(50, 60)]
    assert not ledger.owns(0, 10)
    ledger.settle(0, 10, False)
    assert ledger.free.spans == [(5, 8), (50, 60)]


def work(rule="pcc", paused=lambda: False):
    work = SiteWork(DATA, create(rule).rule, paused)
    work.begin(WorkPlace(DATA, 0, 0), False, 2)
    work.open(0, DATA, 0, None)
    work.granted(0)
    return work


def test_a_site_asks_ahead_where_the_server_above_lets_no_worker_wait():
    site, above = work(), create("pcc").rule
    ask = site.question(above, False, 2, 5, 0.0)
    assert (ask.have, ask.pushes, ask.least) == (0, 5, 20)
    assert site.question(above, False, 2, 5, 1.0) is None
    assert site.question(above, False, 2, 5, 9.0, again=5.0) == ask
    site.heard(Work(0, 0, 40, 0), 9.5)
    assert site.question(above, False, 2, 5, 10.0) is None
    site.ask(0, 0, False, 10.0), site.ask(0, 10, False, 10.0)
    assert site.question(above, False, 2, 5, 10.0).have == 40


def test_a_site_requests_only_its_workers_need_where_other_sites_may_wait():
    site, above = work(), create("bsp").rule
    assert site.question(above, False, 2, 5, 0.0) is None
    assert site.ask(0, 0, False, 0.0) == []
    assert site.question(above, False, 2, 5, 0.0).least == 20
    site.heard(Work(0, 0, 0, 0), 0.0)
    assert site.dry and site.feed(0.0)[0].message == Work(0, 0, 0, 0)
    site.heard(Work(0, 0, 20, 0), 0.0)
    assert not site.dry and site.feed(0.0)[0].message == Work(0, 0, 10, 0)
    site.heard(Withdrawn(20), 1.0), site.heard(Work(20, 30, 40, 0), 1.0)
    site.heard(Withdrawn(20), 2.0)  # repeated
    assert site.ledger.undone.spans == [(30, 40)]


def test_a_range_that_was_withdrawn_before_it_arrives_belongs_to_others():
    site = work()
    site.heard(Withdrawn(20), 1.0), site.heard(Work(0, 0, 20, 0), 2.0)
    assert not site.ledger.undone.spans
    assert site.question(create("bsp").rule, True, 2, 5, 3.0).have == 20
    site.heard(Work(20, 30, 40, 0), 4.0)
    assert site.ledger.undone.spans == [(30, 40)]


def test_a_site_that_waits_gives_no_work():
    waits = [True]
    site = work(paused=lambda: waits[0])
    site.heard(Work(0, 0, 40, 1), 0.0)
    assert site.ask(0, 0, False, 0.0) == [] and site.ledger.epoch == 1
    waits[0] = False
    assert len(site.feed(0.0)) == 1


def test_the_server_above_ends_a_sites_run():
    site = work()
    assert site.ended is None and not site.ledger.over
    site.heard(Stop("enough", early=True), 0.0)
    assert not site.ledger.over
    site.heard(Stop("all is trained"), 0.0)
    assert site.ledger.over and site.ledger.epoch == 2


def test_a_cut_has_the_examples_of_its_positions_alone():
    """The site has counted those of a push that it rejected, and that was trained again, twice."""
    work = SiteWork(DATA, create("asp").rule, lambda: False)
    ledger = work.ledger
    ledger.grant(0, 16)
    ledger.open(0)
    for accepted in (False, True, True):
        ledger.give(0, 8)
        ledger.settle(0, ledger.end(0), accepted)

    engine = Engine(create("asp"), Store(np.zeros(1, np.float32), site={}), 1)
    engine.share_data(work)
    site = SiteWorker()
    site.begin(engine)
    cut = site._take(Cut(Push(0, 0, 0, 3, 24, 1.0), 0), 1.0)
    assert cut.push.spans == ((0, 16),) and cut.push.samples == 16 and cut.push.steps == 3
