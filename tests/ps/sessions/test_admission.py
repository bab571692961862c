"""Which workers may join a run, and which brings W_0: a server's side, without its loop."""

import contextlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hostile_peer import Peer
from integer_replica import IntegerReplica
from jobs import until

from wbsp import timeouts
from wbsp.core.engine import Engine
from wbsp.core.messages import Outgoing
from wbsp.core.store import Store
from wbsp.ps.checkpoint.state import check_run
from wbsp.ps.clock import Clock
from wbsp.ps.config import RunInfo, ServerConfig
from wbsp.ps.dispatcher import Dispatcher
from wbsp.ps.series import Series
from wbsp.ps.sharding.coordinator import Shards
from wbsp.sync import create
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import Claim
from wbsp.wire.sockets import ServerSocket

LAYOUT = IntegerReplica(0).layout
W0 = np.arange(5, dtype=np.float32)
JOIN, INITIAL = m.Join(LAYOUT), (m.Initial(0, 5), W0.tobytes())


class Server(contextlib.ExitStack):
    """A server of three workers under asp, which does something when a peer waits for it."""

    def __init__(self, series=None, record=dict):
        super().__init__()
        self.durable = True  # the first version is
        self.now, self.said, self.events = 0.0, [], []
        self.socket = ServerSocket("localhost", 0, members=3)
        self.callback(self.socket.close)
        info = RunInfo(ServerConfig(3, share=False), create("asp").rule,
                       m.RunSettings("ab12", "asp"), 1, series=series or Series())
        reporter = SimpleNamespace(
            folder=Path("."), clock=Clock(lambda: self.now), say=self.said.append,
            event=lambda kind, **facts: self.events.append((kind, facts)))
        self.dispatcher = Dispatcher(
            self.socket, info, reporter,
            Shards(info, self.socket, reporter.say, lambda shard, message: None),
            record, self.begin)
        self.begun = None

    def begin(self, vector, layout, frozen):
        self.begun = vector.tolist()
        self.requests = self.dispatcher.begin(Engine(create("asp"), Store(vector, 0), 3), layout,
                                              lambda: self.durable)

    def peer(self):
        return self.enter_context(Peer(f"localhost:{self.socket.port}"))

    def hears(self, peer, *kinds):
        """The next message of these kinds that the server sends to this peer."""
        def served():
            self.dispatcher.receive()
            self.dispatcher.serve()
            if peer._socket.poll(0):
                message = m.decode(m.FromServer, peer._socket.recv_multipart()[0])
                return message if isinstance(message, kinds) else None
            return None
        return until(served, f"one of {kinds}", 30)

    def asked(self, worker, **hello):
        """A peer that has introduced itself as this worker; it, and the answer."""
        peer = self.peer()
        peer.send(m.Hello(m.PROTOCOL, worker, {}, **hello))
        return peer, self.hears(peer, m.Welcome, m.Refused, m.NotServing)

    def waits(self, worker):
        """A peer that has asked to join as this worker."""
        peer, answer = self.asked(worker)
        assert isinstance(answer, m.Welcome)
        peer.send(JOIN)
        return peer

    def serves_nobody(self):
        """Handle all that has arrived until no process has a session."""
        until(lambda: self.dispatcher.receive() or not len(self.dispatcher.sessions),
              "all processes to leave", 30)

    def serves(self, peer):
        """Handle all that this peer has sent."""
        while peer._socket.poll(20):
            peer._socket.recv_multipart()  # an Alive of before would be taken for the answer
        peer.send(m.Heartbeat(None))
        self.hears(peer, m.Alive)


@pytest.fixture
def server():
    with Server() as server:
        yield server


def begun(server):
    """Workers 0 and 1, of which the first has brought W_0, and what they were answered."""
    first = server.waits(0)
    assert server.hears(first, m.Joined).send_initial
    second = server.waits(1)
    server.serves(second)
    first.send(*INITIAL)
    return [(peer, server.hears(peer, m.Joined)) for peer in (first, second)]


def test_one_worker_brings_w0_and_all_workers_that_wait_are_admitted(server):
    (_, one), (_, two) = begun(server)
    assert server.begun == W0.tolist()
    for joined in (one, two):
        assert (joined.seq, joined.send_initial) == (0, False)
    assert one.ticket != two.ticket and one.owner != two.owner


