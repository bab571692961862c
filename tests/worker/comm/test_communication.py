"""The communication thread without a socket: requests, answers, and a broken connection."""

import os
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from lockstep_worker import Calls, Plain
from msgspec import structs

from wbsp.core.agent import Expect
from wbsp.core.messages import Fetch
from wbsp.core.resend_buffer import ResendBuffer
from wbsp.core.stats import AnsweredWork
from wbsp.process.host import HOST
from wbsp.sync.base import Push, WorkerRule
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import Challenges, answer
from wbsp.worker.comm.communication import Communication, PendingRequest, SendUpdate
from wbsp.worker.comm.connection import Ready
from wbsp.worker.errors import TransportError

PUSH = Push(0, 4, 0, 1, 1, 1.0)
PUSHING = ["push", PUSH, np.ones(1, np.float32), 0]
ACK = m.Ack(4, True, None, None, False, 0.5, 0, 0, 0)
# Among the events of a line: the connection is a new one; the server shares its memory no more.
BREAK, UNSHARED = object(), object()
TICKET = bytes(32)


class Line(Plain):
    """A connection to a server that sends what `events` says, one at a poll, and then nothing."""

    broken = unshared = False
    beats = 0  # heartbeats sent
    proves = True  # the server knows this worker's ticket
    contact = b"the key of a first contact"

    def __init__(self, events):
        super().__init__()
        self.events, self.posted, self.vectors = deque(events), [], []
        self._messages = deque()
        self._challenges = Challenges(os.urandom)

    def poll(self, wakes, seconds):
        if not self.events and self._messages:
            return Ready(True, False, False)
        if not self.events:
            raise EOFError  # ends the thread
        event = self.events.popleft()
        if event is BREAK:
            return Ready(False, True, False)
        if event is UNSHARED:
            self.unshared = True
        elif callable(event):
            event()
        else:
            self._messages.append(event)
        return Ready(bool(self._messages), False, False)

    def read_event(self):
        return True

    def let_go(self, now):
        return self.unshared

    def detach(self):
        self.unshared = False

    def receive(self):
        if not self._messages:
            return None
        message = self._messages.popleft()
        return message if isinstance(message, tuple) else (message, None)

    def post(self, message, chunk=None, urgent=False):
        if isinstance(message, m.Reattach) and not message.proof and self.proves:
            self._messages.append(self._challenges.challenge(b"", message.nonce, TICKET))
        elif urgent:
            self.beats += 1
        else:
            self.posted.append(message)

    def put(self, vector, header, parts=()):
        self.posted.append(header(0))
        self.vectors.append(vector.tolist())

    def transferring(self, now):
        return False

    def check(self, now):
        return False

    def flush(self):
        pass

    def close(self):
        pass


class Listener:
    """Notes all it receives."""

    waits = False

    def __init__(self):
        self.log = []

    def acked(self, ack, seconds):
        self.log.append(ack)

    def fetched(self, version, vector, nbytes, seconds):
        self.log.append((version, vector.tolist()))

    def received(self, message):
        self.log.append(message)

    def failed(self):
        pass

    def report(self):
        return None


def communicate(events, ends="EOFError"):
    """Run a communication thread in this one; return it and its connection.

    ends: what the reason of its end says; by itself it ends behind the last event
    events: of the connection; a list is a method of Communication and its arguments, or a push
    """
    made = []
    for event in events:
        if isinstance(event, list):
            name, *arguments = event
            if name == "push":
                name, arguments = "request", [SendUpdate(*arguments)]
            made.append(lambda name=name, arguments=arguments:
                        getattr(thread, name)(*arguments))
        else:
            made.append(event)
    line = Line(made)
    thread = Communication(line, Calls(), "localhost:1")
    thread.run()
    assert ends in str(thread.error)
    return thread, line


@pytest.fixture
def listener():
    return Listener()


def sent(line, kind=m.Update):
    """How often such a message was sent."""
    return sum(isinstance(one, kind) for one in line.posted)


@pytest.mark.parametrize("last", [m.Goodbye(False), m.Leaving("done", False, None)])
def test_no_heartbeat_follows_the_end_of_a_session(listener, last):
    """The server would count it as a message of an unknown session."""
    due = ["__setattr__", "_heartbeat_at", 0.0]
    _, line = communicate([*JOINING, ["listen", listener, 1], due, due, due])
    _, left = communicate([*JOINING, ["listen", listener, 1], ["request", last], due, due])
    assert (line.beats, left.beats) == (4, 1)


