"""The worker's agent: what each rule cuts, awaits and adopts."""

from dataclasses import replace
from unittest.mock import ANY

import pytest

from wbsp.core.agent import Adopt, Agent, Cut, Expect, Leave
from wbsp.core.messages import CutQuery, Fetch, Range
from wbsp.core.rules import RuleBroken
from wbsp.core.work.sequence import WorkSequence
from wbsp.sync import Direct, Push, WorkerRule

BSP = WorkerRule("every_step", "model", "replace")
WBSP = WorkerRule("every_step", "ack", "replace")
PCC = WorkerRule("when_idle", "never", "rebase")
ON_ADOPT = WorkerRule("on_adopt", "never", "replace")
RETURN = WorkerRule("every_step", "model", "return")
DIRECTED = WorkerRule("directed", "ack", "replace")


class AnyFetch:
    """Equals a fetch of any number, carried by a push or not."""

    def __eq__(self, other):
        return isinstance(other, Fetch | Expect)


FETCH = AnyFetch()


def started(rule, seq=0, version=0):
    """An agent that has adopted its first version and computes."""
    agent = Agent(3, rule, seq)
    assert agent.waiting == "model"
    assert agent.granted(version) == [FETCH]
    assert agent.fetched(version) == [Adopt(version, "replace")]
    assert agent.waiting is None and agent.version == version
    return agent


def step(agent, samples=10, seconds=0.5, loss=2.0):
    return agent.step_done(samples, seconds, loss=loss)


def cut(seq, base=0, steps=1, loss=2.0):
    return Cut(Push(3, seq, base, steps, 10 * steps, 0.5 * steps, loss), ANY)


def test_run_steps_are_those_of_the_newest_answer_plus_own_later_ones():
    agent = Agent(3, PCC, run_steps=90)
    agent.granted(0), agent.fetched(0)
    assert step(agent) == [cut(0)] and step(agent) == []
    assert agent.run_steps == 92
    agent.acked(None, run_steps=120)
    assert agent.run_steps == 121, "one step is not cut yet"
    step(agent)
    agent.acked(None)
    assert agent.run_steps == 122, "the answer did not say"
    step(agent)
    agent.acked(None, run_steps=110)
    assert agent.run_steps == 123, "it never falls"


def test_examples_of_all_workers_fall_when_some_must_be_trained_again():
    agent = Agent(3, PCC, run_examples=900)
    agent.granted(0), agent.fetched(0)
    step(agent), step(agent)
    assert agent.run_examples == 920
    agent.acked(None, run_examples=1200)
    assert agent.run_examples == 1210, "one step is not cut yet"
    agent.acked(None)
    assert agent.run_examples == 1210, "the answer did not say"
    agent.acked(None, reason="too stale", run_examples=1180)
    assert agent.run_examples == 1190


def test_progress_that_is_not_finite_is_no_part_of_the_next_version():
    agent = started(PCC)
    step(agent), step(agent)
    assert agent.acked(1, reason="not finite") == [FETCH]
    assert agent.fetched(1) == []
    assert step(agent) == [Adopt(1, "replace"), cut(1, base=0, steps=2)]
    agent.acked(2, reason="stale"), step(agent), agent.fetched(2)
    assert step(agent)[0] == Adopt(2, "rebase"), "what the model rejects is another matter"


@pytest.mark.parametrize("rule", [PCC, ON_ADOPT, replace(ON_ADOPT, adopt="rebase")],
                         ids=["when idle", "on adopt", "on adopt, rebasing"])
def test_a_push_names_examples_dropped_with_a_model_that_was_not_finite(rule):
    work = WorkSequence(100)
    work.give(Range(100, 0, 1000)), work.take(1000)
    agent = Agent(3, rule, work=work)
    agent.granted(0), agent.fetched(0)

    def step(agent):
        work.train(10)
        return agent.step_done(10, 0.5)

    [first] = [one for one in step(agent) if isinstance(one, Cut)]
    assert (first.push.to, first.push.dropped, first.spans) == (110, None, ((0, 10),))
    step(agent)
    agent.acked(1, reason="not finite"), agent.fetched(1)
    cuts = [one for one in step(agent) if isinstance(one, Cut)]
    kept = (130, None, ((10, 30),)) if rule is ON_ADOPT else (130, 130, ())
    assert [(one.push.to, one.push.dropped, one.spans) for one in cuts] == [kept]
    agent.acked(2), agent.fetched(2), step(agent)
    agent.acked(3), agent.fetched(3)
    cuts += [one for one in step(agent) if isinstance(one, Cut)]
    assert [one.push.dropped for one in cuts[1:]] == [None] * len(cuts[1:])
    assert [span for one in cuts[1:] for span in one.spans][:1] == [(40, 50)]


