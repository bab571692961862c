"""Who may serve: not two at a time, whatever the workers see."""

import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import until

from wbsp import timeouts
from wbsp.core.rules import RuleBroken
from wbsp.process.host import HOST
from wbsp.ps.replication.election import Candidate, Inquiry, Standing, Votes
from wbsp.ps.series import SERVER_STEP, STANDBY_STEP
from wbsp.sync import create
from wbsp.sync.base import Push
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.liveness import Beats
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import answer
from wbsp.wire.session import Session
from wbsp.wire.sockets import ServerSocket


def member(worker, epoch, session=None):
    """A worker that belongs to the server with that epoch."""
    session = session or Session(os.urandom)
    session.hello = m.Hello(m.PROTOCOL, worker, {})
    session.join = m.Join([TensorSpec("x", (1,))])
    session.welcomed(m.Welcome(m.RunSettings("ab"), 0.0, create("bsp").rule))
    session.admitted(m.Joined(0, 0, False, 0.0, epoch), 0.0)
    return session


@given(workers=st.integers(1, 9), epoch=st.integers(1, 5), data=st.data())
def test_a_server_and_its_standby_never_both_win_an_election(workers, epoch, data):
    members = [member(worker, epoch) for worker in range(workers)]
    held = data.draw(st.sets(st.integers(0, workers - 1), min_size=1), "workers that it holds")
    newer = data.draw(st.sets(st.integers(0, workers - 1), min_size=1), "workers since then")
    server = Votes(epoch, SERVER_STEP, [held, newer])
    standby = Votes(epoch, STANDBY_STEP, [held])
    for _ in range(data.draw(st.integers(0, 4 * workers))):
        worker = data.draw(st.integers(0, workers - 1))
        votes = data.draw(st.sampled_from([server, standby]))
        act = data.draw(st.sampled_from(["ask", "ask", "release", "goes back"]))
        if act == "goes back":
            members[worker].reattached(m.Reattached(epoch, False, 0, 0, None))
        elif act == "ask":
            promise = members[worker].choose(m.Elect(votes.epoch, votes.since), 0.0)
            if promise and promise.epoch == votes.epoch:  # else it has voted for the other one
                votes.promised.add(worker)
        elif not votes.won:  # who has won does not give back
            votes.promised.discard(worker)
            members[worker].choose(m.NotServing("", votes.epoch), 0.0)
        assert not (server.won and standby.won)


@given(workers=st.integers(1, 9), data=st.data())
def test_a_worker_unknown_to_the_snapshot_has_no_vote(workers, data):
    """A copy from before all had joined: its standby knows too few for a majority, or enough."""
    members = data.draw(st.sets(st.integers(0, workers - 1)), "that the copy names")
    voters = [(worker, "process" if worker in members else "") for worker in range(workers)]
    server = Votes(1, SERVER_STEP, [voters], lambda voter: voter[1] == "")
    standby = Votes(1, STANDBY_STEP, [voters])
    for worker in members:  # each promises itself to one of them
        votes = data.draw(st.sampled_from([server, standby]))
        votes.promised.add((worker, "process"))
    assert server.won != standby.won


@pytest.mark.parametrize(("workers", "server", "standby"), [
    (1, 1, 1), (2, 1, 2), (3, 2, 2), (4, 2, 3), (8, 4, 5)])
def test_an_election_needs_this_many_votes(workers, server, standby):
    for step, needed in ((SERVER_STEP, server), (STANDBY_STEP, standby)):
        votes = Votes(1, step, [range(workers)])
        votes.promised.update(range(needed - 1))
        assert not votes.won
        votes.promised.add(needed - 1)
        assert votes.won


@pytest.mark.parametrize(("voted", "declined", "returned", "unnamed", "enough"), [
    ([0, 1], [], [], 0, True), ([0], [1, 2], [], 0, False), ([0], [1, 2, 3], [], 0, True),
    ([], [0, 1, 2, 3], [], 0, True), ([], [0, 1, 2], [3], 0, True), ([], [0, 1, 2], [], 1, True),
    ([], [0, 1, 2], [], 0, False), ([0], [1], [2], 0, True)])
def test_a_voter_of_the_other_server_counts_only_if_all_are_present(voted, declined, returned,
                                                                    unnamed, enough):
    """The other server may have ended the run without a worker that is absent."""
    votes = Votes(1, SERVER_STEP, [range(4)])
    votes.promised.update(voted)
    assert votes.here(lambda voter: voter in returned, unnamed, declined) == enough