def test_no_worker_is_admitted_before_the_first_version_is_durable(server):
    server.durable = False
    first = server.waits(0)
    assert server.hears(first, m.Joined).send_initial
    first.send(*INITIAL)
    until(lambda: server.dispatcher.receive() or server.begun, "W_0", 30)
    second = server.waits(1)
    server.serves(second)
    assert [session.answer is None or session.answer.send_initial
            for session in server.dispatcher.sessions] == [True, True]
    server.durable = True
    server.dispatcher.poll_standby()
    for peer in (first, second):
        assert not server.hears(peer, m.Joined).send_initial


@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "sends nothing"])
def test_another_worker_is_asked_where_the_first_brings_nothing(server, leaves):
    first, second = server.waits(0), server.waits(1)
    assert server.hears(first, m.Joined).send_initial
    server.serves(second)
    if leaves:
        first.send(m.Leaving("no more", False, None))
    else:
        server.now += timeouts.INITIAL_STALLED + 1
        server.dispatcher.entrance.check()
        assert "sent nothing of it" in server.hears(first, m.Refused).reason
    assert server.hears(second, m.Joined).send_initial
    second.send(*INITIAL)
    assert not server.hears(second, m.Joined).send_initial


def test_only_the_asked_worker_brings_w0(server):
    first, second = server.waits(0), server.waits(1)
    server.hears(first, m.Joined)
    second.send(*INITIAL)
    server.serves(second)
    assert server.begun is None
    server.dispatcher.close()
    assert [facts for kind, facts in server.events if kind == "malformed"]


def test_an_answer_that_was_lost_is_repeated(server):
    (peer, joined), _ = begun(server)
    peer.send(JOIN)
    assert server.hears(peer, m.Joined) == joined
    peer.send(*INITIAL)
    assert server.hears(peer, m.Joined) == joined


def test_later_messages_are_repeated_in_their_order(server):
    """A site that receives its new range before the loss of the old one loses both."""
    (peer, _), _ = begun(server)
    sent = [m.Work(0, 0, 4, 0), m.Withdrawn(4), m.Work(4, 8, 12, 0)]
    server.requests.replies.send([Outgoing(0, message) for message in sent])
    server.serves(peer)
    peer.send(JOIN)
    server.hears(peer, m.Joined)
    assert [server.hears(peer, m.Work, m.Withdrawn) for _ in range(2)] == sent[1:]


def test_a_worker_that_has_another_model_is_refused(server):
    begun(server)
    other = server.asked(2)[0]
    other.send(m.Join([TensorSpec("kernel", (5,)), TensorSpec("bias", ())]))
    assert "worker 2 has another model than the server: variable 0 is kernel[5] here" in (
        server.hears(other, m.Refused).reason)


@pytest.mark.parametrize(("worker", "says"), [
    (3, "worker 3 does not exist"), (-1, "worker -1 does not exist")])
def test_an_index_that_does_not_exist_is_refused(server, worker, says):
    begun(server)
    assert says in server.asked(worker)[1].reason


def asks_again(server, peer, worker, **hello):
    """What a process that has asked for this index, and retries, is answered."""
    peer.send(m.Hello(m.PROTOCOL, worker, {}, **hello))
    return server.hears(peer, m.Welcome, m.Refused, m.NotServing)


@pytest.mark.parametrize("again", [False, True], ids=["over one connection", "over another"])
def test_a_second_process_of_an_index_is_refused_once_the_first_one_answers(server, again):
    (owner, _), _ = begun(server)
    rival, answer = server.asked(0, own=b"r" * 16)
    assert isinstance(answer, m.NotServing)
    server.now += timeouts.INDEX_HELD
    server.serves(owner)  # this message may be older than the process's question
    assert asks_again(server, rival, 0, own=b"r" * 16) == answer
    server.now += 0.1
    server.serves(owner)
    refused = (server.asked(0, own=b"r" * 16)[1] if again else
               asks_again(server, rival, 0, own=b"r" * 16))
    assert isinstance(refused, m.Refused)
    assert refused.reason == ("worker 0 is already connected (last message 0.0 s ago); start each "
                              "worker with its own worker_index")
    assert isinstance(server.asked(0, own=b"s" * 16)[1], m.NotServing), "it may be a restart"