def test_a_push_from_before_the_replacement_brings_no_other():
    agent = started(PCC)
    step(agent)
    agent.acked(1, reason="not finite"), agent.fetched(1)
    assert step(agent)[0] == Adopt(1, "replace")
    agent.acked(2), step(agent), agent.fetched(2)
    assert step(agent)[0] == Adopt(2, "rebase")


def test_wait_model_waits_for_the_acknowledgement_and_then_for_the_model():
    agent = started(BSP)
    assert step(agent) == [cut(0)] and agent.waiting == "ack"
    assert agent.acked(None) == [] and agent.waiting == "model"
    assert agent.granted(1) == [FETCH] and agent.waiting == "model"
    assert agent.fetched(1) == [Adopt(1, "replace")] and agent.waiting is None
    assert step(agent) == [cut(1, base=1)]


def test_a_grant_in_the_acknowledgement_is_fetched_at_once():
    agent = started(BSP)
    step(agent)
    assert agent.acked(1) == [FETCH] and agent.waiting == "model"


def test_a_grant_that_overtakes_the_acknowledgement_is_kept():
    agent = started(BSP)
    step(agent)
    assert agent.granted(1) == []
    assert agent.acked(None) == [FETCH]


def test_ack_waiters_continue_without_a_grant():
    agent = started(WBSP)
    assert step(agent) == [cut(0)] and agent.waiting == "ack"
    assert agent.acked(None) == [] and agent.waiting is None
    assert step(agent) == [cut(1)]


def test_ack_waiters_granted_in_mid_step_pull_after_their_next_push():
    agent = started(WBSP)
    assert agent.granted(1) == [] and agent.waiting is None
    assert step(agent) == [cut(0)]
    assert agent.acked(None) == [FETCH] and agent.waiting == "model"
    assert agent.fetched(2) == [Adopt(2, "replace")]
    assert step(agent) == [cut(1, base=2)]


def test_a_grant_satisfied_by_an_earlier_fetch_causes_no_fetch():
    agent = started(WBSP)
    step(agent)
    assert agent.acked(1) == [FETCH]
    assert agent.granted(2) == []
    assert agent.fetched(2) == [Adopt(2, "replace")]
    step(agent)
    assert agent.acked(None) == [] and agent.waiting is None


def test_an_order_to_hold_waits_for_a_grant():
    agent = started(WBSP)
    step(agent)
    assert agent.acked(None, hold=True) == [] and agent.waiting == "model"
    assert agent.granted(4) == [FETCH]


def test_overlapped_workers_never_wait_and_gather_steps_while_the_sender_is_busy():
    agent = started(PCC)
    assert step(agent) == [cut(0)] and agent.waiting is None
    assert step(agent) == [] == step(agent)
    assert agent.acked(None) == []
    assert step(agent) == [cut(1, steps=3)]


def test_overlapped_workers_hand_over_nothing_from_one_direction_to_the_next():
    agent = started(PCC)
    assert agent.directed(Direct(3, cut=False)) == []
    assert step(agent) == [] and step(agent) == [] and agent.waiting is None
    assert agent.directed(Direct(3, cut=True)) == []
    assert step(agent) == [cut(0, steps=3)]
    agent.acked(None)
    assert step(agent) == [cut(1)]


def test_a_worker_without_progress_fetches_and_finishes():
    agent = started(PCC)
    agent.directed(Direct(3, cut=False))
    step(agent)
    assert agent.granted(1) == [FETCH]
    agent.fetched(1)
    assert step(agent) == [Adopt(1, "rebase")]
    assert agent.finish() == [cut(0, steps=2)]


def test_overlapped_workers_adopt_at_a_steps_end_and_keep_their_progress():
    agent = started(PCC)
    step(agent)
    assert agent.acked(1) == [FETCH]
    assert step(agent) == []  # the fetch is under way
    assert agent.fetched(1) == []
    assert step(agent) == [Adopt(1, "rebase"), cut(1, base=0, steps=2)]
    assert agent.acked(None) == []
    assert step(agent) == [cut(2, base=1)]


