"""A worker's line to a server without a socket: requests, answers, breaks, votes, shards."""

import os
from dataclasses import dataclass

import numpy as np
import pytest
from msgspec import structs

from wbsp import timeouts
from wbsp.core.agent import Expect
from wbsp.core.messages import Fetch
from wbsp.core.resend_buffer import ResendBuffer
from wbsp.core.rules import RuleBroken
from wbsp.core.stats import AnsweredWork
from wbsp.sync.base import Push, WorkerRule
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.client import (
    Acked,
    Answered,
    Client,
    Fetched,
    PendingRequest,
    Post,
    Put,
    Received,
    SendUpdate,
    TurnAway,
)
from wbsp.wire.errors import TransportError
from wbsp.wire.messages import codec as m
from wbsp.wire.messages import sharding as s
from wbsp.wire.proof import Challenges, answer, attachment

PUSH = Push(0, 4, 0, 1, 1, 1.0)
ACK = m.Ack(4, True, None, None, False, 0.5, 0, 0, 0)
TICKET = bytes(32)
HELLO = m.Hello(m.PROTOCOL, 0, {})
WELCOME = m.Welcome(m.RunSettings("ab12"), 0.0, WorkerRule("every_step", "model", "replace"))
JOIN = m.Join([TensorSpec("x", (2,))])
JOINED = m.Joined(4, 40, False, 2.5, 1, owner="one", ticket=TICKET)  # its next push is number 4
SAME = m.Reattached(1, False, 0, 0, None, ticket=TICKET)  # from a server that knows the worker


@dataclass
class Line:
    """What the client sees of a connection."""

    made: bool = True
    broken: bool = False
    host: str = "here"
    sent: int = 0
    all_sent: bool = True
    returned: int = 0
    door: str = ""
    contact: bytes = b"the key of a first contact"

    def transferring(self, now):
        return False


class Member:
    waits = False

    def report(self):
        return None


class Talk:
    """A client and what it commands; the process there knows the worker's `key`, if any."""

    def __init__(self, key=TICKET):
        self.line, self.now, self.member = Line(), 100.0, Member()
        self.said = []
        self.client = Client(self.line, "localhost:1", os.urandom, self.said.append, 60.0)
        self.challenges, self.key = Challenges(os.urandom), key
        self.posted, self.vectors, self.heard, self.answered = [], [], [], []
        self.turned, self.introduced, self.beats = [], [], 0

    def obey(self, commands):
        for command in commands:
            match command:
                case Post(message, _, shard) if shard is not None:
                    self.introduced.append((shard, message))
                case Post(m.Heartbeat()):
                    self.beats += 1
                case Post(m.Reattach(proof=b"") as request) if self.key is not None:
                    self.receive(self.challenges.challenge(b"", request.nonce, self.key))
                case Post(message):
                    self.posted.append(message)
                case Put(vector, header):
                    self.posted.append(header(0))
                    self.vectors.append(vector.tolist())
                case Acked(message) | Received(message):
                    self.heard.append(message)
                case Fetched(version, vector):
                    self.heard.append((version, vector.tolist()))
                case Answered(message):
                    self.answered.append(message)
                case TurnAway(reason):
                    self.turned.append(reason)

    def send(self, *requests):
        for request in requests:
            self.obey(self.client.send(request, self.now))

    def push(self, seq=4, value=1.0, size=1):
        self.send(SendUpdate(PUSH._replace(seq=seq), np.full(size, value, np.float32)))

    def receive(self, *messages, chunk=None, shard=None):
        for message in messages:
            self.obey(self.client.receive(message, chunk, self.now, shard))

    def listen(self, size=1):
        self.obey(self.client.listen(self.member, size))

    def breaks(self, *messages):
        """The connection is a new one, over which these messages arrive."""
        self.obey(self.client.connected(self.now))
        self.receive(*messages)

    def wait(self, seconds):
        self.now += seconds
        self.obey(self.client.due(self.now))

    def number(self, kind=m.Update):
        """How often such a message was sent."""
        return sum(isinstance(one, kind) for one in self.posted)

    @property
    def attempts(self):
        """All Reattach that the worker has proven, without their times."""
        return [structs.replace(one, now=0.0, nonce=b"", proof=b"") for one in self.posted
                if isinstance(one, m.Reattach) and one.proof]


def joined(size=1, **options):
    """A member that listens."""
    talk = Talk(**options)
    talk.send(HELLO)
    talk.receive(WELCOME)
    talk.send(JOIN)
    talk.receive(JOINED)
    talk.listen(size)
    return talk


