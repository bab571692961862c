"""The server's side of its standby, without sockets: what it relies on, and when."""

import errno
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

from wbsp.core.engine import Engine
from wbsp.core.store import Store
from wbsp.process.host import HOST
from wbsp.ps.checkpoint.snapshots import Snapshots
from wbsp.ps.checkpoint.state import IndexOwner, RunState
from wbsp.ps.clock import Clock
from wbsp.ps.config import RunInfo, ServerConfig
from wbsp.ps.replication import primary as follower
from wbsp.ps.replication.election import rank_of
from wbsp.ps.replication.primary import Replication
from wbsp.ps.series import run_id
from wbsp.ps.sessions.data_plane import DataPlane
from wbsp.ps.sessions.handlers import Peer
from wbsp.ps.sessions.peer_log import PeerLog
from wbsp.ps.sessions.session import WorkerSession
from wbsp.sync import create
from wbsp.sync.base import Push
from wbsp.tensors.frozen import NOTHING
from wbsp.tensors.layout import TensorSpec
from wbsp.wire.liveness import WORKER, Liveness
from wbsp.wire.messages import codec as m
from wbsp.wire.proof import Challenges, Claim
from wbsp.wire.shm.lender import Lending
from wbsp.wire.shm.link import Door

STANDBY, SECRET = b"standby", bytes(32)
AGREED = {"sync": "asp", **ServerConfig(1).terms}


class Sender(Peer):
    host = "127.0.0.1"


class World:
    """A server with an engine, and what it sends to its standby."""

    def __init__(self):
        self.now, self.sent, self.said, self.events, self.noted = 0.0, [], [], [], {}
        self.full = False  # the disk
        self.clock = Clock(lambda: self.now)
        model = create("asp")
        self.engine = Engine(model, Store(np.zeros(2, np.float32)), 1)
        self.info = RunInfo(ServerConfig(1), model.rule,
                            m.RunSettings("ab12", terms={"sync": "asp"}), 1,
                              secret=SECRET)
        self.info.owners[0] = IndexOwner("ab", None)
        self.queues = SimpleNamespace(
            transfer=lambda identity, frames, now: self.sent.extend(
                m.decode(m.FromServer, head) for head, *_ in frames),
            drop_transfer=lambda identity: None)
        self.lending = Lending(None)
        self.file = SimpleNamespace(due=False, writing=False, settled=True, taken=[])
        self.file.wants = lambda now: self.file.due
        self.file.take = self.file.taken.append
        self.file.poll = lambda now: None
        self.file.write_soon = lambda: self.events.append("checkpoint soon")
        self.challenges, self.contact = Challenges(os.urandom), bytes([7]) * 32
        self.claims = {}  # of each identity
        reporter = SimpleNamespace(clock=self.clock, say=self.said.append,
                                   event=lambda kind, **fields: self.events.append(kind))
        self.log = PeerLog(reporter)
        self.replication = Replication(
            self.info, self.record, SimpleNamespace(reaches=lambda identity, message: True,
                                               contact=self.contact, challenges=self.challenges),
            self, reporter)
        self.snapshots = Snapshots(
            self.engine, lambda now: RunState(**vars(self.engine.state()), elapsed=now,
                                              places={0: IndexOwner("ab", None)}),
            [TensorSpec("x", (2,))], NOTHING, self.file, self.replication)
        self.replication.begin(self.snapshots)
        self.seq, self.members = 0, []  # sessions of workers

    def poll(self):
        self.replication.poll()
        self.snapshots.poll(self.now)

    def __iter__(self):
        return iter(self.members)

    def of(self, worker):
        return None

    def send(self, identity, message):
        self.sent.append(message)

    def record(self, **changes):
        if changes and self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.noted |= changes
        return {"id": "ab12", "epoch": 1, **self.noted}

    answer = send

    def proven(self, identity, request, *keys):
        bond = self.challenges.proven(identity, request, *keys)
        if bond is None:
            self.send(identity, self.challenges.challenge(identity, request.nonce, *keys))
        return bond

    def follow(self, settings=None, port=2607, run="", rank=0, identity=STANDBY, socket="",
               keys=None, fit=0):
        """`keys`: that the process knows; default: all."""
        claim = self.claims[identity] = Claim(os.urandom, *(keys or (SECRET, self.contact)))
        follow = m.Follow(m.PROTOCOL, settings or AGREED, port, run, rank, socket, fit=fit)
        for _ in range(2):
            self.replication.follow(Sender(identity, None), claim.sealed(follow))
            if not (isinstance(self.sent[-1], m.Challenge) and claim.meets(self.sent[-1])):
                break
        return self.sent[-1]

    def push(self):
        if not self.engine.started:
            self.engine.join(0, self.now)
        update = self.lending.pool.take(2)  # of a worker of this machine
        update[:] = 1
        self.engine.push(Push(0, self.seq, self.seq, 1, 1, 0.5), update, self.now)
        self.seq += 1

    def copies(self):
        return [one.number for one in self.sent if isinstance(one, m.Copy)]

    def lent(self):
        """The segment of the newest copy; 0: it was sent."""
        return [one for one in self.sent if isinstance(one, m.Copy)][-1].segment

    def holds_one(self):
        """The standby follows, and holds the first copy."""
        self.follow()
        self.poll()
        self.held(1)

    def held(self, number, beat=1, answered=0, chunks=0):
        proof = self.claims[STANDBY].bond.mac("held", number, beat, answered)
        self.replication.held(Peer(STANDBY, None), m.Held(number, beat, answered, proof, chunks))

    @property
    def leading(self):
        """The message to a worker that voids its vote."""
        return m.Leading(1, self.info.ticket(0))

    def in_touch(self):
        """The standby has just received a message of this server, and reports that."""
        self.held(1, beat=100)
        self.held(1, beat=101, answered=100)