def test_an_answer_counts_once_and_only_for_its_request(listener):
    old = m.Ack(3, True, None, None, False, 0.5, 0, 0, 0)
    _, line = communicate([["listen", listener, 1], PUSHING, old, ACK, ACK])
    assert sent(line) == 1 and listener.log == [ACK]


WELCOME = m.Welcome(m.RunSettings("ab12"), 0.0, WorkerRule("every_step", "model", "replace"))
JOIN = m.Join([TensorSpec("x", (2,))])
# What makes this worker a member, whose next push is number 4.
JOINING = [["request", m.Hello(m.PROTOCOL, 0, {})], WELCOME, ["request", JOIN],
           m.Joined(4, 40, False, 2.5, 1, owner="one", ticket=TICKET)]
SAME = m.Reattached(1, False, 0, 0, None, ticket=TICKET)  # from a server that knows the worker


def attempts(line):
    """All Reattach that the worker has proven, without their times."""
    return [structs.replace(message, now=0.0, nonce=b"", proof=b"") for message in line.posted
            if isinstance(message, m.Reattach) and message.proof]


def test_a_pending_request_is_repeated_after_a_break(listener):
    _, line = communicate([*JOINING, ["listen", listener, 1], PUSHING, BREAK, SAME, ACK, BREAK,
                              SAME])
    assert sent(line) == 2, "answered at the second break"
    assert listener.log == [SAME, ACK, SAME]
    assert len(attempts(line)) == 2
    assert attempts(line)[0] == m.Reattach(
        m.PROTOCOL, 0, "ab12", 1, JOIN.layout, 4, 4, 4, 0, False, False, 0.0, owner="one",
        ledger=1)


@pytest.mark.parametrize("second", [
    ["push", PUSH._replace(seq=5), np.ones(1, np.float32), 0], ["request", Fetch(1)],
    ["request", m.Leaving("done", True, None)]])
def test_a_request_in_place_of_one_that_is_not_answered_is_a_fault(listener, second):
    thread, line = communicate([*JOINING, ["listen", listener, 1], PUSHING, second, ACK],
                               "one request at a time")
    assert "is requested while SendUpdate is not answered" in str(thread.error)
    assert listener.log == []


def test_a_worker_may_leave_while_its_push_is_not_answered(listener):
    _, line = communicate([*JOINING, ["listen", listener, 1], PUSHING,
                           ["request", m.Leaving("interrupted", False, None)]])
    assert sent(line, m.Leaving) == 1


def test_messages_of_a_broken_connection_are_dropped(listener):
    """The worker has said what it waits for, and a server acts on that."""
    _, line = communicate([*JOINING, ["listen", listener, 1], PUSHING, BREAK, ACK, m.Granted(7),
                              SAME, ACK])
    assert listener.log == [SAME, ACK]
    assert sent(line) == 2


def test_a_worker_that_shares_memory_no_more_attaches_again_also_where_that_is_under_way(listener):
    """What the server would answer there is lost."""
    joined = [*JOINING, ["listen", listener, 1]]
    for events, times in (([UNSHARED], 1), ([BREAK, UNSHARED], 2)):
        _, line = communicate([*joined, *events])
        assert len(attempts(line)) == times


@pytest.mark.parametrize("waits", [True, False])
def test_a_worker_says_whether_it_waits_for_a_version(listener, waits):
    listener.waits = waits
    _, line = communicate([*JOINING, ["listen", listener, 1], BREAK])
    assert [attempt.waits for attempt in attempts(line)] == [waits]


def test_nothing_is_sent_before_a_server_knows_the_worker_again(listener):
    _, line = communicate([*JOINING, ["listen", listener, 1], BREAK, PUSHING])
    assert sent(line) == 0
    _, line = communicate([*JOINING, ["listen", listener, 1], BREAK, PUSHING, SAME])
    assert sent(line) == 1