@pytest.mark.parametrize("silent", [0.0, 1.3, 10.0])
def test_a_process_retries_until_the_loss_of_the_one_before_is_known(server, silent):
    """A host that is cut off ends no connection, so the old process may have ended just now."""
    (owner, _), _ = begun(server)
    server.now += silent
    rival, answer = server.asked(0)
    assert isinstance(answer, m.NotServing)
    assert answer.reason.startswith("worker 0 has another connection, whose process may have ende")
    server.now += timeouts.INDEX_HELD + 1
    assert asks_again(server, rival, 0) == answer
    owner.__exit__()
    until(lambda: isinstance(asks_again(server, rival, 0), m.Welcome),
          "the loss of the owner to be known")


def test_a_suspended_server_does_not_count_its_own_silence(server):
    begun(server)
    rival, answer = server.asked(0)
    server.now += timeouts.INDEX_HELD + 1
    server.dispatcher.woke(server.now)
    assert asks_again(server, rival, 0) == answer


def test_a_process_restarted_as_the_run_ends_retries_until_its_old_one_is_lost(server):
    (owner, _), _ = begun(server)
    server.dispatcher.entrance.dismiss("the run has ended (done)")
    rival, answer = server.asked(0)
    assert isinstance(answer, m.NotServing)
    assert server.dispatcher.entrance.awaits_retry(server.now), "the server ends after it"
    owner.__exit__()
    until(lambda: not isinstance(asks_again(server, rival, 0), m.NotServing),
          "the loss of the owner to be known")
    assert asks_again(server, rival, 0).over


def test_a_process_that_replaces_another_retries_until_that_has_ended(server):
    (owner, _), _ = begun(server)
    assert isinstance(server.asked(0, replaces=True)[1], m.NotServing)
    owner.send(m.Leaving("no more", False, None))
    until(lambda: isinstance(server.asked(0, replaces=True)[1], m.Welcome), "the owner to leave")


def test_a_worker_that_knows_a_later_server_is_refused(server):
    _, answer = server.asked(0, run="ab12", epoch=2)
    assert isinstance(answer, m.NotServing) and "of epoch 2" in answer.reason


def test_a_worker_that_joins_an_earlier_run_is_refused(server):
    peer, answer = server.asked(0, run="cd34", epoch=1)
    assert isinstance(answer, m.Refused) and answer.over
    assert "is too late for run cd34: this server serves another one (ab12)" in answer.reason
    peer.send(JOIN)
    other = server.waits(0)
    assert server.hears(other, m.Joined).send_initial, "its place is free"


def test_a_process_whose_goodbye_was_lost_is_expected_in_the_next_run(server):
    own = bytes(16)[:-1] + b"a"
    server.asked(0, own=own)
    server.dispatcher.entrance._over = "the run has ended (done)"
    _, answer = server.asked(0, own=own)
    assert answer.over and answer.reason == "the run has ended (done)"
    assert server.dispatcher.sessions.series.living == {0: own}
    assert server.dispatcher.sessions.of(0) is None


def test_no_worker_joins_when_the_run_is_over(server):
    waiting = server.asked(2)[0]
    server.dispatcher.entrance.dismiss("the run has ended (done)")
    told = server.hears(waiting, m.Refused)
    assert "is too late" in told.reason and told.over and told.follows, "it waits for the next run"
    late = server.asked(1)[1]
    assert late.reason == "the run has ended (done)" and late.over and late.follows
    assert set(server.dispatcher.sessions.series.living) == {1, 2}, "they wait for the next run"


def test_the_end_of_a_run_is_announced_after_its_last_version_is_durable(server):
    begun(server)
    waiting = server.asked(2)[0]
    server.dispatcher.entrance._engine.done = True
    waiting.send(JOIN)
    server.serves(waiting)
    server.dispatcher.entrance.dismiss("the run has ended (done)")
    assert server.hears(waiting, m.Joined, m.Refused).over