@pytest.fixture
def talk():
    return joined()


# Requests and answers.


def test_the_answers_to_hello_and_join_arrive_in_order():
    talk = Talk()
    talk.send(HELLO)
    talk.receive(WELCOME, WELCOME)
    talk.send(JOIN)
    talk.receive(JOINED)
    assert talk.answered == [WELCOME, JOINED]


def test_a_refusal_ends_the_client_with_its_reason():
    with pytest.raises(TransportError, match="the server refused: no such worker"):
        Talk().receive(m.Refused("no such worker"))


def test_an_answer_counts_once_and_only_for_its_request(talk):
    talk.push()
    talk.receive(structs.replace(ACK, seq=3), ACK, ACK)
    assert talk.number() == 1 and talk.heard == [ACK]


def test_an_answer_carries_its_duration(talk):
    talk.push()
    assert talk.client.receive(ACK, None, 102.5) == [Acked(ACK, 2.5)]


@pytest.mark.parametrize("second", [
    SendUpdate(PUSH._replace(seq=5), np.ones(1, np.float32)), Fetch(1),
    m.Leaving("done", True, None)])
def test_a_request_in_place_of_one_that_is_not_answered_is_a_fault(talk, second):
    talk.push()
    with pytest.raises(RuleBroken, match="is requested while SendUpdate is not answered"):
        talk.send(second)


def test_a_worker_may_leave_while_its_push_is_not_answered(talk):
    talk.push()
    talk.send(m.Leaving("interrupted", False, None))
    assert talk.number(m.Leaving) == 1


def test_messages_to_a_member_wait_until_it_listens():
    talk = Talk()
    talk.receive(m.Granted(3))
    assert talk.heard == []
    talk.listen()
    talk.receive(m.Stop("enough"))
    assert talk.heard == [m.Granted(3), m.Stop("enough")]


def test_a_model_of_an_older_fetch_is_ignored():
    talk = joined(2)
    talk.send(m.Fetch(7))
    values = memoryview(np.array([1.5, 2.5], "<f4")).cast("B")
    talk.receive(m.Model(6, 3, 0, 2), m.Model(7, 4, 0, 2), chunk=values)
    assert talk.heard == [(4, [1.5, 2.5])]


# Time.


def test_a_heartbeat_is_due_once_a_second(talk):
    talk.wait(0.0)
    talk.wait(0.1)
    assert talk.beats == 1
    talk.wait(timeouts.WORKER_BEAT)
    assert talk.beats == 2


@pytest.mark.parametrize("last", [m.Goodbye(False), m.Leaving("done", False, None)])
def test_no_heartbeat_follows_the_end_of_a_session(talk, last):
    """The server would count it as a message of an unknown session."""
    talk.wait(1.0)
    talk.send(last)
    talk.wait(10.0)
    assert talk.beats == 1


def test_before_the_welcome_only_hello_is_sent():
    talk = Talk()
    talk.send(HELLO)
    talk.breaks()
    talk.wait(10.0)
    assert talk.posted == [HELLO, HELLO] and talk.beats == 0


def test_a_request_without_progress_is_repeated(talk):
    talk.push()
    talk.wait(timeouts.REQUEST_STALLED - 1)
    assert talk.number() == 1
    talk.line.sent += 1  # a chunk has left: progress
    talk.wait(2)
    assert talk.number() == 1
    talk.wait(timeouts.REQUEST_STALLED + 1)
    assert talk.number() == 2


def test_nothing_is_due_without_a_connection(talk):
    talk.push()
    talk.line.broken = True
    talk.wait(timeouts.REQUEST_STALLED + 1)
    assert talk.number() == 1 and talk.beats == 0


def test_progress_puts_off_the_repetition():
    request = PendingRequest(m.Fetch(4), (0, 0), 10.0, 10.0, 10.0)
    request.observe((0, 0), 20.0)
    assert request.idle(25.0) == 15.0
    request.observe((1, 0), 30.0)
    assert request.idle(35.0) == 5.0
    request.sent_at = 33.0
    assert request.idle(35.0) == 2.0


# A broken connection.


def test_a_pending_request_is_repeated_after_a_break(talk):
    talk.push()
    talk.breaks(SAME, ACK)
    talk.breaks(SAME)
    assert talk.number() == 2, "answered at the second break"
    assert talk.heard == [SAME, ACK, SAME]
    assert len(talk.attempts) == 2
    assert talk.attempts[0] == m.Reattach(
        m.PROTOCOL, 0, "ab12", 1, JOIN.layout, 4, 4, 4, 0, False, False, 0.0, owner="one",
        ledger=1)