def test_overlapped_workers_fetch_a_newer_version_after_adopting():
    agent = started(PCC)
    step(agent)
    agent.acked(1)
    agent.granted(2)
    agent.fetched(1)
    assert step(agent) == [Adopt(1, "rebase"), FETCH]
    agent.granted(3)
    assert agent.fetched(2) == []
    assert step(agent) == [Adopt(2, "rebase"), cut(1, base=0, steps=2)], "not twice without a push"
    assert agent.acked(None) == [FETCH]


def test_overlapped_workers_do_not_fetch_a_version_that_they_have():
    agent = started(PCC)
    step(agent)
    assert agent.acked(1) == [FETCH]
    assert agent.fetched(2) == []  # the newest, made after that grant
    assert agent.granted(2) == []
    assert step(agent) == [Adopt(2, "rebase"), cut(1)]
    assert agent.granted(2) == [] == agent.acked(None)
    assert step(agent) == [cut(2, base=2)]


def test_on_adopt_cuts_first_and_then_at_each_received_model():
    agent = started(ON_ADOPT)
    assert step(agent) == [cut(0), Adopt(0, "replace")], "the first step counts once: W_0 again"
    assert agent.acked(None) == []
    assert step(agent) == []
    assert agent.granted(1) == [FETCH]
    assert agent.fetched(1) == []
    assert step(agent) == [cut(1, steps=2), Adopt(1, "replace")]
    assert agent.version == 1
    assert agent.acked(None) == []
    assert step(agent) == []


def test_on_adopt_with_rebase_keeps_its_pushed_progress():
    agent = started(WorkerRule("on_adopt", "never", "rebase"))
    assert step(agent) == [cut(0)]
    agent.acked(None)
    agent.granted(1)
    agent.fetched(1)
    assert step(agent) == [Adopt(1, "rebase"), cut(1, base=0)]
    agent.acked(2)
    agent.fetched(2)
    assert step(agent) == [Adopt(2, "rebase"), cut(2, base=1)]


def test_on_adopt_a_returning_worker_cuts_its_first_step_too():
    assert step(started(ON_ADOPT, seq=5, version=7)) == [cut(5, base=7), Adopt(7, "replace")]


EVERY = WorkerRule("every_step", "model", "replace", every=3)


def test_a_push_of_several_steps_carries_their_mean_loss():
    agent = started(EVERY)
    assert step(agent, loss=1.0) == [] == step(agent, loss=2.0) and agent.waiting is None
    assert step(agent, loss=6.0) == [cut(0, steps=3, loss=3.0)]


def test_one_unknown_loss_makes_the_pushs_unknown_and_no_other():
    agent = started(WorkerRule("every_step", "ack", "replace", every=2))
    step(agent, loss=None)
    assert step(agent) == [cut(0, steps=2, loss=None)]
    agent.acked(None)
    step(agent)
    assert step(agent) == [cut(1, steps=2)]


def test_a_refresh_cuts_a_push_of_several_steps_short():
    agent = started(EVERY)
    step(agent)
    assert agent.directed(Direct(3, cut=True)) == []
    assert step(agent) == [cut(0, steps=2)]


def test_a_refresh_for_an_earlier_version_is_void():
    agent = started(EVERY)
    step(agent), step(agent), step(agent)
    agent.directed(Direct(3, cut=True))
    agent.acked(1)
    agent.fetched(1)
    assert step(agent) == []


ASKED = WorkerRule("on_query", "model", "replace")


def test_a_query_waits_for_the_decision():
    agent = started(ASKED)
    assert step(agent) == [CutQuery(1, 1, 0.5)] and agent.waiting == "decision"
    assert agent.decided(1, cut=False) == [] and agent.waiting is None
    assert step(agent) == [CutQuery(2, 2, 0.5)]
    assert agent.decided(1, cut=True) == [], "of an earlier query"
    assert agent.waiting == "decision"
    assert agent.decided(2, cut=True) == [cut(0, steps=2)] and agent.waiting == "ack"
    assert agent.decided(2, cut=True) == [], "a repeated decision"
    assert agent.acked(1) == [FETCH]


def test_a_stop_ends_the_wait_for_a_decision():
    agent = started(ASKED)
    step(agent)
    agent.stop("enough")
    assert agent.waiting is None
    assert agent.decided(1, cut=False) == []
    assert agent.finish() == [cut(0)]


