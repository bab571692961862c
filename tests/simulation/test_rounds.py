"""Servers that die and connections that break at any moment: pushes keep the weights of their
rounds, a query has one decision, and every worker joins."""

from collections import Counter
from dataclasses import replace

import pytest
from simulated.cluster import Cluster
from simulated.plan import Plan

from wbsp.core.agent import CutQuery
from wbsp.core.rendezvous import Rendezvous
from wbsp.sync.esync import ESync
from wbsp.wire.messages import codec as m

SEEDS = 8
# Workers are back before a server gives them up.
RESTARTS = Plan(kills=3, breaks=4, period=0.1, outage=(0.05, 0.5), speeds=(0.03, 0.1))


def weights(plan, seed, folder):
    """Of all pushes of a run whose workers make as many steps each."""
    run = Cluster(plan, seed, folder / str(seed))
    for member in run.members:
        member.steps = 12
    assert run.run().notes["kills"] and not run.harsh
    return {weight for member in run.members for weight in member.weights.values()}


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("sync, options, part", [
    ("bsp", {}, 1), ("localsgd", {"tau": 3}, 1), ("lbbsp", {}, 1 / 128)])
def test_pushes_keep_their_rounds_whenever_the_server_dies(sync, options, part, workers, folder):
    """Also between two answers of a round, and where connections break while the next one answers:
    each push has its weight of 1 / N, under lbbsp that of one of 128 N examples."""
    plan = replace(RESTARTS, sync=sync, options=options, workers=workers)
    for seed in range(SEEDS):
        assert weights(plan, seed, folder) == {part / workers}


def test_a_round_that_forgets_who_is_in_mid_step_is_found(folder, monkeypatch):
    monkeypatch.setattr(Rendezvous, "is_busy", lambda self, worker: None)
    plan = replace(RESTARTS, sync="bsp")
    assert any(weights(plan, seed, folder) != {1 / 3} for seed in range(12))


def test_a_cut_query_is_decided_once_and_its_answer_repeated(folder, monkeypatch):
    """Also where the connection breaks between the two."""
    heard, asked = [], Counter()
    monkeypatch.setattr(ESync, "query", lambda self, *args, real=ESync.query: (
        heard.append(args), real(self, *args))[1])
    for seed in range(SEEDS // 2):
        run = Cluster(Plan("esync", breaks=9, storm=0.03, steps=20), seed, folder / str(seed))

        def counts(process, frames, seed=seed, sent=run.laws.sent):
            sent(process, frames)
            if process.name[0] == "w":
                message = m.decode(m.FromWorker, bytes(frames[0]))
                if isinstance(message, CutQuery):
                    asked[seed, process.name, message.number] += 1
        run.world.on_send = counts
        run.run()
    assert len(heard) == len(asked) > 50
    assert asked.total() > len(asked), "none was asked again"


@pytest.mark.parametrize("messages", range(12))
def test_a_connection_may_break_at_each_message_of_the_beginning(messages, folder):
    """A message to a worker that joins is repeated."""
    run, seen = Cluster(Plan("wbsp", workers=1), 0, folder), []

    def breaks(process, frames, sent=run.laws.sent):
        sent(process, frames)
        seen.append(process)
        if len(seen) == messages + 1:
            run.world.after(0.0, run.break_connection)
    run.world.on_send = breaks
    assert run.run().notes["breaks"] == 1 and run.members[0].lives == 1
