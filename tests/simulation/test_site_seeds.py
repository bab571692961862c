"""Sites under faults, in virtual time: `WBSP_SITE_RUNS=2000` plays so many
seeds, half of them on shared data."""

import os
from dataclasses import replace

import pytest
from simulated.site_world import Sites, SitesPlan, drawn

from wbsp.core.site.work import SiteLedger
from wbsp.core.work_ledger import WorkLedger
from wbsp.site.upstream import Upstream
from wbsp.tensors.site_progress import SiteProgress

RUNS = int(os.environ.get("WBSP_SITE_RUNS", "8"))


@pytest.mark.parametrize("data", [None, (60, 4, 2)], ids=["their own data", "shared data"])
@pytest.mark.parametrize("above, inside", [("bsp", "bsp"), ("pcc", "asp"), ("nbsync", "pcc"),
                                           ("esync", "bsp"), ("asp", "localsgd")])
@pytest.mark.parametrize("standby", [False, True])
def test_sites_without_a_fault_end_with_one_model(above, inside, standby, data, folder):
    Sites(SitesPlan(above, inside, sites=3, standby=standby, data=data), 0, folder).run()


@pytest.mark.parametrize("seed", range(2))
def test_a_standby_takes_over_the_last_site_of_a_run(seed, folder):
    """The server above does not end the run when it replaces the last worker that it has."""
    run = Sites(SitesPlan("bsp", "asp", steps=80, standby=True), seed, folder)
    for site, most in zip(run.sites, (run.plan.steps, 1), strict=True):
        for member in site.members:
            member.steps = most
    run.when("top: .*worker 1 left: finished", lambda: run.kill("site0"))
    run.run()
    assert run.notes["kills"] == 1 and not run.late