def test_a_worker_that_joins_before_the_last_version_is_durable_must_wait(server):
    begun(server)
    server.dispatcher.entrance._engine.done = True
    answer = server.asked(2)[1]
    assert isinstance(answer, m.NotServing) and "is not durable yet" in answer.reason
    server.dispatcher.entrance.dismiss("the run has ended (done)")
    assert server.asked(2)[1].over


# Workers without an index.


def chosen(server, **hello):
    """The index that the server chooses for a new process; the process."""
    peer, answer = server.asked(None, **hello)
    assert isinstance(answer, m.Welcome), answer
    return answer.worker, peer


def test_workers_without_an_index_get_the_lowest_that_no_process_holds(server):
    server.asked(1)
    assert [chosen(server)[0] for _ in range(2)] == [0, 2]


def test_one_too_many_is_refused_in_one_line(server):
    peers = [*(peer for peer, _ in begun(server)), chosen(server)[1]]
    later, answer = server.asked(None)
    assert isinstance(answer, m.NotServing), "it may be a restart of one of the three"
    server.now += timeouts.INDEX_HELD + 1
    for peer in peers:
        server.serves(peer)
    answer = asks_again(server, later, None)
    assert isinstance(answer, m.Refused) and not answer.over
    assert answer.reason == ("a worker without an index cannot join: all 3 indices are taken by "
                             "connected workers; start the server with --worker_num=4 for one more")


def test_a_worker_without_an_index_waits_for_that_of_a_silent_process(server):
    peers = [peer for peer, _ in begun(server)]
    _, last = chosen(server)
    later, answer = server.asked(None)
    assert isinstance(answer, m.NotServing)
    server.now += timeouts.INDEX_HELD + 1
    for peer in (peers[0], last):
        server.serves(peer)
    answer = asks_again(server, later, None)
    assert isinstance(answer, m.NotServing)
    assert answer.reason == ("a worker without an index waits: all 3 indices are taken; that of "
                             "worker 1, which is silent, becomes free if the process has ended")
    peers[1].__exit__()

    def welcomed():
        server.now += 2.0
        for peer in (peers[0], last):
            server.serves(peer)
        server.dispatcher.check_silence()
        later.send(m.Hello(m.PROTOCOL, None, {}))
        answer = server.hears(later, m.Welcome, m.NotServing)
        return answer if isinstance(answer, m.Welcome) else None
    assert until(welcomed, "worker 1 to be lost").worker == 1


def test_a_repeated_request_gets_the_same_index(server):
    index, peer = chosen(server, own=bytes(15) + b"a")
    assert (index, chosen(server, own=bytes(15) + b"b")[0]) == (0, 1)
    peer.send(m.Hello(m.PROTOCOL, None, {}))
    assert server.hears(peer, m.Welcome).worker == 0, "by the same socket"
    peer.__exit__()
    until(lambda: getattr(server.asked(None, own=bytes(15) + b"a")[1], "worker", None) == 0,
          "it to have the same one by another socket")


def test_an_index_is_kept_for_its_process_between_two_runs(server):
    index, peer = chosen(server)
    peer.send(m.Goodbye(again=True))

    def between():
        server.dispatcher.receive()
        return server.dispatcher.sessions.of(index) is None
    until(between, "the process to be between two runs")
    (second, one), (third, other) = chosen(server), chosen(server)
    assert (second, third) == (1, 2)
    later, _ = server.asked(None)
    server.now += timeouts.INDEX_HELD + 1
    for peer in (one, other):
        server.serves(peer)
    answer = asks_again(server, later, None)
    assert "that of worker 0, which is silent, becomes free" in answer.reason
    assert isinstance(server.asked(0, given=True)[1], m.Welcome), "it is back"


def test_a_process_returns_to_its_given_index(server):
    server.dispatcher.sessions.indices.keep([1], server.now)
    _, answer = server.asked(1, given=True)
    assert isinstance(answer, m.Welcome) and answer.worker is None
    assert server.dispatcher.sessions.of(1)


@pytest.mark.parametrize("before", [1, 7], ids=["taken", "not one of this server"])
def test_a_process_whose_index_was_given_away_gets_another(server, before):
    begun(server)
    _, answer = server.asked(before, given=True)
    assert answer.worker == 2


