"""Events that peers cause are printed in one line each, at a limited rate."""

from types import SimpleNamespace

import pytest

from wbsp.core.engine import BEFORE, Engine
from wbsp.core.stats import OTHERS, REASONS, AnsweredWork, Member
from wbsp.core.store import Store
from wbsp.ps.sessions.peer_log import AT_ONCE, PeerLog
from wbsp.ps.sessions.session import WorkerSession
from wbsp.sync import create
from wbsp.wire.liveness import WORKER, Liveness
from wbsp.wire.messages import codec as m

FORGED = "\x1b[2J\n[    1.0s] worker 0: this line is of no server\u2028"


class Told:
    def __init__(self):
        self.now, self.lines, self.events = 0.0, [], []
        self.log = PeerLog(SimpleNamespace(say=self.lines.append, event=self.event,
                                           clock=SimpleNamespace(now=lambda: self.now)))

    def event(self, kind, **facts):
        self.events.append((kind, facts))


def test_a_flood_of_one_cause_leaves_the_others_their_lines_and_is_counted():
    told = Told()
    for number in range(10_000):
        told.now += 0.001
        told.log.tell("worker 1", f"worker 1 joined {number}", "joined", worker=1)
        told.log.flush()
    assert len(told.lines) < AT_ONCE + 10 + 5 and len(told.events) < AT_ONCE + 10 + 5
    told.log.tell("worker 2", "worker 2 joined")
    assert told.lines[-1] == "worker 2 joined"
    told.log.flush(at_once=True)
    left = sum(facts["count"] for kind, facts in told.events if kind == "left_out")
    assert left + len([1 for kind, _ in told.events if kind == "joined"]) == 10_000
    assert "worker 1: " in told.lines[-1] and "suppressed" in told.lines[-1]


def test_text_of_a_peer_is_one_printable_line():
    told = Told()
    told.log.tell("a peer", FORGED + 5000 * "x")
    told.log.count(FORGED)
    assert len(told.lines) == 2
    for line in told.lines:
        assert line.isprintable() and len(line) < 500


def test_reasons_of_rejections_are_those_the_server_gave():
    """A worker that names them after a restart of its server repeats the given ones only."""
    engine = Engine(create("asp"), Store(None))
    engine.members[1] = Member()
    engine.members[1].rejected["late"] = 1
    engine.resend(0, AnsweredWork(0, 9, 10, 10, 1.0, 0, {"late": 2, "not finite": 3, FORGED: 4}),
                  None, 1.0)
    assert engine.members[0].rejected == {"late": 2, "not finite": 3, BEFORE: 4}


def test_the_number_of_distinct_reasons_is_bounded():
    work = AnsweredWork(0, 0, 1, 1, 1.0, 0, {"0": 1})
    member = Member()
    for number in range(1, 1000):
        one = AnsweredWork(number, number, 1, 1, 1.0, 0, {str(number): 1})
        work = work.then(one)
        member.count_all(one)
    assert len(work.rejected) == len(member.rejected) == REASONS
    assert sum(work.rejected.values()) == 1000 and member.rejected[OTHERS] == 999 - REASONS + 1
    assert m.decode(m.FromWorker, m.encode(m.Kept(work, 0, 5)))


@pytest.mark.parametrize("work, answered", [
    (AnsweredWork(0, 3, 4, 4, 1.0, 0, {}), 3), (AnsweredWork(2, 1, 4, 4, 1.0, 0, {}), 9),
    (AnsweredWork(0, 1, 1, 1, 1.0, 0, {"late": 3}), 2),
    (AnsweredWork(0, 1, 1 << 41, 1, 1.0, 0, {}), 2)])
def test_a_sum_that_no_worker_can_have_is_refused(work, answered):
    session = WorkerSession(b"x", Liveness(WORKER, 0.0), 1)
    with pytest.raises(m.WireError, match="impossible"):
        session.check_kept(SimpleNamespace(work=work), answered)