def test_messages_of_a_broken_connection_are_dropped(talk):
    """The worker has sent what it waits for, and a server acts on that."""
    talk.push()
    talk.breaks(ACK, m.Granted(7), SAME, ACK)
    assert talk.heard == [SAME, ACK] and talk.number() == 2


@pytest.mark.parametrize("waits", [True, False])
def test_a_worker_reports_whether_it_waits_for_a_version(talk, waits):
    talk.member.waits = waits
    talk.breaks()
    assert [attempt.waits for attempt in talk.attempts] == [waits]


def test_nothing_is_sent_before_a_server_knows_the_worker_again(talk):
    talk.breaks()
    talk.push()
    assert talk.number() == 0 and talk.client.cut_off
    talk.receive(SAME)
    assert talk.number() == 1 and not talk.client.cut_off


def test_a_new_server_receives_the_old_ones_decisions():
    def ack(seq, mark, durable=0, weight=0.5):
        return m.Ack(seq, True, None, None, False, weight, mark, 0, durable)

    talk, new = joined(2), m.Reattached(2, True, 5, 1, None)
    for seq, value, answered in ((4, 2, ack(4, 0)), (5, 4, ack(5, 1)), (6, 6, ack(6, 1, 1))):
        talk.push(seq, value, 2)
        talk.receive(answered)
    talk.push(7, 8, 2)
    talk.breaks(m.Resend(5), new, ack(7, 2, 2))
    assert [a.answered for a in talk.attempts] == [7]
    (kept,) = [one for one in talk.posted if isinstance(one, m.Kept)]
    assert kept == m.Kept(AnsweredWork(5, 6, 2, 2, 2.0, 0, {}), 0, 2)
    assert talk.vectors[-2:] == [[5.0, 5.0], [8.0, 8.0]], "the sum, then what was not answered"
    assert new in talk.heard and talk.heard[-1] == ack(7, 2, 2)


def test_a_save_of_the_new_server_does_not_cover_resent_pushes():
    """It has made a checkpoint, or its standby holds a copy, before this worker is a member; then
    it dies, too, before the next one."""
    saved, known = m.Alive(durable=2), m.Reattached(2, True, 4, 2, None)
    for last, first in (([m.Resend(4)], 4), ([m.Alive(durable=3)], 5)):
        talk = joined(2)
        talk.push(size=2)
        talk.receive(ACK)
        talk.breaks(saved, m.Resend(4), saved, known, saved)
        if first == 5:
            talk.receive(*last)
            talk.breaks()
        else:
            talk.breaks(*last)
            assert talk.number(m.Kept) == 2
        assert [one.kept for one in talk.attempts] == [4, first]


def test_kept_pushes_belong_to_the_new_ledger_if_the_epoch_is_known():
    """It is told before this worker is taken in: no answer says yet what was sent again."""
    known, told = m.Reattached(2, True, 4, 2, None), m.Leading(2, TICKET)
    talk = joined(2)
    talk.push(size=2)
    talk.receive(ACK)
    talk.breaks(told, m.Resend(4), told, known, m.Alive(durable=2))
    talk.breaks()
    assert [(one.epoch, one.ledger, one.kept) for one in talk.attempts] == [(1, 1, 4), (2, 2, 4)]


def test_a_server_that_continued_alone_keeps_its_ledger():
    """It takes this worker in again, with the mark of what that had sent it first."""
    talk = joined(2)
    talk.push(size=2)
    talk.receive(structs.replace(ACK, mark=2))
    talk.breaks(m.Reattached(3, True, 0, 0, None, since=1), m.Alive(durable=2))
    talk.breaks()
    assert [one.kept for one in talk.attempts] == [4, 4]


def test_an_answer_that_was_lost_with_the_server_comes_from_its_checkpoint(talk):
    new = m.Reattached(2, True, 5, 1, ACK)
    talk.push()
    talk.breaks(new)
    assert talk.heard == [new, ACK], "the agent is told of the new model first"
    assert talk.number() == 1, "not repeated"


def test_a_worker_that_is_no_member_introduces_itself_again():
    talk = Talk()
    talk.send(HELLO)
    talk.receive(WELCOME)
    talk.send(JOIN)
    talk.breaks()
    assert talk.posted == [HELLO, JOIN] * 2