def test_without_workers_the_server_stays_and_the_standby_waits():
    assert Votes(1, SERVER_STEP, [()]).won and not Votes(1, STANDBY_STEP, [()]).won


@pytest.mark.parametrize("step", [SERVER_STEP, STANDBY_STEP])
def test_a_process_that_waits_to_serve_is_not_elected_without_workers(step):
    """All have finished: the other one may have taken over without a promise of theirs."""
    candidate = Candidate(Standing("ab", 1, frozenset(), step), socket=None)
    assert not candidate.won and "names no worker" in candidate.missing


def test_more_than_half_of_the_workers_elect_a_restarted_server():
    """The other half may have ended the run, with a standby that had a proof."""
    voters = frozenset({(0, "process"), (1, "process")})
    candidate = Candidate(Standing("ab", 1, voters, SERVER_STEP), socket=None)
    assert not candidate.won and "0 of 2 workers" in candidate.missing
    candidate.votes.promised.add((1, "process"))
    assert not candidate.won and "more than half" in candidate.missing
    candidate.votes.promised.add((0, "process"))
    assert candidate.won


def test_a_worker_votes_once_an_epoch():
    worker = member(0, 4)
    assert worker.choose(m.Elect(5, since=3), 0.0) is None, "it belongs to a later server"
    assert worker.choose(m.Elect(5, since=4), 0.0) == m.Elected(5)
    assert worker.choose(m.Elect(5, since=4), 0.0) == m.Elected(5), "the answer may have been lost"
    assert worker.choose(m.Elect(6, since=4), 0.0) == m.Elected(5), "it has voted"
    worker.choose(m.NotServing("", 6), 0.0)  # of a promise that it has not made
    assert worker.choose(m.Elect(6, since=4), 0.0) == m.Elected(5)
    worker.choose(m.NotServing("", 5), 0.0)
    assert worker.choose(m.Elect(6, since=4), 0.0) == m.Elected(6)
    worker.choose(m.Leading(6, bytes(32)), 0.0)
    assert worker.choose(m.Elect(7, since=6), 0.0) == m.Elected(7)


def test_a_vote_holds_when_a_worker_reattaches():
    """The server that has it does not know that the worker has gone."""
    worker = member(0, 1)
    assert worker.choose(m.Elect(2, since=1), 0.0) == m.Elected(2)
    worker.reattached(m.Reattached(1, False, 0, 0, None))
    assert worker.choose(m.Elect(3, since=1), 0.0) == m.Elected(2)
    worker.choose(m.Leading(1), 0.0, attached=False)
    assert worker.choose(m.Elect(3, since=1), 0.0) == m.Elected(2), "that was another connection's"
    worker.choose(m.Leading(1), 0.0)  # the standby follows, and has given all promises back
    assert worker.choose(m.Elect(3, since=1), 0.0) == m.Elected(3)


def test_a_worker_never_returns_to_a_lower_epoch():
    worker = member(0, 4)
    for epoch in (1, 3):
        assert f"of epoch {epoch}, and this worker knows a later one of epoch 4" in (
            worker.outdated(epoch))
        worker.leads(epoch)
        worker.choose(m.Leading(epoch), 0.0)
    assert worker.outdated(4) is None and worker.outdated(5) is None
    assert worker.choose(m.Elect(3, since=1), 0.0) is None
    assert worker.choose(m.Elect(5, since=4), 0.0) == m.Elected(5)
    assert (worker.introduction.run, worker.introduction.epoch) == ("ab", 4)


def test_a_worker_votes_for_a_server_that_would_lose_durable_pushes_after_a_minute_only():
    said = []
    worker = member(0, 1, Session(os.urandom, said.append))
    for seq in range(3):  # 0 and 1 are durable
        worker.kept.add(Push(0, seq, 0, 1, 1, 0.1), np.ones(2, np.float32), 1.0, seq, max(0, seq))
    assert worker.kept.durable == 2
    assert worker.choose(m.Elect(3, 1, due=1), 1000.0) is None
    assert worker.choose(m.Elect(3, 1, due=1), 1059.0) is None and len(said) == 1
    assert "holds this worker's pushes below 1, and another one holds those below 2" in said[0]
    assert worker.choose(m.Elect(2, 1, due=2), 1059.0) == m.Elected(2), "the other one may have it"
    worker.choose(m.NotServing("", 2), 1059.0)
    assert worker.choose(m.Elect(3, 1, due=1), 1061.0) == m.Elected(3), "it does not come"