def test_directed_cuts_when_directed():
    agent = started(DIRECTED)
    assert step(agent) == []
    assert agent.directed(Direct(3, cut=True)) == []
    assert step(agent) == [cut(0, steps=2)] and agent.waiting == "ack"
    agent.acked(None)
    assert step(agent) == []


@pytest.mark.parametrize("rule", [BSP, WBSP])
def test_stop_in_mid_step_pushes_the_step_and_leaves(rule):
    agent = started(rule)
    assert agent.stop("enough") == [] and agent.stopped == "enough"
    assert step(agent) == [cut(0)]
    assert agent.acked(1) == [] and agent.waiting is None  # no pull before leaving
    assert agent.finish() == [Leave()] and agent.finished


def test_stop_releases_a_worker_that_waits_for_a_model():
    agent = started(BSP)
    step(agent)
    agent.acked(None)
    agent.stop("enough")
    assert agent.waiting is None
    assert agent.finish() == [Leave()]


def test_stop_during_a_fetch_lets_it_end():
    agent = started(BSP)
    step(agent)
    agent.acked(1)
    assert agent.stop("enough") == [] and agent.waiting == "model"
    assert agent.fetched(1) == [Adopt(1, "replace")] and agent.waiting is None
    assert agent.finish() == [Leave()]


def test_finish_waits_for_the_acknowledgement_and_then_pushes_the_uncut_progress():
    agent = started(PCC)
    step(agent)
    step(agent)
    assert agent.finish() == [] and agent.waiting == "ack"
    assert agent.acked(1) == [cut(1)] and not agent.finished
    assert agent.acked(None) == [Leave()] and agent.finished and agent.waiting is None


def test_finish_waits_for_a_fetch_under_way():
    agent = started(PCC)
    step(agent)
    agent.acked(1)
    assert agent.fetching and agent.finish() == []
    assert agent.fetched(1) == [Leave()]


def test_a_worker_that_never_started_may_leave():
    agent = Agent(3, BSP)
    agent.stop("enough")
    assert agent.waiting is None and agent.finish() == [Leave()]


@pytest.mark.parametrize("rule", [BSP, PCC])
def test_the_final_version_replaces_the_live_model(rule):
    agent = started(rule)
    agent.finish()
    assert agent.final(9) == [FETCH] and agent.waiting == "model"
    assert agent.fetched(9) == [Adopt(9, "replace")] and agent.version == 9


@pytest.mark.parametrize("rule", [BSP, WBSP, PCC])
def test_a_push_carries_a_fetch_that_a_grant_in_the_acknowledgement_starts(rule):
    agent = started(rule)
    [push] = step(agent)
    assert push.fetch > 0
    assert agent.acked(1) == [Expect(Fetch(push.fetch))]
    assert agent.fetching == push.fetch
    agent.fetched(1)
    assert not agent.fetching


@pytest.mark.parametrize("early", [False, True])
def test_a_grant_followed_by_its_version_needs_no_request(early):
    """early: it comes in before the acknowledgement, which the server has sent before it."""
    agent = started(BSP)
    [push] = step(agent)
    if early:
        assert agent.granted(1, push.fetch, True) == []
        assert agent.acked(None) == [Expect(Fetch(push.fetch))]
    else:
        assert agent.acked(None) == []
        assert agent.granted(1, push.fetch, True) == [Expect(Fetch(push.fetch))]
    assert agent.granted(1, push.fetch, False) == [], "repeated over a new connection"
    assert agent.fetched(1) == [Adopt(1, "replace")]
    assert agent.granted(1, push.fetch, False) == [] and agent.waiting is None


def test_a_grant_without_its_version_needs_a_fetch():
    agent = started(BSP)
    [push] = step(agent)
    assert agent.acked(None) == []
    [fetch] = agent.granted(1, push.fetch)
    assert isinstance(fetch, Fetch) and fetch.request > push.fetch


def test_a_version_may_take_the_place_of_steps_that_no_push_will_hold():
    agent = started(WorkerRule("when_idle", "never", "replace"))
    assert step(agent) == [cut(0)]
    assert agent.acked(1) == [FETCH]
    assert step(agent) == [], "the network is busy"
    agent.fetched(1)
    assert step(agent) == [Adopt(1, "replace")], "both steps are lost: there is nothing to cut"
    assert step(agent) == [cut(1, base=1)]


