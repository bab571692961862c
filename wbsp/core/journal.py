"""Decisions in the words of the run's log, and the engine's state in those of a checkpoint."""

from __future__ import annotations

from collections import Counter
from copy import copy
from typing import TYPE_CHECKING, Any

from wbsp.core.decisions import Accepted, Committed, Record, Rejected, Resent
from wbsp.core.effects import Ack
from wbsp.core.rendezvous import Gathering
from wbsp.core.stats import COUNTED, Member
from wbsp.core.store import Ledger
from wbsp.sync.base import Push

if TYPE_CHECKING:
    from wbsp.core.engine import Engine


def event_of(record: Record, push: Push | None, version: int, merged: int,
             mark: int) -> tuple[str, dict[str, Any]] | None:
    """Kind and fields of the event that tells a record; None for a record that is not told.

    push: which the record is about; version: the newest; merged: updates in the one committed
    """
    if isinstance(record, Committed):
        return "commit", {"version": record.version, "merged": merged}
    if isinstance(record, Resent):
        return "resent", {"worker": record.worker, **record.work._asdict(), "mark": mark,
                          "version": version}
    if push is None or not isinstance(record, Accepted | Rejected):
        return None
    who = {"worker": push.worker, "seq": push.seq, "base": push.base_version}
    work = {"steps": push.steps, "samples": push.samples, "seconds": push.seconds}
    if isinstance(record, Accepted):
        return "accept", {**who, "version": version, **work, "weight": record.weight}
    return "reject", {**who, "reason": record.reason, **work, "version": version}


def state_of(engine: Engine) -> dict[str, Any]:
    """What to go on from beside the newest version's tensors, fit for JSON."""
    ledger, members = engine.ledger, engine.members
    awaited = engine.gathering.awaited
    if engine.started:
        awaited = {w for w, m in members.items() if not engine.done and (m.active or m.finished)}
    return {"version": engine.store.latest.version, "next_seq": ledger.state(),
            "mark": ledger.mark,
            "answers": {worker: [ack.seq, ack.accepted, ack.reason, ack.weight, ack.mark]
                        for worker, ack in ledger.answers().items()},
            "awaited": None if awaited is None else sorted(awaited),
            "ended": engine.done,
            "owed": sorted(w for w, m in members.items() if engine.done and m.finished),
            "totals": [engine.steps, engine.samples],
            **{name: {w: copy(getattr(m, name)) for w, m in members.items()}
               for name in COUNTED}}


def restore(engine: Engine, state: dict[str, Any]) -> None:
    """Have `engine` go on from a `state` that may have been JSON, or lack what an older release
    left out."""
    next_seq = {int(worker): seq for worker, seq in state["next_seq"].items()}
    answers = {}
    for worker, (seq, accepted, reason, weight, mark) in state.get("answers", {}).items():
        answers[int(worker)] = Ack(int(worker), seq, accepted, reason, weight=weight, mark=mark)
    engine.ledger = Ledger(next_seq, answers, state.get("mark", 0))
    engine.gathering = Gathering(engine.gathering.expected, state.get("awaited"),
                                 state.get("ended", False), state.get("owed"))
    engine.steps, engine.samples = state["totals"]
    for name in COUNTED:
        for key, value in state.get(name, {}).items():
            member = engine.members.setdefault(int(key), Member())
            setattr(member, name, Counter(value) if name == "rejected" else value)