def test_pushes_of_an_earlier_process_are_not_known_to_be_durable():
    worker = member(0, 1)
    worker.admitted(m.Joined(40, 0, False, 0.0, 1), 0.0)
    assert worker.choose(m.Elect(3, 1, due=38), 0.0) == m.Elected(3)


def test_a_server_that_continues_alone_has_the_ledger_that_it_had():
    """Its members keep their pushes, under the marks that they know; one learned of it late."""
    worker = member(0, 1)
    worker.kept.add(Push(0, 0, 0, 1, 1, 0.1), np.ones(2, np.float32), 1.0, 6, 0)
    worker.reattached(m.Reattached(3, False, 0, 0, None))
    worker.kept.drop(5)
    assert worker.kept.vectors == 1
    worker.kept.drop(7)
    assert worker.kept.vectors == 0


def test_the_newest_answered_beat_is_the_last_touch():
    beats = Beats()
    assert beats.touch == -math.inf
    for number in range(1, 200):
        beats.sent(number, float(number))
    beats.answered(1)
    assert beats.touch == -math.inf, "so many are not remembered"
    beats.answered(198)
    beats.answered(150)
    beats.answered(500)
    assert beats.touch == 198.0
    beats.doubt()
    beats.answered(199)
    assert beats.touch == -math.inf


SECRET = bytes(32)


@pytest.fixture
def pair():
    """An inquiry by a server, and the process that is asked: without a token, and with one."""
    made = []

    def make(token=None):
        here, there = (ServerSocket("localhost", 0, one) for one in (None, token))
        inquiry = Inquiry(here, "localhost", there.port, "ab12", SECRET)
        made.extend([inquiry, here, there])
        return inquiry, there.socket
    yield make
    for one in made:
        one.close()


def test_why_an_inquiry_has_no_answer(pair):
    inquiry, there = pair(token=b"a token of the test, long enough")
    until(lambda: inquiry.refused(HOST.clock.monotonic()) or inquiry.why, "a reason")
    assert "it has another token" in inquiry.why
    inquiry, there = pair()
    assert inquiry.epoch(HOST.clock.monotonic()) is None and inquiry.why is None
    assert there.poll(20_000)
    identity, _ = there.recv_multipart()
    there.send_multipart([identity, m.encode(m.NotServing("a shard\n"))])
    until(lambda: inquiry.epoch(0.0) or inquiry.why, "a reason")
    assert inquiry.why == "its reason: a shard?"


def test_an_answer_counts_that_is_proven(pair):
    inquiry, there = pair()
    assert inquiry.epoch(HOST.clock.monotonic()) is None and there.poll(20_000)
    identity, ask = there.recv_multipart()
    nonce = m.decode(m.FromWorker, ask).nonce
    for key, epoch in ((bytes([1]) * 32, 9), (SECRET, 3)):
        there.send_multipart([identity, m.encode(m.Leading(
            epoch, proof=answer(key, nonce, "leading", epoch)))])
    assert until(lambda: inquiry.epoch(0.0), "the epoch") == 3


def test_a_server_is_elected_for_a_later_epoch_only():
    with pytest.raises(RuleBroken, match="of epoch 3 continues with epoch 3, which is not later"):
        Votes(3, 0, [])


def test_a_proof_of_an_end_expires_before_an_election_however_clocks_differ():
    """By a fifth: from 10 % too slow to 10 % too fast."""
    assert timeouts.PROOF / 0.9 < timeouts.ELECTION / 1.1


def test_no_worker_returns_to_a_server_of_a_lower_epoch():
    session = member(0, 3)
    with pytest.raises(RuleBroken, match="of epoch 2 admits a worker that knows one of epoch 3"):
        session.reattached(m.Reattached(2, False, 0, 0, None))
    with pytest.raises(RuleBroken, match="no worker returns to a lower epoch"):
        session.admitted(m.Joined(0, 0, False, 0.0, 1), 0.0)
    session.reattached(m.Reattached(4, False, 0, 0, None))
    assert session.choose(m.Elect(4, 4, 0), 0.0) is None, "a vote is for a later epoch"