def test_a_new_server_gets_what_the_old_one_had_decided(listener):
    def push(seq, value):
        return ["push", PUSH._replace(seq=seq), np.full(2, value, np.float32), 0]

    def ack(seq, mark, durable=0, weight=0.5):
        return m.Ack(seq, True, None, None, False, weight, mark, 0, durable)

    new = m.Reattached(2, True, 5, 1, None)
    _, line = communicate([
        *JOINING, ["listen", listener, 2], push(4, 2), ack(4, 0), push(5, 4), ack(5, 1),
        push(6, 6), ack(6, 1, durable=1), push(7, 8), BREAK, m.Resend(5), new, ack(7, 2, 2)])
    assert [a.answered for a in attempts(line)] == [7]
    (kept,) = [one for one in line.posted if isinstance(one, m.Kept)]
    assert kept == m.Kept(AnsweredWork(5, 6, 2, 2, 2.0, 0, {}), 0, 2)
    assert line.vectors[-2:] == [[5.0, 5.0], [8.0, 8.0]], "the sum, then what was not answered"
    assert new in listener.log and listener.log[-1] == ack(7, 2, 2)


def test_a_save_of_the_new_server_does_not_cover_resent_pushes(listener):
    """It has made a checkpoint, or its standby holds a copy, before this worker is a member; then
    it dies, too, before the next one."""
    push = ["push", PUSH, np.ones(2, np.float32), 0]
    saved, known = m.Alive(durable=2), m.Reattached(2, True, 4, 2, None)
    _, line = communicate([
        *JOINING, ["listen", listener, 2], push, ACK, BREAK, saved, m.Resend(4), saved, known,
        saved, BREAK, m.Resend(4)])
    assert [one.kept for one in attempts(line)] == [4, 4]
    assert len([one for one in line.posted if isinstance(one, m.Kept)]) == 2
    _, line = communicate([
        *JOINING, ["listen", listener, 2], push, ACK, BREAK, saved, m.Resend(4), saved, known,
        m.Alive(durable=3), BREAK])
    assert [one.kept for one in attempts(line)] == [4, 5], "it may say so now"


def test_kept_pushes_belong_to_the_new_ledger_if_the_epoch_is_known(listener):
    """It is told before this worker is taken in: no answer says yet what was sent again."""
    push = ["push", PUSH, np.ones(2, np.float32), 0]
    known, told = m.Reattached(2, True, 4, 2, None), m.Leading(2, TICKET)
    _, line = communicate([
        *JOINING, ["listen", listener, 2], push, ACK, BREAK, told, m.Resend(4), told, known,
        m.Alive(durable=2), BREAK])
    assert [(one.epoch, one.ledger, one.kept) for one in attempts(line)] == [
        (1, 1, 4), (2, 2, 4)]


def test_a_server_that_continued_alone_keeps_its_ledger(listener):
    """It takes this worker in again, with the mark of what that had sent it first."""
    push, alone = ["push", PUSH, np.ones(2, np.float32), 0], m.Reattached(3, True, 0, 0, None,
                                                                          since=1)
    _, line = communicate([
        *JOINING, ["listen", listener, 2], push, structs.replace(ACK, mark=2), BREAK, alone,
        m.Alive(durable=2), BREAK])
    assert [one.kept for one in attempts(line)] == [4, 4]


def test_an_answer_that_was_lost_with_the_server_comes_from_its_checkpoint(listener):
    new = m.Reattached(2, True, 5, 1, ACK)
    push = ["push", PUSH, np.ones(2, np.float32), 0]
    _, line = communicate([*JOINING, ["listen", listener, 2], push, BREAK, new])
    assert listener.log == [new, ACK], "the agent is told of the new model first"
    assert sum(isinstance(one, m.Update) for one in line.posted) == 1, "not repeated"


def test_a_worker_that_is_no_member_introduces_itself_again():
    _, line = communicate([*JOINING[:3], BREAK])
    assert line.posted == [m.Hello(m.PROTOCOL, 0, {}), JOIN] * 2


def test_a_server_of_another_run_is_not_joined():
    other = structs.replace(WELCOME, run=m.RunSettings("cd34"))
    thread = Communication(Line([]), Calls(), "localhost:1")
    thread._handle(WELCOME, None, 0.0)
    with pytest.raises(TransportError, match="serves another run .cd34 instead of ab12."):
        thread._handle(other, None, 0.0)


def test_a_server_that_forgot_the_worker_is_told_who_it_is(listener):
    _, line = communicate([*JOINING, ["listen", listener, 1], PUSHING, m.Unknown(), m.Unknown(),
                              SAME])
    assert len(attempts(line)) == 1 and sent(line) == 2