def _member(**known):
    return WorkerSession(b"w", Liveness(WORKER, 0.0), 0, **known)


@pytest.fixture
def world():
    world = World()
    yield world
    world.lending.close()


def test_one_snapshot_at_a_time_holds_the_newest_version(world):
    assert isinstance(world.follow(), m.Following)
    world.poll()
    assert world.copies() == [1]
    for _ in range(3):
        world.push()
        world.poll()
    assert world.copies() == [1], "the first has not arrived"
    world.held(1)
    world.poll()
    assert world.copies() == [1, 2]
    head = [one for one in world.sent if isinstance(one, m.Copy)][-1]
    assert '"version": 3' in head.state and head.size == 2


def test_only_the_snapshot_of_the_standby_is_durable(world):
    world.follow()
    assert world.replication.alone and world.replication.settled
    world.poll()
    assert not world.replication.alone and not world.replication.settled
    assert world.engine.ledger.durable == 0
    world.held(1)
    assert world.engine.ledger.durable == world.engine.ledger.mark == 1
    assert world.replication.settled and world.noted["standby"] == "127.0.0.1:2607"
    world.push()
    assert not world.replication.settled
    with pytest.raises(m.WireError, match="snapshot 7, which was never made"):
        world.held(7)


def test_a_standby_is_in_run_json_before_it_learns_of_the_next_run(world):
    """It has come while the last files are written, and holds no version of the run."""
    world.follow()
    world.replication.end("done")
    assert world.sent[-1] == m.Over("done", False) and "standby" not in world.noted
    world.replication.end("done", follows=True)
    assert world.sent[-1] == m.Over("done", True) and world.noted["standby"] == "127.0.0.1:2607"


def test_a_standby_that_no_run_json_names_does_not_learn_of_a_next_run(world):
    world.follow()
    told, world.full = len(world.sent), True
    world.replication.end("done", follows=True)
    assert len(world.sent) == told, "it follows the next run as a new one"


def test_a_snapshot_marks_the_last_version(world):
    """A standby that serves an older snapshot readmits a worker that was given up later."""
    world.holds_one()
    assert world.replication.settled
    world.engine.done = True
    assert not world.replication.settled
    world.poll()
    assert world.copies() == [1, 2]
    world.held(2)
    assert world.replication.settled
    world.poll()
    assert world.copies() == [1, 2]