def test_a_worker_admitted_during_its_proof_introduces_itself_as_a_member():
    """The answer to its request from before the break overtakes the server's challenge."""
    talk = Talk()
    talk.client.session.has_been(b"of the run before")
    talk.send(HELLO)
    talk.receive(WELCOME)
    talk.send(JOIN)
    talk.breaks()
    talk.receive(m.Unknown())
    assert talk.number(m.Hello) == 2, "it waits for the answer to its introduction"
    talk.receive(JOINED, WELCOME, m.Unknown())
    assert talk.number(m.Hello) == 2 and len(talk.attempts) == 1
    talk.receive(SAME)
    talk.listen()
    talk.push()
    assert talk.number() == 1


def test_a_server_of_another_run_is_not_joined():
    talk = Talk()
    talk.receive(WELCOME)
    with pytest.raises(TransportError, match="serves another run .cd34 instead of ab12."):
        talk.receive(structs.replace(WELCOME, run=m.RunSettings("cd34")))


def test_a_worker_introduces_itself_to_a_server_that_forgot_it(talk):
    talk.push()
    talk.receive(m.Unknown(), m.Unknown(), SAME)
    assert len(talk.attempts) == 1 and talk.number() == 2


def test_messages_without_an_answer_wait_until_a_server_knows_the_worker(talk):
    """Another server would ignore it. A request for work is void: the member asks anew."""
    talk.receive(m.Unknown())
    talk.send(m.Measured(0, {"loss": 1.0}), m.AskWork(0, 0), m.StopRun("enough"))
    assert talk.number(m.Measured) == 0
    talk.receive(SAME)
    assert [type(one) for one in talk.posted[-2:]] == [m.Measured, m.StopRun]
    assert talk.number(m.AskWork) == 0


def test_a_carried_fetch_is_sent_only_after_a_break(talk):
    talk.send(Expect(m.Fetch(7)))
    assert talk.number(m.Fetch) == 0
    talk.breaks(SAME)
    assert talk.number(m.Fetch) == 1


def test_a_resent_update_is_not_changed_in_place(talk):
    """It may be in transit to a shard when the answer to its first sending arrives."""
    update = np.ones(3, np.float32)
    talk.send(SendUpdate(PUSH, update))
    talk.breaks(SAME)
    kept = ResendBuffer(4)
    kept.add(PUSH, update, weight=0.5, mark=1, saved=0)
    kept.settle()
    assert (update == 1).all()


# Strangers.


def test_a_member_ignores_a_server_that_has_not_proven_itself():
    """Another one may listen where the server was."""
    talk = joined(key=None)
    far = m.Reattached(9, True, 9, 9, None, ticket=TICKET)
    talk.breaks(m.Resend(4), far, m.Leading(9), m.Elect(2, 1), WELCOME, m.Stop("stop"))
    assert talk.client.session.epoch == 1 and talk.heard == []
    assert not talk.number(m.Kept | m.Elected) and talk.client.cut_off


def test_a_process_that_cannot_prove_itself_is_left_for_the_next_address():
    talk = joined(key=b"another key")
    talk.breaks()
    assert "has not proven that it is of this worker's run" in talk.turned[0]
    assert talk.attempts == []


def refusing(key=b"no key", nonce=None, reason="of another run"):
    """A member that attaches again to a process which has proven nothing, and which refuses it."""
    talk = joined(key=None)
    talk.breaks()
    nonce = nonce or talk.client.session.claim.nonce
    return talk, m.Refused("of another run", False, answer(key, nonce, "refused", reason))


@pytest.mark.parametrize("false", [{"key": b"another's"},
                                   {"key": Line.contact, "nonce": b"of another connection"},
                                   {"key": Line.contact, "reason": "another reason"}])
def test_a_member_refused_without_proof_searches_for_its_server_first(false):
    talk, refusal = refusing(**false)
    talk.receive(refusal)
    talk.now += 59.0
    talk.receive(refusal)
    assert len(talk.turned) == 2
    assert "refuses this worker, and has not proven" in talk.turned[0]
    assert "(of another run)" in talk.turned[0]
    talk.now += 2.0
    with pytest.raises(TransportError, match="the server refused: of another run"):
        talk.receive(refusal)


def test_the_time_of_a_suspension_is_not_counted_as_a_search():
    talk, refusal = refusing()
    talk.receive(refusal)
    talk.client.woke(3600.0)
    talk.now += 3610.0
    talk.receive(refusal)
    assert len(talk.turned) == 2