def test_what_asks_no_answer_waits_until_a_server_knows_the_worker(listener):
    """Another server would ignore it. A request for work is void: the listener asks anew."""
    results = m.Measured(0, {"loss": 1.0})
    _, line = communicate([*JOINING, ["listen", listener, 1], m.Unknown(), ["request", results],
                           ["request", m.AskWork(0, 0)], ["request", m.StopRun("enough")], SAME])
    kinds = [type(one) for one in line.posted]
    assert kinds.index(m.Measured) > max(i for i, one in enumerate(kinds) if one is m.Reattach)
    assert kinds[-2:] == [m.Measured, m.StopRun] and m.AskWork not in kinds


def test_the_server_hears_nothing_but_hello_before_its_welcome():
    hello = m.Hello(m.PROTOCOL, 0, {})
    _, line = communicate([["request", hello], BREAK])
    assert line.posted == [hello, hello]


def test_a_carried_fetch_is_sent_only_after_a_break(listener):
    fetch = ["request", Expect(m.Fetch(7))]
    _, line = communicate([["listen", listener, 1], fetch])
    assert line.posted == []
    _, line = communicate([*JOINING, ["listen", listener, 1], fetch, BREAK, SAME])
    assert sent(line, m.Fetch) == 1


def test_a_fetch_that_the_listener_wants_is_requested_once_also_after_a_break(listener):
    listener.acked = lambda ack, seconds: m.Fetch(7)
    _, line = communicate([*JOINING, ["listen", listener, 1], PUSHING, BREAK,
                              structs.replace(SAME, ack=ACK)])
    assert line.posted[-1] == m.Fetch(7, m.NONE, 0) and sent(line, m.Fetch) == 1


def test_messages_to_a_member_wait_for_its_listener(listener):
    communicate([m.Granted(3), ["listen", listener, 1], m.Stop("enough")])
    assert listener.log == [m.Granted(3), m.Stop("enough")]


def test_a_model_of_an_older_fetch_is_ignored(listener):
    fetch = ["request", m.Fetch(7)]
    values = memoryview(np.array([1.5, 2.5], "<f4")).cast("B")
    communicate([["listen", listener, 2], fetch, (m.Model(6, 3, 0, 2), values),
                 (m.Model(7, 4, 0, 2), values)])
    assert listener.log == [(4, [1.5, 2.5])]


def test_the_handshake_ends_with_the_reason_of_a_refusal():
    thread = Communication(Line([m.Refused("no such worker")]), Calls(), "localhost:1")
    thread.run()
    assert str(thread.error) == "the server refused: no such worker"
    assert thread.handshake.get_nowait() is thread.error


def test_the_answers_to_hello_and_join_come_out_in_order():
    welcome = m.Welcome(m.RunSettings(), 0.0, WorkerRule("every_step", "model", "replace"))
    joined = m.Joined(0, 0, False, 0.0, 1)
    thread, _ = communicate([["request", m.Hello(m.PROTOCOL, 0, {})], welcome, welcome,
                             ["request", JOIN], joined])
    answers = [thread.handshake.get_nowait() for _ in range(2)]
    assert answers == [welcome, joined]


def test_a_request_without_progress_is_sent_again(listener, monkeypatch):
    monkeypatch.setattr("wbsp.timeouts.REQUEST_STALLED", -1.0)
    _, line = communicate([["listen", listener, 1], PUSHING])
    assert sent(line) == 2


def test_progress_puts_off_the_repetition():
    request = PendingRequest(m.Fetch(4), (0, 0), 10.0, 10.0, 10.0)
    request.observe((0, 0), 20.0)
    assert request.idle(25.0) == 15.0
    request.observe((1, 0), 30.0)
    assert request.idle(35.0) == 5.0
    request.sent_at = 33.0
    assert request.idle(35.0) == 2.0


def test_a_member_believes_nothing_until_the_process_there_has_proven_itself(listener, monkeypatch):
    """Another one may listen where the server was."""
    monkeypatch.setattr(Line, "proves", False)
    far = m.Reattached(9, True, 9, 9, None, ticket=TICKET)
    thread, line = communicate([
        *JOINING, ["listen", listener, 2], BREAK, m.Resend(4), far, m.Leading(9), m.Elect(2, 1),
        WELCOME, m.Stop("stop")])
    assert thread.session.introduction.epoch == 1 and listener.log == []
    assert not [one for one in line.posted if isinstance(one, m.Kept | m.Elected)]
    assert thread.cut_off