def test_a_snapshot_with_progress_is_awaited_and_one_without_is_given_up(world):
    """As over a slow line, or behind one that takes nothing: the run's end waits for it."""
    world.holds_one()
    world.push()
    world.engine.done = True
    world.poll()
    for beat in range(2, 1000):
        world.now += 1
        world.held(1, beat, beat - 1, beat // 100)
        world.poll()
        assert not world.replication.settled
    ends_alone(world, 1000)
    assert world.now > 1100
    assert "no part of a snapshot reached the standby at 127.0.0.1:2607 for 120 s" in world.said[-1]
    assert world.noted["standby"] is None and world.info.epoch == 3


def ends_alone(world, first, answers=True):
    """The standby lives, and takes nothing; `first`: number of its next sign of life."""
    for beat in range(first, first + 300):
        world.now += 1
        given_up = [one for one in world.sent if isinstance(one, m.Following)
                    and json.loads(one.run)["epoch"] == 3]
        world.held(0 if given_up else 1, beat, beat - 1 if answers else first, 10)
        world.poll()
        if world.replication.settled:
            break
    assert world.replication.settled and world.replication.alone


def test_a_finished_run_ends_without_a_standby_that_consents(world):
    """First the disk has the last version, while the standby is named; then that holds nothing any
    more; then the server is alone. So at each moment one state is the one to resume from."""
    world.holds_one()
    world.push()
    world.engine.done, file = True, world.file
    file.settled, file.due = False, True

    def write(snapshot):
        file.taken.append(snapshot.mark)
        file.due = False
    file.take = write
    world.poll()
    mark = world.engine.ledger.mark
    file.taken.clear()  # of the copy that goes nowhere
    file.due = True  # it was of before the end
    for beat in range(2, 200):
        world.now += 1
        world.held(1, beat, beat - 1, 10)
        world.poll()
    assert file.taken == [mark + 1]
    assert [json.loads(one.run)["epoch"] for one in world.sent
            if isinstance(one, m.Following)] == [1]
    file.settled = True
    world.poll()
    assert json.loads(world.sent[-1].run)["epoch"] == 3
    assert world.noted["standby"] and world.info.epoch == 1
    world.held(0, 200, 199, 10)  # from before it was asked
    assert world.info.epoch == 1
    world.held(0, 201, 200, 10)
    assert world.info.epoch == 3 and world.noted["standby"] is None
    assert world.replication.settled and world.replication.alone


def test_a_finished_run_waits_a_bounded_time_for_the_standbys_consent(world):
    world.holds_one()
    world.push()
    world.engine.done = True
    ends_alone(world, 2, answers=False)
    assert world.now > 240 and world.info.epoch == 3


def test_a_standby_that_a_snapshot_does_not_reach_is_kept_while_workers_train(world):
    """It lives, and may serve from the copy that it has: no second history begins here."""
    world.holds_one()
    world.push()
    world.poll()
    for beat in range(2, 500):
        world.now += 1
        world.held(1, beat, beat - 1)
        world.poll()
    assert not world.replication.alone and world.info.epoch == 1
    assert sum("no part of a snapshot reached" in line for line in world.said) == 4
    assert "workers keep newer pushes" in world.said[-1]
    assert world.engine.ledger.durable < world.engine.ledger.mark


def test_a_standby_with_the_final_version_learns_that_all_have_it(world):
    world.holds_one()
    world.replication.all_have_it()
    assert world.sent[-1] == m.AllHave(1)
    world.push()
    world.replication.all_have_it()
    assert world.sent.count(m.AllHave(1)) == 1, "it has not the newest"


def test_nothing_is_durable_where_a_later_server_would_not_know_of_the_standby(world):
    world.follow()
    world.full = True
    for _ in range(3):
        world.poll()
    assert world.copies() == [] and world.replication.alone
    assert world.said[-1] == "cannot write run.json: No space left on device; trying again"
    assert len(world.said) == 2, "once"
    world.full = False
    world.poll()
    assert world.copies() == [1] and world.noted["standby"] == "127.0.0.1:2607"
    assert world.engine.ledger.durable == 0
    world.held(1)
    assert world.engine.ledger.durable == 1


def test_an_interrupted_snapshot_is_sent_again(world):
    world.holds_one()
    world.push()
    world.poll()
    world.follow()  # over a new connection
    world.poll()
    assert world.copies() == [1, 2], "perhaps it arrived whole"
    world.held(1)
    world.push()
    world.poll()
    assert world.copies() == [1, 2, 2], "workers keep its pushes apart from later ones until then"
    assert world.engine.ledger.mark == 2
    world.held(2)
    world.poll()
    assert world.copies() == [1, 2, 2, 3]
    world.held(3)
    assert world.engine.ledger.durable == 3


def test_memory_of_a_snapshot_that_was_sent_twice_stays_as_it_is(world):
    """The standby may serve from that of either message."""
    world.holds_one()
    world.push()
    world.poll()
    world.follow()
    world.held(1)
    assert len(world.replication._copies[2].lent) == 2
    world.held(2)
    assert world.replication._copies[2].snapshot is None


def test_a_reconnected_standby_gets_time_for_messages_in_transit(world):
    world.now = 1000.0
    world.holds_one()
    world.push()
    world.poll()
    world.now += 1
    world.follow()  # over a new connection; it has not reported what it holds yet
    world.poll()
    assert world.replication.holder and world.info.epoch == 1, world.said[-1]


@pytest.mark.skipif(not HOST.memory.available(), reason="no shared memory on this system")
def test_a_version_that_the_standby_may_serve_from_is_not_written_to(world):
    door = Door(True)
    world.follow(socket=door.name)
    world.poll()
    assert world.lent() == 0, "no process shares W_0 yet, so it was sent"
    world.held(1)
    world.push()
    world.poll()
    second = world.lent()
    vector = door.link(second).segments[second]
    for _ in range(5):
        world.push()
    assert vector.tolist() == [1, 1], "it may have come, though the standby is silent"
    world.held(2)
    world.poll()
    assert world.lent() != second
    for _ in range(5):
        world.push()
    assert vector.tolist() == [1, 1], "it is held until the next is"
    world.held(3)
    for _ in range(9):
        world.push()
    assert vector.tolist() != [1, 1], "its memory is used again"
    door.close()


def test_a_restarted_standby_ends_its_predecessors_session(world):
    world.holds_one()
    world.in_touch()
    world.now += 1
    assert isinstance(world.follow(identity=b"another"), m.Following)
    assert world.info.epoch == 3 and "alone" in world.events
    assert world.noted == {"standby": None, "epoch": 3} and "checkpoint soon" in world.events
    assert world.replication.alone, "until it holds something"


@pytest.mark.parametrize(("run", "rank", "keys"), [
    ("", 0, None), ("", 0, ["contact"]), ("ab12", 1, None), ("ab12", rank_of(2, False), None)],
    ids=["without a state", "of a new folder", "with an older state", "having waited for the fit"])
def test_a_standby_that_returns_on_its_port_ends_the_doubt(world, inquiries, run, rank, keys):
    """As after a restart of its machine, which had a voter, too: that process votes no more."""
    world.holds_one()
    world.now = 40.0
    world.poll()
    assert world.replication.doubt
    keys = keys and [world.contact]
    assert isinstance(world.follow(port=2608, identity=b"other", keys=keys), m.NotServing)
    assert world.replication.doubt, "another port says nothing of this one"
    following = world.follow(run=run, rank=rank, identity=b"another", keys=keys)
    assert isinstance(following, m.Following) and json.loads(following.run)["epoch"] == 3
    assert world.replication.doubt is None and world.replication.alone
    assert world.said[-2].endswith("was started again") and "alone" in world.events


def test_a_standby_that_returns_without_a_version_is_continued_above(world, inquiries):
    """It waited for the fit in an epoch that this server does not reach by serving alone."""
    world.holds_one()
    world.now = 40.0
    world.poll()
    answer = world.follow(run="ab12", rank=rank_of(6, False), identity=b"another")
    assert isinstance(answer, m.Following) and json.loads(answer.run)["epoch"] == 7
    assert world.replication.doubt is None and world.info.epoch == world.noted["epoch"] == 7


def test_a_standby_that_reconnects_before_its_silence_was_noticed_is_accepted(world):
    """Its machine has lost its power, and no connection has ended."""
    world.holds_one()
    world.now = 20.0
    assert isinstance(world.follow(identity=b"another"), m.Following)
    assert world.info.epoch == 3


def test_a_standby_without_a_snapshot_proves_nothing_if_workers_know_a_later_server(
        world, inquiries):
    """For example it has served, and was restarted without --resume."""
    world.holds_one()
    world.replication.hear_of(2, 0)
    answer = world.follow(identity=b"another")
    assert isinstance(answer, m.NotServing) and "start it with --resume" in answer.reason
    assert world.replication.doubt and world.info.epoch == 1


def test_a_standby_that_returns_with_a_state_of_its_own_take_over_supersedes(world, inquiries):
    world.holds_one()
    world.now = 40.0
    world.poll()
    world.follow(run="ab12", rank=rank_of(2, True), identity=b"another")
    assert "has taken over (epoch 2, here 1)" in world.replication.superseded


def test_a_disk_that_is_full_when_the_standby_returns_delays_that_only(world, inquiries):
    world.holds_one()
    world.now = 40.0
    world.poll()
    world.full = True
    world.follow(identity=b"another")
    assert world.replication.doubt and world.info.epoch == 1
    world.full = False
    assert isinstance(world.follow(identity=b"another"), m.Following)
    assert world.info.epoch == 3


def test_the_end_of_the_run_waits_for_the_other_server_only_if_that_may_be_connecting(world):
    expected = world.replication.expected
    assert not expected(), "there has been none"
    world.replication.lost()
    world.now = 2.9
    assert expected()
    world.now = 3.0
    assert not expected()
    world.now = 2.9
    world.follow()
    assert not expected(), "it is here"


def test_where_the_run_s_time_is_set_forward_no_worker_was_silent_for_that_long(world):
    """As from workers that continued without a server, while this one waited for a shard."""
    world.replication.lost()
    world.clock.go_on(100)
    assert world.replication.expected()
    world.follow()
    world.clock.go_on(200)
    assert world.clock.run() == 200
    world.poll()
    assert world.replication.knows(STANDBY) and "standby_lost" not in world.events


class Inquiry:
    """Finds out nothing."""

    why = gone_since = None

    def __init__(self, _, host, port, *__):
        self.address = f"{host}:{port}"
        self.closed = False

    def epoch(self, now):
        return None

    def refused(self, now):
        return False

    def close(self):
        self.closed = True


@pytest.fixture
def inquiries(monkeypatch):
    monkeypatch.setattr(follower, "Inquiry", Inquiry)


def test_a_suspended_server_continues_with_its_running_standby(world, inquiries):
    """Its disk stood still, say: then it has heard nothing, and what there is to hear comes now."""
    world.holds_one()
    world.push()
    world.now = 40.0
    world.poll()
    assert world.events[-1] == "standby_lost"
    world.held(1, beat=2)  # may have lain in the socket all the time
    world.poll()
    assert world.copies() == [1]
    world.held(1, beat=3, answered=2)
    world.poll()
    assert world.copies() == [1, 2]
    world.held(2)
    assert world.replication.settled


def test_after_a_request_for_votes_the_votes_decide(world, inquiries):
    """A word of the standby that comes now may be from before it asked them itself."""
    world.holds_one()
    world.now = 40.0
    world.poll()
    world.poll()
    world.held(1, beat=2)
    world.push()
    world.poll()
    assert world.copies() == [1]
    world.replication.elected(SimpleNamespace(worker=0), m.Elected(3))
    world.now = 41.0
    world.poll()
    assert "continuing without a standby" in world.said[-1] and world.noted["epoch"] == 3


def test_the_files_content_is_durable_as_soon_as_the_standby_is_lost(world, inquiries):
    """It has the mark of a copy that the standby never held. A new one is sent the next mark at
    once: a worker that did not know of the file would keep one sum for the marks around its own."""
    world.holds_one()
    world.now = 40.0  # silent: messages do not arrive
    world.file.due = True
    world.push()
    world.snapshots.poll(world.now)
    (snapshot,) = world.file.taken
    world.file.due, world.file.poll = False, lambda now: snapshot.mark
    world.snapshots.poll(world.now)
    assert world.engine.ledger.durable < snapshot.mark, "the standby may take over"
    world.file.poll = lambda now: None
    for _ in range(2):
        world.replication.poll()
    world.replication.elected(SimpleNamespace(worker=0), m.Elected(3))
    world.replication.poll()
    assert world.replication.alone and world.engine.ledger.durable == snapshot.mark


class Refuses(Inquiry):
    """The standby's address refuses connections; to see that takes `world.takes` seconds."""

    world = None

    def refused(self, now):
        self.world.now += self.world.takes
        self.gone_since = self.world.now if self.gone_since is None else self.gone_since
        return True


@pytest.fixture
def dead(world, monkeypatch):
    """A world whose standby has ended, and it will be noticed when its silence is."""
    world.holds_one()
    world.takes = 0.0
    monkeypatch.setattr(Refuses, "world", world)
    monkeypatch.setattr(follower, "Inquiry", Refuses)
    world.replication._socket.reaches = lambda identity, message: False
    return world


def quiet(world):
    """Time passes, without a word of the standby; is the server alone then?"""
    for _ in range(12):
        world.poll()
        world.now += 0.25
    return "alone" in world.events


def test_the_standby_s_end_is_proof_while_the_two_were_in_touch_just_now(dead):
    dead.in_touch()
    assert quiet(dead)


def test_a_message_of_the_standby_is_as_old_as_the_beat_that_it_answers(dead):
    """The server was stopped for 40 s; what the standby said before that is read now."""
    dead.in_touch()
    dead.held(1, beat=102, answered=101)
    dead.now += 40
    dead.held(1, beat=103, answered=101)
    dead.held(1, beat=104, answered=101)
    assert not quiet(dead)


def test_a_message_without_a_heartbeats_number_proves_no_contact(dead):
    for beat in range(7, 12):
        dead.held(1, beat)
    dead.held(1, 12, answered=99)
    assert not quiet(dead)


def test_proof_counts_by_the_time_at_which_it_is_seen(dead):
    """The server sleeps between a look at the clock and the look at the standby's address."""
    dead.in_touch()
    dead.takes = 30.0
    assert not quiet(dead)


def waits(world, seconds, act=lambda: None):
    for _ in range(int(4 * seconds)):
        act()
        world.poll()
        world.now += 0.25
    return "alone" in world.events


@pytest.mark.parametrize("worker", [0, None], ids=["with its index", "without an index"])
def test_a_restarted_voter_counts_once_the_standby_has_ended(dead, worker):
    """Both were on one machine, which was restarted; no standby reconnects."""
    dead.now = 40.0
    assert not waits(dead, 12)
    assert waits(dead, 1, lambda: dead.replication.came(worker, b"new"))
    assert "are here, or have been started again; continuing" in dead.said[-1]


def test_a_connected_voter_of_the_standby_counts_once_that_has_ended(dead):
    """The standby was elected, and died before it served; it is not restarted."""
    def declines():
        dead.replication.elected(SimpleNamespace(worker=0), m.Elected(2))
    dead.now = 40.0
    assert not waits(dead, 4, declines), "it may know a later server, and say so now"
    assert not waits(dead, 12), "that was from before it could have known"
    assert waits(dead, 1, declines)


def test_a_voter_of_the_standby_is_no_proof_while_the_standby_may_live(world, inquiries):
    world.holds_one()
    world.now = 40.0
    assert not waits(world, 60, lambda: world.replication.elected(
        SimpleNamespace(worker=0), m.Elected(2)))


def test_a_workers_new_process_is_no_proof_while_the_standby_may_live(world, inquiries):
    world.holds_one()
    world.now = 40.0
    assert not waits(world, 60, lambda: world.replication.came(0, b"new"))


def test_a_hello_does_not_remove_a_connected_process(dead):
    dead.now = 40.0
    dead.of = lambda worker: "its session"
    dead.reaches = lambda session: True
    assert not waits(dead, 60, lambda: dead.replication.came(0, b"new"))


def test_a_worker_of_another_index_replaces_no_voter(dead):
    dead.now = 40.0
    assert not waits(dead, 60, lambda: dead.replication.came(7, b"new"))


def test_a_new_process_from_before_the_standbys_end_proves_nothing(dead):
    """The process before it may have voted for the standby, which served then."""
    dead.now = 40.0
    dead.replication.poll()
    dead.replication.came(0, b"new")
    dead.now = 41.0
    assert not waits(dead, 60)


def test_workers_that_know_a_later_server_keep_the_doubt(dead):
    dead.now = 40.0
    dead.replication.poll()
    dead.replication.hear_of(2, 0)
    assert not waits(dead, 60, lambda: dead.replication.came(0, b"new"))


def test_a_process_that_was_suspended_asks_again_before_it_takes_a_proof(dead):
    dead.in_touch()
    dead.replication.woke(dead.now)
    assert not quiet(dead)


def test_the_address_of_the_standby_is_noted_before_its_first_snapshot(world):
    """Killed at any later moment, the next server of this folder asks at the standby first."""
    world.follow()
    noted = []
    world.queues.transfer = lambda *_: noted.append(world.noted.get("standby"))
    world.poll()
    assert noted == ["127.0.0.1:2607"]


def test_votes_for_the_server_are_released_when_the_standby_reconnects(world, inquiries):
    """Else workers that were asked in vain could never promise themselves to the standby."""
    world.holds_one()
    world.members.append(_member(plane=DataPlane("TCP", 1)))
    world.now = 40.0
    world.poll()
    world.poll()
    assert m.Elect(3, 1, 0) in world.sent
    world.follow()  # over a new connection
    world.in_touch()
    assert world.leading in world.sent


def test_a_worker_that_knows_a_later_server_makes_this_one_ask(world, monkeypatch):
    monkeypatch.setattr(Inquiry, "epoch", lambda self, now: 2 if self.asked else None)
    monkeypatch.setattr(Inquiry, "asked", True, raising=False)
    monkeypatch.setattr(follower, "Inquiry", Inquiry)
    world.holds_one()
    world.replication.hear_of(2, 0)
    assert world.replication.superseded is None, "a word is no proof"
    assert "knows a server of this run of epoch 2" in world.said[-1]
    world.poll()
    assert "has taken over (epoch 2, here 1)" in world.replication.superseded


def test_no_worker_is_admitted_while_the_standby_is_silent(world, inquiries):
    """A worker's next process does not know the other server; this one admits none meanwhile."""
    world.holds_one()
    assert world.replication.doubt is None
    world.now = 40.0
    world.poll()
    assert "the standby at 127.0.0.1:2607 is silent" in world.replication.doubt
    assert world.replication.voters == {0}, "a server that resumes needs these, too"
    world.held(1, beat=2)
    world.held(1, beat=3, answered=2)
    assert world.replication.doubt is None and not world.replication.voters


@pytest.mark.parametrize(("seconds", "doubts"), [(3, False), (4, True), (40, True)])
@pytest.mark.parametrize("wakes", [True, False])
def test_after_a_silence_no_worker_is_admitted_before_the_standby_answers(
        world, wakes, seconds, doubts):
    """It may have been elected, and serve the worker's earlier process; but not once it answers."""
    world.holds_one()
    assert world.replication.doubt is None
    world.now += seconds
    if wakes:
        world.replication.woke(world.now)
    for beat in (2, 3):  # perhaps from before
        assert (world.replication.doubt is not None) == doubts
        assert not doubts or "was silent for a while" in world.replication.doubt
        world.held(1, beat=beat)
    world.held(1, beat=4, answered=2)
    assert world.replication.doubt is None


def test_a_standby_that_follows_ends_the_inquiry(world, inquiries):
    world.holds_one()
    said = len(world.said)
    for _ in range(5):
        world.replication.hear_of(2, 0)
    assert len(world.said) == said + 1, "once"
    world.now += 0.5
    world.in_touch()
    world.push()
    world.poll()
    assert world.copies() == [1, 2] and world.replication.superseded is None


def test_without_a_standby_no_process_is_asked(world):
    world.replication.hear_of(7, 3)
    assert "worker 3 knows a server of this run of epoch 7" in world.said[-1]
    assert "start that server again" in world.said[-1]
    world.poll()
    assert world.replication.superseded is None


def test_a_returned_worker_may_vote_again_once_the_standby_follows(world):
    """It may have voted for the standby, which has received this server's messages since."""
    world.holds_one()
    back = _member(attached_at=5.0)
    world.members.append(back)
    world.now = 4.0
    world.in_touch()
    assert world.leading not in world.sent
    world.now = 5.5
    world.held(1, beat=102, answered=101)
    assert world.leading not in world.sent, "the standby's word is older"
    world.held(1, beat=103, answered=102)
    world.held(1, beat=104, answered=103)
    assert world.sent.count(world.leading) == 1


@pytest.mark.parametrize("place", ["ab", "later"])
def test_a_server_after_a_take_over_asks_the_other_until_most_workers_connect(world, place,
                                                                             inquiries):
    """A process that was started again since has no vote, and takes none away."""
    world.record(beside="127.0.0.1:2606")
    world.replication.begin(world.snapshots)
    world.poll()
    world.info.owners[0] = IndexOwner(place, None)
    member = _member(plane=DataPlane("TCP", 1))
    member.returns(None, None)
    world.members.append(member)
    world.poll()
    assert world.noted["beside"] == "127.0.0.1:2606", "it does not know this server yet"
    member.may_continue(m.Reattached(1, True, 0, 0, None))
    world.full = True
    world.poll()
    assert world.noted["beside"] == "127.0.0.1:2606"
    world.full = False
    world.poll()
    assert (world.noted["beside"] is None) == (place == "ab")


@pytest.mark.parametrize("trains", [False, True])
def test_a_standby_that_has_taken_over_gives_way_to_an_elected_server(world, inquiries,
                                                                              monkeypatch, trains):
    """It was out of the workers' reach meanwhile, and has decided nothing."""
    world.record(beside="127.0.0.1:2606")
    world.replication.begin(world.snapshots)
    world.poll()
    assert world.replication.superseded is None, "nobody says that the other one serves"
    if trains:
        world.engine.start(0.0)
        world.poll()
    monkeypatch.setattr(Inquiry, "epoch", lambda self, now: 3)
    world.poll()
    assert (world.replication.superseded is None) == trains


def test_workers_are_asked_for_a_vote_with_the_servers_state_of_them(world, inquiries):
    world.push()
    world.holds_one()
    world.members.append(_member(plane=DataPlane("TCP", 1)))
    world.now = 40.0
    world.poll()
    world.poll()
    assert world.sent[-1] == m.Elect(3, 1, 1)


def test_a_second_standby_must_wait(world):
    world.follow()
    assert isinstance(world.follow(port=2608, identity=b"another"), m.NotServing)
    assert world.replication.knows(STANDBY) and not world.replication.knows(b"another")


def test_a_process_that_has_a_later_state_of_the_run_supersedes_this_server(world):
    world.follow(run="ab12", rank=rank_of(1, True, True))
    assert world.replication.superseded is None, "its state is of this epoch"
    world.follow(run="ab12", rank=rank_of(2, True))
    assert "has taken over (epoch 2, here 1)" in world.replication.superseded


@pytest.mark.parametrize(("wrong", "reason"), [
    ({"settings": {"sync": "bsp"}}, "sync is 'bsp' on the standby and 'asp' on the server"),
    ({"run": "cd34", "rank": 9}, "holds a state of run cd34, not of ab12")])
def test_a_process_that_cannot_be_the_standby_is_refused(world, wrong, reason):
    refused = world.follow(**wrong, keys=[world.contact])
    assert isinstance(refused, m.Refused) and reason in refused.reason
    assert not world.replication.knows(STANDBY)


def test_a_standby_of_an_earlier_run_learns_that_the_run_has_ended(world):
    told = world.follow(run="cd34", rank=9, keys=[SECRET])
    assert isinstance(told, m.Over) and told.follows
    assert not world.replication.knows(STANDBY)


@pytest.mark.parametrize(("change", "reason"), [
    ({}, None),
    ({"workers": "3"}, "workers is '3' on the standby and '1' on the server"),
    ({"outer": '{"name": "nesterov"}'}, "outer is "),
    ({"samples": "10"}, "samples is '10' on the standby and 'inf' on the server"),
    ({"accuracy": "0.5"}, "accuracy is '0.5' on the standby"),
    ({"workers": None}, "the server has workers='1', and the standby has none"),
    ({"sync": "bsp"}, "sync is 'bsp' on the standby and 'asp' on the server")])
def test_a_standby_checks_the_settings_it_would_serve_with(world, change, reason):
    settings = {**AGREED, **change}
    said = world.follow({name: value for name, value in settings.items() if value is not None})
    if reason is None:
        assert isinstance(said, m.Following)
    else:
        assert isinstance(said, m.Refused) and reason in said.reason
        assert "start both with the same value" in said.reason
        assert not world.replication.knows(STANDBY)


def test_the_line_names_why_a_silent_standby_does_not_serve(world, inquiries, monkeypatch):
    monkeypatch.setattr(Inquiry, "why", "it has another token")
    world.holds_one()
    for world.now in (40.0, 41.0, 52.0):
        world.poll()
    assert world.said[-1].endswith("are needed; it has another token")


def test_another_server_learns_which_process_serves(world):
    question = Claim(os.urandom, SECRET)
    world.replication.ask(Peer(b"other", None), m.Ask("ab12", question.nonce))
    assert world.sent[-1].epoch == 1
    assert question.answers(world.sent[-1].proof, "leading", 1)
    assert not question.answers(world.sent[-1].proof, "leading", 2)
    world.replication.ask(Peer(b"other", None), m.Ask("cd34"))
    assert isinstance(world.sent[-1], m.NotServing)


def test_a_server_suspended_at_a_fits_end_learns_of_the_process_that_serves_the_next(world):
    """Neither the id of another series nor a wrong number is an earlier run."""
    series = world.info.series
    series.fit, series.id, series.secret = 4, "aa00", SECRET.hex()
    world.replication._begun = False  # it waits for that fit
    for run, fit in (("aa00", 1), (run_id(SECRET.hex(), 3), 3)):
        world.replication.ask(Peer(b"other", None), m.Ask(run, bytes(32), fit))
        assert world.sent[-1].epoch == 1
    for run, fit in (("cd34", 1), ("aa00", 3), (run_id(SECRET.hex(), 3), 2), ("aa00", 0),
                     (run_id(SECRET.hex(), 5), 5)):
        world.replication.ask(Peer(b"other", None), m.Ask(run, bytes(32), fit))
        assert isinstance(world.sent[-1], m.NotServing)


def test_a_first_contact_proves_its_identity_by_token_or_user(world):
    assert isinstance(world.follow(keys=[bytes([9]) * 32]), m.Challenge)
    assert not world.replication.knows(STANDBY) and not world.said
    assert isinstance(world.follow(keys=[world.contact]), m.Following)
    assert json.loads(world.sent[-1].run)["id"] == "ab12"


def test_a_server_that_trains_continues_above_a_process_without_a_version(world):
    """Workers that were welcomed there search for its epoch; they find this server's."""
    answer = world.follow(run="ab12", rank=rank_of(6, False), keys=[SECRET])
    assert isinstance(answer, m.Following) and json.loads(answer.run)["epoch"] == 7
    assert world.replication.superseded is None
    assert world.info.epoch == world.noted["epoch"] == 7


def test_a_process_without_a_version_and_without_a_proof_raises_no_epoch(world):
    world.follow(run="ab12", rank=rank_of(6, False), keys=[world.contact])
    assert world.info.epoch == 1 and world.replication.superseded is None


def test_a_process_that_has_served_in_this_server_s_epoch_is_refused(world):
    """Its folder is a copy of this server's, so that each of the two would take the same epochs."""
    answer = world.follow(run="ab12", rank=rank_of(1, True), keys=[SECRET])
    assert isinstance(answer, m.Refused) and "a state of its own of epoch 1, in which" in (
        answer.reason)
    assert not world.replication.knows(STANDBY)
    assert isinstance(world.follow(run="ab12", rank=rank_of(1, True, True)), m.Following), (
        "it holds a copy of this server's state")


def test_of_two_processes_that_wait_for_a_fit_the_later_one_begins_it(world):
    world.replication._begun = False
    world.follow(run="ab12", rank=rank_of(2, False), keys=[SECRET])
    assert "has taken over (epoch 2, here 1)" in world.replication.superseded


def test_a_later_state_counts_with_the_run_s_secret_alone(world):
    refused = world.follow(run="ab12", rank=rank_of(4, True), keys=[world.contact])
    assert "later than this server's 1, but lacks the run's secret" in refused.reason
    assert world.replication.superseded is None
    world.follow(run="ab12", rank=rank_of(4, True), keys=[SECRET])
    assert "has taken over (epoch 4, here 1)" in world.replication.superseded


def test_only_a_proven_standby_holds_a_snapshot(world):
    world.follow()
    world.poll()
    for proof in (b"", os.urandom(32), world.claims[STANDBY].bond.mac("held", 1, 2, 0)):
        world.replication.held(Peer(STANDBY, None), m.Held(1, 1, 0, proof))
        assert isinstance(world.sent[-1], m.Unknown)
    assert world.engine.ledger.durable == 0
    world.held(1)
    assert world.engine.ledger.durable == 1


def test_a_silent_standby_without_a_snapshot_may_be_replaced(world):
    world.replication._begun = False  # there is no model yet
    world.follow()
    world.now = 1.0
    assert isinstance(world.follow(port=2608, identity=b"another"), m.NotServing)
    world.now = 2.0
    assert isinstance(world.follow(port=2608, identity=b"another"), m.Following)
    assert world.replication.knows(b"another")


def test_only_processes_that_the_copies_name_keep_the_server(world, inquiries):
    world.holds_one()
    world.now = 40.0
    world.poll()
    world.info.owners[0] = IndexOwner("a later process", None)
    world.replication.elected(SimpleNamespace(worker=0), m.Elected(3))
    assert not world.replication._election.votes.won
    world.info.owners[0] = IndexOwner("ab", None)
    world.replication.elected(SimpleNamespace(worker=0), m.Elected(3))
    assert world.replication._election.votes.won


def test_a_late_message_on_one_snapshot_does_not_cancel_the_next(world):
    """The standby has reconnected; its message on the first copy is still in transit when that copy
    is sent again."""
    world.follow()
    world.poll()
    world.follow()
    world.held(0)  # nothing yet: the rest of the first copy may be lost
    world.push()
    world.poll()
    assert world.copies() == [1, 1]
    world.held(1, beat=2)
    world.poll()
    assert world.copies() == [1, 1, 2]
    world.held(2, beat=3)
    assert world.replication.settled


# Between two fits.


def waiting(world):
    """The server waits for fit 2, and the standby follows it."""
    world.replication._begun = False
    world.info.series.fit = 2
    return world.follow()


def test_a_standby_may_begin_a_fit_that_the_server_waits_for(world):
    following = waiting(world)
    assert following.waits and world.noted["standby"] == "127.0.0.1:2607", "a later one asks there"
    world.replication.noted()
    assert isinstance(world.sent[-1], m.Recorded) and world.sent[-1].waits


def test_a_standby_does_not_begin_the_first_fit_or_a_begun_one(world):
    assert not world.follow().waits
    world.info.series.fit = 2
    assert not world.follow().waits
    assert world.replication.cleared


def test_a_standby_unknown_to_later_servers_does_not_begin_the_fit(world):
    world.full = True
    assert not waiting(world).waits


@pytest.mark.parametrize("how", ["acknowledges", "holds W_0", "is silent"])
def test_workers_are_admitted_once_the_standby_knows_that_the_fit_has_begun(world, how):
    waiting(world)
    world.now = 9.0
    world.held(0, beat=1)
    world.replication.begin(world.snapshots, anew=True)
    assert not world.sent[-1].waits and not world.replication.cleared
    world.held(0, beat=2, answered=1)  # it may have left before the server's message came
    assert not world.replication.cleared
    if how == "acknowledges":
        world.held(0, beat=3, answered=2)
    elif how == "holds W_0":
        world.poll()
        world.held(1, beat=3)
    else:
        world.now += 4.9
        assert not world.replication.cleared, "a refused connection may be its proof"
        world.now += 0.2
    assert world.replication.cleared


def test_a_standby_that_waits_for_the_next_fit_is_not_refused_as_the_server_ends_one(world):
    answer = world.follow(run=run_id(SECRET.hex(), 2), rank=5, fit=2)
    assert isinstance(answer, m.NotServing) and "has not begun yet" in answer.reason
    assert world.replication.superseded is None


@pytest.mark.parametrize(("fit", "rank", "why"), [
    (2, rank_of(1, True, True), "has a version of fit 2, and this server waits for its first one"),
    (3, rank_of(1, True, True), "is at fit 3, and this server is at fit 2"),
    (7, rank_of(1, False), "is at fit 7, and this server is at fit 2")])
def test_a_server_yields_to_a_standby_with_a_later_state_of_the_series(world, fit, rank, why):
    """Both were started again: what it holds is older, whatever the epochs are."""
    world.replication._begun = fit > 2
    world.info.series.fit = 2
    run = "ab12" if fit == 2 else run_id(SECRET.hex(), fit)
    assert isinstance(world.follow(run=run, rank=rank, fit=fit, keys=[world.contact]), (
        m.Refused, m.Following)), "a process that does not know the secret"
    assert world.replication.superseded is None
    answer = world.follow(run=run, rank=rank, fit=fit)
    if fit == 2:
        assert answer.rank == rank_of(1, False), "it continues above that epoch"
    assert why in world.replication.superseded
    assert world.noted["beside"] == "127.0.0.1:2607", "a later one asks there"