def test_the_index_of_an_owner_that_may_reconnect_is_kept_for_a_while(server):
    indices = server.dispatcher.sessions.indices
    indices.keep(range(3), server.now)  # as where a server resumes
    assert isinstance(server.asked(None)[1], m.NotServing)
    assert isinstance(server.asked(2)[1], m.Welcome), "which its owner has"
    server.now += timeouts.INDEX_BACK + 1
    assert [chosen(server)[0] for _ in range(2)] == [0, 1]


def test_a_worker_without_an_index_is_too_late_once_all_have_left_for_good(server):
    server.dispatcher.entrance.dismiss("the run has ended (done)")
    for worker in range(3):
        server.dispatcher.sessions.series.departs(worker, b"", proven=True)
    _, answer = server.asked(None)
    assert answer.over and answer.reason == (
        "a worker without an index is too late: the run has ended (done)")


@pytest.mark.parametrize("worker", [None, 2])
def test_a_worker_that_comes_in_place_of_a_lost_one_waits_for_the_next_run(server, worker):
    server.dispatcher.entrance.dismiss("the run has ended (done)")
    for other in range(2):
        server.dispatcher.sessions.series.departs(other, b"", proven=True)
    _, answer = server.asked(worker)
    assert answer.over and answer.follows and not answer.ends


def test_a_worker_unaware_of_a_restart_causes_no_alarm(server):
    """It sends what the earlier server was to get, until it is asked to introduce itself."""
    peer = server.peer()
    peer.send(m.Fetch(1))
    peer.send(m.Heartbeat(None))
    server.hears(peer, m.Unknown)
    peer.send(m.Hello(m.PROTOCOL, 0, {}))
    assert isinstance(server.hears(peer, m.Welcome), m.Welcome)
    server.now += 60
    server.dispatcher.check_silence()
    server.dispatcher.close()
    assert not [facts for kind, facts in server.events if kind == "malformed"]
    assert not [line for line in server.said if "rejected" in line]


@pytest.mark.parametrize("later", [True, False], ids=["in time", "at the end"])
def test_messages_of_a_peer_that_never_introduces_itself_are_counted(server, later):
    peer = server.peer()
    for _ in range(3):
        peer.send(m.Heartbeat(None))
        server.hears(peer, m.Unknown)
    assert not [kind for kind, _ in server.events if kind == "malformed"], "it may still do so"
    if later:
        server.now += timeouts.INTRODUCED + 1
        server.dispatcher.check_silence()
    else:
        server.dispatcher.close()
    (count,) = [facts["count"] for kind, facts in server.events if kind == "malformed"]
    assert count == 3


# Processes between two runs of a series.

OWN = bytes(15) + b"w"


def proven(server, key, worker=0, own=OWN, **hello):
    """A peer that has proven to be the process with this key; it, and the answer."""
    peer, claim = server.peer(), Claim(lambda size: b"n" * size, key)
    message = m.Hello(m.PROTOCOL, worker, {}, own=own, **hello)
    peer.send(claim.sealed(message))
    assert claim.meets(server.hears(peer, m.Challenge))
    peer.send(claim.sealed(message))
    return peer, server.hears(peer, m.Welcome, m.Refused, m.NotServing)


def between(server):
    """A series in which worker 0 is expected to call `fit` again; the key of its process."""
    peer, welcome = server.asked(0, own=OWN)
    peer.send(m.Goodbye(again=True))
    server.serves_nobody()
    assert server.dispatcher.sessions.series.living == {0: OWN}
    return welcome.key


def test_a_server_notices_that_a_worker_has_ended_the_run_that_it_waits_for(server):
    """Another process has served it; a stranger's word does not count."""
    key = between(server)
    series = server.dispatcher.sessions.series
    series.id = "ab12"
    assert "has not served fit 1 to its end" in server.asked(0, fit=2, series=series.id)[1].reason
    assert not series.outrun
    refused = proven(server, key, fit=2, series=series.id, leaves=True)[1]
    assert "what it holds is older than the worker" in refused.reason
    assert series.outrun and not series.living, "its process ends"