@pytest.mark.parametrize("data", [False, True], ids=["their own data", "shared data"])
def test_no_law_of_sites_is_broken(data, folder):
    failed = []
    for seed in range(RUNS // 2):
        plan = drawn(seed, data)
        try:
            Sites(plan, seed, folder).run()
        except Exception as error:
            failed.append(f"seed {seed}, {plan}: {error!r}")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("seed", [
    pytest.param(500489, id="a site is started again behind its own ended run"),
    pytest.param(601702, id="a site that has finished returns to a server that lacks examples"),
    pytest.param(800225, id="a server above and a finished site die within a checkpoint period"),
    pytest.param(7001978, id="a site without examples adopts over what is pending"),
    pytest.param(5020366, id="a server above is started again behind its own ended run"),
    pytest.param(810183, id="a server above dies before it says what it lacks")])
def test_deaths_at_the_end_of_a_run_of_sites_break_no_law(seed, folder):
    Sites(replace(drawn(seed), readers=0, validates=False), seed, folder).run()


@pytest.mark.parametrize(("seed", "plan"), [
    pytest.param(51000438, SitesPlan(
        "pcc", "esync", kills=3, breaks=1, cuts=2, slow=0.02, data=(45, 7, 1), kill_workers=2,
        ends=(("farewell", "site top"),)), id="a resume undid it"),
    pytest.param(53000070, SitesPlan(
        "asp", "pcc", standby=True, kills=1, cuts=2, isolations=2, storm=0.03, slow=0.02,
        period=1.0, data=(60, 7, 1), validate="wait", kill_workers=2, top_standby=True,
        ends=(("left", "site"), ("final", "site worker"))), id="the standby had not heard of it"),
    pytest.param(60002642, SitesPlan(
        "pcc", "wbsp", steps=4, standby=True, kills=2, breaks=2, isolations=2, data=(60, 4, 1),
        kill_workers=2, ends=(("final", "site top"), ("goodbye", "site top"))),
        id="its worker had heard that it counts"),
    pytest.param(64002138, SitesPlan(
        "esync", "bsp", sites=3, workers=1, standby=True, kills=2, isolations=1, slow=0.3,
        period=0.1, data=(24, 7, 1), validate="wait", kill_waiting=1),
        id="the standby has begun without it"),
    pytest.param(60004018, SitesPlan(
        "ssp", "dssp", sites=3, standby=True, kills=2, cuts=2, period=1.0, top_standby=True,
        ends=(("goodbye", "top"), ("left", "top"))), id="its site and the log above are dead")])
def test_a_push_that_is_undone_while_its_worker_is_dead_counts_for_nobody(seed, plan, folder):
    Sites(plan, seed, folder).run()


def test_a_standby_ends_with_0_beside_a_server_above_that_lacks_examples(folder):
    plan = SitesPlan("localsgd", "ksync", options={"tau": 2}, steps=4, standby=True, kills=3,
                     kill_top=2, breaks=2, cuts=1, isolations=2, slow=0.3, data=(60, 7, 1),
                     top_standby=True, ends=(("left", "site top"),))
    Sites(plan, 64000298, folder).run()


def test_a_resumed_server_above_awaits_a_site_whose_next_process_was_about_to_join(folder):
    """The checkpoint was of this moment: the run ended with the other site, and without this one.
    """
    run = Sites(SitesPlan("esync", "nbsync", steps=4, standby=True, kills=3, kill_top=1, cuts=2,
                          isolations=2, slow=0.3, data=(60, 1, 2),
                          ends=(("left", "site top"), ("left", "site"))), 13001886, folder).run()
    assert not run.late


@pytest.mark.parametrize("seed", [
    pytest.param(11005462, id="a site keeps versions from above beside its own of these numbers")])
def test_versions_read_at_sites_are_the_runs_versions(seed, folder):
    Sites(drawn(seed), seed, folder).run()


def test_another_worker_validates_in_place_of_a_dead_one(folder):
    """The next process of its index counted as the one that validated, for ever."""
    plan = SitesPlan(sites=1, data=(24, 4, 3), validate="wait", validates=True, kill_validators=2,
                     patience=300.0)
    assert sum(Sites(plan, seed, folder).run().notes["kill_workers"] for seed in range(3)) >= 3


@pytest.mark.parametrize("plan", [
    SitesPlan("nbsync", "localsgd", workers=1, data=(45, 1, 2), kill_validators=2),
    SitesPlan("asp", "asp", data=(24, 4, 3), kill_validators=3, storm=0.02, kills=1),
    SitesPlan("asp", "asp", workers=1, data=(24, 4, 2), kill_asking=1)],
    ids=["its only worker", "it is started again", "its site reads the version"])
def test_no_site_is_waited_for_that_validates_no_more(plan, folder):
    plan = replace(plan, validate="wait", validates=True, patience=400.0)
    for seed in (0, 14, 17):
        Sites(plan, seed, folder).run()


def test_all_sites_hear_the_results_of_epochs_which_others_have_trained(folder):
    """A site that had not heard that an epoch is complete dropped its results: law 26."""
    plan = SitesPlan("pcc", "asp", sites=3, workers=1, data=(60, 4, 6), validates=True)
    for seed in range(3):
        assert Sites(plan, seed, folder).run().notes["validations"]


class LosesAMachine(Sites):
    """All workers of the site that validates first die at once, and are back after 8 seconds."""

    def validates(self, member):
        for one in member.cluster.members if not self.notes["kill_workers"] else ():
            one.process.kill()
            one.joined = None
            one.deaths.append(self.world.now)
            self.world.after(8.0, one.start)
        self.notes["kill_workers"] += 1


def test_no_site_is_waited_for_whose_workers_have_all_died(folder):
    """One of them validated, and another waited to: that one counted as its successor."""
    plan = SitesPlan("asp", "asp", data=(24, 4, 2), validate="wait", validates=True,
                     kill_validators=1, patience=100.0)
    for seed in range(3):
        LosesAMachine(plan, seed, folder).run()


@pytest.mark.long
def test_a_worker_whose_next_process_comes_as_its_site_ends_may_be_late(folder):
    """The site's server died before it was told so, and the next one ended at once."""
    plan = SitesPlan("localsgd", "ssp", {"tau": 3}, sites=3, workers=1, steps=25, kills=3, breaks=3,
                     sleeps=2, storm=0.03, data=(200, 1, 2), kill_workers=2, kill_validators=1,
                     ends=(("final", "site top"), ("goodbye", "site top")), validates=True)
    run = Sites(plan, 42000024, folder).run()
    assert any(member.given_up for member in run.members)


def test_the_last_version_of_a_site_is_that_of_the_run_above(folder):
    """Its workers finish before other sites', and it takes another version from above then."""
    plan = SitesPlan("pcc", "ssp", sites=3, workers=1, readers=2, period=0.1)
    for seed in range(5):
        run = Sites(plan, seed, folder).run()
        assert [one[3] for one in run.readers[0].read[-1:]] == [True]


def test_a_site_holds_what_it_is_given_after_a_withdrawal(folder):
    """Both were repeated over a new connection, in another order: no worker had these examples."""
    Sites(SitesPlan("bsp", "nbsync", workers=1, steps=4, standby=True, sleeps=1, storm=0.01,
                    period=1.0, data=(200, 4, 2)), 7100122, folder).run()


def early(monkeypatch):
    """A cut leaves before a checkpoint holds it."""
    real = Upstream._hold

    def held(self, cut):
        real(self, cut)
        self._mark = -1
    monkeypatch.setattr(Upstream, "_hold", held)


def forgotten(monkeypatch):
    """A cut that the server above lacks is no progress again."""
    monkeypatch.setattr(SiteProgress, "take_back", lambda self: setattr(self, "cut", None))


def doubled(monkeypatch):
    """A cut that the server above has is progress again."""
    real = Upstream._settle_cut
    monkeypatch.setattr(Upstream, "_settle_cut", lambda self, due: real(
        self, due - (self._progress.cut is not None and due == self._known.next_seq)))


def dropped(monkeypatch):
    """A version from above replaces what the site has not cut."""
    real = SiteProgress.adopt
    monkeypatch.setattr(SiteProgress, "adopt", lambda self, above, x, drop=False: real(
        self, above, x, True))


def forgets_positions(monkeypatch):
    """A cut names what the site has accepted since it began, but for one worker's push."""
    real = SiteLedger.cut
    monkeypatch.setattr(SiteLedger, "cut", lambda self: real(self)[1:] or real(self))


def claims_all(monkeypatch):
    """A site that returns holds what it claims, whoever has that now."""
    monkeypatch.setattr(WorkLedger, "owns_all", lambda *_: True)
    lost = WorkLedger.lost

    def keeps(self, worker):
        held = [*self._holders[worker].held] if worker in self._holders else []
        lost(self, worker)
        if held:
            self._holders[worker].held = held
    monkeypatch.setattr(WorkLedger, "lost", keeps)


@pytest.mark.parametrize("standby", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize(("fault", "first"), [  # where it is found soon; seeds change with the code
    (early, 48), (forgotten, 0), (doubled, 0), (dropped, 0), (claims_all, 11),
    pytest.param(forgets_positions, 0, marks=pytest.mark.long)])
def test_a_planted_fault_of_sites_is_found(fault, first, standby, folder, monkeypatch):
    fault(monkeypatch)
    data = (60, 4, 2) if fault in (forgets_positions, claims_all) else None
    patience = 300.0 if data else 3600.0  # without a position the run does not end
    for seed in range(first, first + 200):
        plan = SitesPlan("asp", "asp", standby=standby, kills=2, steps=25, slow=0.02, data=data,
                         patience=patience)
        try:
            Sites(plan, seed, folder).run()
        except AssertionError:
            return
    pytest.fail("no seed finds it")


def test_a_site_waits_for_the_server_above_and_answers_its_workers_meanwhile(folder):
    run = Sites(SitesPlan(sites=1, workers=1, steps=4), 3, folder)
    run.processes["top"].kill()
    run.world.after(20.0, lambda: run.start_top(resume=False))
    run.run()
    assert any("site0: " in line and "waiting for the server at top:" in line for line in run.said)
    assert run.members[0].lives == 1  # its site's silence would have ended it