def test_a_worker_pushes_though_a_newer_version_is_granted_in_each_of_its_steps():
    agent, pushed = started(replace(PCC, every=2)), []
    for version in range(2, 14, 2):  # two are made while a step lasts
        granted = agent.granted(version)
        if agent.fetching:
            assert agent.fetched(version) == []
            agent.granted(version + 1)
        commands = step(agent)
        pushed += [one.push for one in commands if isinstance(one, Cut)]
        assert granted == [FETCH] or FETCH in commands or pushed
        if isinstance(commands[-1], Cut):
            assert agent.acked(None) == [FETCH], "the version that it still waits for"
            agent.fetched(version + 1)
    assert [push.steps for push in pushed] == [2, 2, 2]


def test_a_version_that_arrived_late_is_not_awaited_as_the_last_one():
    agent = started(BSP)
    step(agent)
    agent.stop("enough")
    assert agent.acked(1) == []  # the version that follows is not wanted any more
    assert agent.finish() == [Leave()]
    [fetch] = agent.final(1)
    assert isinstance(fetch, Fetch)


@pytest.mark.parametrize("by", ["answer", "grant"])
def test_a_worker_granted_its_own_version_returns_to_it(by):
    agent = started(RETURN, version=4)
    [push] = step(agent)
    if by == "answer":
        commands = agent.acked(4)
    else:
        assert agent.acked(None) == [] and agent.waiting == "model"
        commands = agent.granted(4, push.fetch)
    assert commands == [Adopt(4, "replace")]
    assert agent.waiting is None and agent.idle
    assert agent.granted(4, push.fetch) == [], "repeated over a new connection"
    [push] = step(agent)
    assert push == cut(1, base=4)
    assert agent.acked(5) == [Expect(Fetch(push.fetch))]
    assert agent.fetched(5) == [Adopt(5, "replace")]


def test_under_replace_the_version_that_a_worker_has_is_fetched_again():
    agent = started(BSP, version=4)
    [push] = step(agent)
    assert agent.acked(4) == [Expect(Fetch(push.fetch))]
    assert agent.fetched(4) == [Adopt(4, "replace")]
    agent.granted(4)
    step(agent)
    assert agent.acked(None) == [] and agent.waiting == "model", "that grant was an old one"


def test_the_last_push_carries_no_fetch():
    agent = started(PCC)
    step(agent)
    step(agent)  # while the first push is under way
    assert agent.finish() == []
    assert agent.acked(None) == [cut(1)._replace(fetch=0)]
    assert agent.acked(7) == [Leave()]


# A server that was restarted, whose model begins anew.


def test_a_worker_that_waits_for_a_version_takes_it():
    agent = started(BSP, version=7)
    step(agent)
    agent.acked(None)
    agent.reattached(True)
    assert agent.granted(9) == [FETCH]


def test_a_worker_that_never_waits_fetches_what_the_new_model_grants():
    agent = started(PCC, version=7)
    agent.directed(Direct(3, cut=True))
    assert agent.reattached(True) == [] and agent.granted(9) == [FETCH]


def test_a_first_step_waits_for_a_version_in_transit():
    agent = started(ON_ADOPT)
    agent.reattached(True)
    assert agent.granted(1) == [FETCH]
    assert step(agent) == [], "the network carries one request at a time"
    assert agent.fetched(1) == []
    assert step(agent) == [cut(0, steps=2), Adopt(1, "replace")]


@pytest.mark.parametrize("adopt", ["replace", "rebase"])
def test_a_starved_worker_that_gets_work_pushes_once_at_a_time(adopt):
    agent = started(WorkerRule("on_adopt", "never", adopt))
    step(agent)
    agent.acked(1)
    step(agent)
    assert agent.starved() == [], "version 1 is on its way"
    assert [type(one) for one in agent.fetched(1)] == [Cut]
    agent.fed()
    assert step(agent) == [], "push 1 is not answered yet"
    agent.acked(None)
    assert {type(one) for one in step(agent)} == {Adopt, Cut}


def test_an_agent_refuses_to_cut_before_the_last_push_is_answered():
    agent = started(BSP)
    step(agent)
    agent.waiting = None
    with pytest.raises(RuleBroken, match="worker 3 cuts push 1 before push 0 is answered"):
        step(agent)


def test_an_agent_refuses_a_step_while_it_waits():
    agent = started(BSP)
    step(agent)
    with pytest.raises(RuleBroken, match="worker 3 makes a step while it waits for its ack"):
        step(agent)