def test_only_a_workers_own_process_removes_it_from_the_series(server):
    key = between(server)
    living = server.dispatcher.sessions.series.living
    assert isinstance(server.asked(0, leaves=True)[1], m.Refused) and living
    stranger, _ = server.asked(0)
    stranger.send(m.Leaving("no other fit", False, None))
    server.serves_nobody()
    assert set(living) == {0}, "another process has said so"
    peer, answer = proven(server, key, leaves=True)
    assert isinstance(answer, m.Welcome)
    peer.send(m.Leaving("no other fit", False, None))
    server.serves_nobody()
    assert not living


def test_the_process_itself_takes_its_place_from_a_stranger(server):
    key = between(server)
    server.asked(0)
    _peer, answer = proven(server, key)
    assert isinstance(answer, m.Welcome)
    assert server.dispatcher.sessions.of(0).own == OWN


def test_a_process_that_joins_while_the_run_ends_waits_until_all_have_left(server):
    key = between(server)
    server.dispatcher.entrance.dismiss("the run has ended (done)")
    late = server.asked(1)[1]
    assert late.over and late.follows and not late.ends
    series = server.dispatcher.sessions.series
    for worker in (1, 2):
        series.departs(worker, b"", proven=True)
    assert proven(server, key, leaves=True)[1].over and not series.living
    last = server.asked(1)[1]
    assert last.ends and "worker 1 is too late: the run has ended (done)" in last.reason


def test_the_end_waits_for_a_process_that_retries_until_the_end_is_certain(server):
    begun(server)
    engine = server.dispatcher.entrance._engine
    engine.done = True
    entrance = server.dispatcher.entrance
    assert isinstance(server.asked(2)[1], m.NotServing) and entrance.awaits_retry(server.now)
    assert not entrance.awaits_retry(server.now + timeouts.RETRY + 1)
    entrance.dismiss("the run has ended (done)")
    assert server.asked(2)[1].over and not entrance.awaits_retry(server.now)


def test_a_server_of_one_run_refuses_workers_that_join_while_it_ends(server):
    server.dispatcher.sessions.series.single = True
    server.dispatcher.entrance.dismiss("the run has ended (done)")
    late = server.asked(1)[1]
    assert late.over and not late.follows and "is too late" in late.reason


def test_a_fit_of_another_series_is_not_mistaken_for_the_first(server):
    answer = server.asked(0, series="cd34", fit=2)[1]
    assert isinstance(answer, m.Refused) and "begins fit 2 of another series" in answer.reason
    assert isinstance(server.asked(0, series="cd34", fit=2, anew=True)[1], m.Welcome)


@pytest.mark.parametrize("single", [False, True], ids=["a series", "one run"])
def test_an_index_belongs_to_its_process_before_a_later_server_too(single):
    written = {"id": "ab12"}
    with Server(Series(single=single), lambda **changes: written.update(changes)) as first:
        assert first.asked(None, own=b"one")[1].worker == 0
        assert first.asked(None, own=b"two")[1].worker == 1
    series = Series(single=single)
    series.restore(check_run(json.loads(json.dumps(written)), "run.json"))
    with Server(series) as later:
        assert later.asked(None, own=b"three")[1].worker == 2, "the others are expected back"
        assert isinstance(later.asked(None, own=b"four")[1], m.NotServing)
        assert later.asked(1, own=b"two")[1].worker is None, "it has that index"
        assert later.asked(None, own=b"one")[1].worker == 0, "it has missed the answer"


def test_an_index_of_a_process_that_does_not_return_becomes_free():
    series = Series()
    series.chooses(0, b"one", lambda **entries: None)
    with Server(series) as server:
        server.now = timeouts.INDEX_BACK
        assert server.asked(None, own=b"two")[1].worker == 0
        assert (series.index_of(b"two"), series.index_of(b"one")) == (0, None)


def test_a_process_waits_for_its_index_until_the_disk_has_noted_it():
    full = [OSError(28, "No space left on device")]

    def record(**changes):
        if changes and full:
            raise full[0]
        return {}

    with Server(record=record) as server:
        peer, answer = server.asked(None, own=b"one")
        assert answer.reason == ("a worker without an index waits: its index cannot be noted: "
                                 "cannot write run.json: No space left on device")
        assert not server.dispatcher.info.series.chosen, "no other server would know"
        full.clear()
        peer.send(m.Hello(m.PROTOCOL, None, {}, own=b"one"))
        assert server.hears(peer, m.Welcome).worker == 0