def test_a_member_accepts_a_refusal_by_its_user_or_its_run():
    talk, refusal = refusing(key=Line.contact)
    with pytest.raises(TransportError, match="the server refused: of another run"):
        talk.receive(refusal)
    talk = joined()
    talk.breaks()
    with pytest.raises(TransportError, match="the server refused: no"):
        talk.receive(m.Refused("no"))


def test_a_proof_of_the_server_clears_the_refusal_of_a_stranger():
    talk, refusal = refusing()
    talk.receive(refusal)
    talk.key = TICKET
    talk.breaks(SAME)
    talk.now, talk.key = 500.0, None
    talk.breaks(refusal)
    assert len(talk.turned) == 2


def test_a_malformed_message_of_a_stranger_ends_no_worker():
    talk, _ = refusing()
    talk.obey(talk.client.misread(m.WireError("what is no message")))
    assert "is not the run's server: it sent what is no message" in talk.turned[0]
    with pytest.raises(TransportError, match="sent what is no message"):
        joined().client.misread(m.WireError("what is no message"))


# Votes.


def test_a_worker_votes_once_and_only_over_a_connection_that_is_proven(talk):
    talk.receive(m.Elect(3, 1), m.Elect(2, 1))
    assert [one for one in talk.posted if isinstance(one, m.Elected)] == 2 * [m.Elected(3)]
    talk.receive(m.NotServing("the server is back", 3))
    assert talk.turned == ["the server is back"]
    talk.receive(m.Elect(2, 1))
    assert talk.posted[-1] == m.Elected(2)


# Shards.


GROUP = m.ShardGroup(1 << 61, [("", 7), ("other", 8)])
NAME, KEY = attachment(GROUP.secret)


@pytest.fixture
def sharded():
    """A member of a server with two shards."""
    talk = Talk()
    talk.send(HELLO)
    talk.receive(WELCOME)
    talk.send(JOIN)
    talk.receive(structs.replace(JOINED, group=GROUP))
    talk.listen(2)
    return talk


def prove(talk, shard, key=KEY):
    """The process there answers the newest introduction with its challenge."""
    talk.receive(talk.challenges.challenge(b"", talk.introduced[-1][1].nonce, key), shard=shard)


def test_a_push_waits_until_both_shards_know_the_worker(sharded):
    sharded.push(size=2)
    for shard in (0, 1):
        assert sharded.number() == 0
        sharded.obey(sharded.client.shard_changed(shard, True, sharded.now))
        prove(sharded, shard)
        assert sharded.introduced[-1][0] == shard and sharded.introduced[-1][1].proof
        sharded.receive(s.Ready(NAME), shard=shard)
        sharded.wait(0.1)
    assert sharded.number() == 1


def test_messages_of_a_process_in_a_shards_place_are_ignored(sharded):
    sharded.obey(sharded.client.shard_changed(0, True, sharded.now))
    present = s.Present(NAME)
    assert structs.replace(sharded.introduced[0][1], nonce=b"") == present, "without the secret"
    sharded.send(m.Fetch(7))
    values = memoryview(np.ones(1, "<f4")).cast("B")
    for _ in range(2):
        sharded.receive(s.Ready(NAME), s.Ready(1), m.Model(7, 1, 0, 2), chunk=values, shard=0)
        prove(sharded, 0, b"another key")
    sharded.wait(11.0)
    assert sharded.heard == [] and not sharded.client.ready
    assert "the process at here:7 has not proven that it is a shard" in sharded.said[0]
    assert not any(message.proof for _, message in sharded.introduced)


def test_an_introduction_to_a_shard_is_repeated_and_given_up(sharded):
    sharded.obey(sharded.client.shard_changed(1, True, sharded.now))
    sharded.wait(timeouts.PRESENT_AGAIN + 0.1)
    assert [shard for shard, _ in sharded.introduced] == [1, 1]
    with pytest.raises(TransportError, match="the shard at here:7 is unreachable for 60 s"):
        sharded.wait(60.0)


def test_a_push_is_repeated_to_a_shard_that_reconnects(sharded):
    for shard in (0, 1):
        sharded.obey(sharded.client.shard_changed(shard, True, sharded.now))
        prove(sharded, shard)
        sharded.receive(s.Ready(NAME), shard=shard)
    sharded.wait(0.1)
    sharded.push(size=2)
    assert sharded.number() == 1
    sharded.obey(sharded.client.shard_changed(1, False, sharded.now))
    assert sharded.client.cut_off
    sharded.obey(sharded.client.shard_changed(1, True, sharded.now))
    prove(sharded, 1)
    sharded.receive(s.Ready(NAME), shard=1)
    sharded.wait(0.1)
    assert sharded.number() == 2