def test_a_process_that_cannot_prove_itself_is_left_for_the_next_address(listener):
    turned = []
    thread, line = communicate([*JOINING, ["listen", listener, 2], BREAK])
    line.turn_away = lambda reason, now: turned.append(reason)
    thread._introduce_again(0.0)
    line._messages.clear()
    line._messages.append(Challenges(os.urandom).challenge(
        b"", thread.session.claim.nonce, b"another key"))
    thread._receive()
    assert "has not proven that it is of this worker's run" in turned[0]
    assert thread.session.claim.bond is None


def refusing(listener, **refusal):
    """A member that attaches again to a process which has proven nothing, and which refuses it."""
    thread, line = communicate([*JOINING, ["listen", listener, 2], BREAK])
    line.turned = []
    line.turn_away = lambda reason, now: line.turned.append(reason)
    thread._introduce_again(0.0)
    line._messages.clear()
    nonce = thread.session.claim.nonce
    return thread, line, m.Refused("of another run", False, answer(
        refusal.get("key", b"no key"), refusal.get("nonce", nonce), "refused",
        refusal.get("reason", "of another run")))


@pytest.mark.parametrize("false", [dict(key=b"another's"),
                                   dict(key=Line.contact, nonce=b"of another connection"),
                                   dict(key=Line.contact, reason="another reason")])
def test_a_member_that_is_refused_without_proof_looks_for_its_server_first(listener, false):
    thread, line, refusal = refusing(listener, **false)
    thread._handle(refusal, None, 100.0)
    thread._handle(refusal, None, 159.0)
    assert len(line.turned) == 2 and thread.error.args != ("the server refused",)
    assert "refuses this worker, and has not proven" in line.turned[0]
    assert "(of another run)" in line.turned[0]
    with pytest.raises(TransportError, match="the server refused: of another run"):
        thread._handle(refusal, None, 161.0)


def test_a_member_believes_a_refusal_of_its_user_and_of_its_run(listener):
    thread, _, refusal = refusing(listener, key=Line.contact)
    with pytest.raises(TransportError, match="the server refused: of another run"):
        thread._handle(refusal, None, 0.0)
    thread, line, _ = refusing(listener)
    claim = thread.session.claim
    thread._handle(Challenges(os.urandom).challenge(b"", claim.nonce, TICKET), None, 0.0)
    with pytest.raises(TransportError, match="the server refused: no"):
        thread._handle(m.Refused("no"), None, 0.0)


def test_a_proof_of_the_server_clears_the_refusal_of_a_stranger(listener):
    thread, line, refusal = refusing(listener)
    thread._handle(refusal, None, 100.0)
    claim = thread.session.claim
    thread._handle(Challenges(os.urandom).challenge(b"", claim.nonce, TICKET), None, 130.0)
    thread._handle(m.Reattached(1, True, 1, 1, None), None, 130.0)
    thread._introduce_again(500.0)
    thread._handle(refusal, None, 500.0)
    assert len(line.turned) == 2


def test_a_malformed_message_of_a_stranger_ends_no_worker(listener):
    thread, line, _ = refusing(listener)

    def receive():
        raise m.WireError("what is no message")
    line.receive = receive
    thread._receive()
    assert "is not the run's server: it sent what is no message" in line.turned[0]
    thread.session.claim.bond = thread._attaching = None
    with pytest.raises(TransportError, match="sent what is no message"):
        thread._receive()


def test_a_loop_that_has_slept_says_so(monkeypatch):
    at, slept = [100.0], []
    monkeypatch.setattr(Line, "on", SimpleNamespace(
        clock=SimpleNamespace(monotonic=lambda: at[0]), scheduler=HOST.scheduler))
    monkeypatch.setattr(Line, "woke", lambda self, now, seconds: slept.append((now, seconds)),
                        raising=False)
    communicate([lambda: None, lambda: at.__setitem__(0, 3700.0), lambda: None])
    assert slept == [(3700.0, 3600.0)]


def test_a_resent_update_is_not_changed_in_place():
    """It may be on its way to a shard when the answer to its first sending comes."""
    update = np.ones(3, np.float32)
    thread = Communication(Line([]), Calls(), "localhost:1")
    thread.request(SendUpdate(PUSH, update))
    thread._send_again(thread._pending, 11.0)
    kept = ResendBuffer(4)
    kept.add(PUSH, update, weight=0.5, mark=1, durable=0)
    kept.settle()
    assert (update == 1).all()
