"""Series of fits under faults, in virtual time: one server, and workers that fit several times."""

import pytest
from simulated.series_world import MOMENTS, WHOLE, Script, Series, SeriesPlan

from wbsp.sync import MODELS


@pytest.mark.parametrize("sync", MODELS)
def test_each_fit_of_a_series_has_one_model(sync, folder):
    Series(SeriesPlan(sync, WHOLE.get(sync, {}), fits=2), 0, folder).run()


@pytest.mark.parametrize("plan", [
    SeriesPlan(standby=True), SeriesPlan(shards=2), SeriesPlan(chosen=True),
    SeriesPlan(workers=1, fits=4), SeriesPlan(data=(8, 4, 3)),
    SeriesPlan(data=None, steps=5)], ids=[
    "a standby", "shards", "chosen indices", "one worker", "three epochs", "their own data"])
def test_a_series_without_a_fault_ends_with_all_models(plan, folder):
    run = Series(plan, 0, folder).run()
    assert run.codes["server"] == [0] and all(script.code == 0 for script in run.members)


@pytest.mark.parametrize("whom", ["server", "worker", "workers", "server worker", "server workers"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_death_at_a_fits_end_loses_no_fit_and_repeats_none(moment, whom, folder):
    fit = 2 if moment == "t5" else 3  # no fit follows the third one
    for seed, struck in enumerate([((moment, 1, "kill", whom),), ((moment, 1, "kill", whom),
                                                                  (moment, fit, "kill", whom))]):
        run = Series(SeriesPlan(struck=struck), seed, folder).run()
        assert run.notes["kills"] + run.notes["kill worker"] and not run.harsh


@pytest.mark.parametrize("moment", MOMENTS)
def test_between_two_fits_the_server_waits_for_disk_space(moment, folder):
    run = Series(SeriesPlan(struck=((moment, 1, "full", "server"),)), 0, folder).run()
    assert run.notes["full server"] and run.codes["server"] == [0]


def test_a_worker_that_joins_while_the_run_ends_waits_for_the_next_fit(folder):
    plan = SeriesPlan(evaluator="works", lasts=8.0, struck=(("t1", 1, "kill", "worker"),))
    run = Series(plan, 0, folder).run()
    assert [script.passed for script in run.members if script.deaths] == [{1}]


def test_a_worker_whose_server_dies_between_its_welcome_and_its_join_joins_the_next(folder):
    """Its proof and its request crossed, and each sent the other again, for ever."""
    plan = SeriesPlan(data=(24, 7, 2), fits=4, kills=1, breaks=1,
                      struck=(("t2", 3, "kill", "worker"),))
    run = Series(plan, 235, folder).run()
    assert run.world.now < 60 and run.notes["kills"] == 1


def plays(folder, plan, seeds=5):
    """Runs of a plan in which all workers end well, or are told that a folder is elsewhere; whether
    that is the case looked for is asked of all of them together, because a seed's draws change with
    the code."""
    for seed in range(seeds):
        run = Series(plan, seed, folder / str(seed)).run()
        assert all(script.code == 0 or "the folder with its final version is not here" in str(
            script.given_up) for script in run.members)
        yield run


def test_no_epoch_is_served_twice_if_both_servers_die_as_a_fit_begins(folder):
    """The only worker has no index: neither process knew which fit was next, or who else did."""
    plan = SeriesPlan(workers=1, standby=True, chosen=True, power=True, struck=(
        ("t5", 1, "kill", "standby"), ("t1", 1, "kill", "server worker"),
        ("t5", 1, "kill", "server workers")))
    assert sum(run.notes["kills"] for run in plays(folder, plan, 12)) >= 24


def test_new_processes_without_an_index_replace_those_that_a_resumed_end_awaits(folder):
    """The only worker has ended with its server, before that had noted that it has the version."""
    plan = SeriesPlan(workers=1, standby=True, chosen=True, power=True, struck=(
        ("t2", 1, "kill", "server workers"),))
    runs = [*plays(folder, plan, 12)]
    assert any("ending the run with 0 of 1 workers" in line for run in runs for line in run.said)


def test_a_version_takes_precedence_over_a_later_record_of_the_fit(folder):
    """The standby had lost its copy, and began the fit in a higher epoch than the server's."""
    plan = SeriesPlan(standby=True, workers=2, struck=(
        ("t1", 2, "kill", "server"), ("t1", 2, "kill", "standby")))
    assert all(run.notes["kills"] == 2 for run in plays(folder, plan, 8))


def test_a_server_and_a_standby_one_fit_apart_do_not_wait_for_each_other(folder):
    """The standby had died before it had kept the last version of the fit before."""
    plan = SeriesPlan(workers=1, data=(24, 7, 2), standby=True, struck=(
        ("t3", 1, "kill", "standby"), ("t3", 1, "sleep", "server"), ("t5", 2, "kill", "server")))
    assert all(run.world.now < 60 for run in plays(folder, plan))


@pytest.mark.parametrize("moment", ["t3", "t4"])
def test_a_standby_follows_to_the_next_fit_a_server_whose_disk_is_full_at_an_end(moment, folder):
    """The server refused it, because it had met the standby before that knew the run's secret; and
    that ended as the server took it for the next fit, which then waited for it in vain."""
    plan = SeriesPlan(workers=1, standby=True, fits=2, struck=(
        (moment, 1, "full", "server"), ("t0", 2, "kill", "worker")))
    for run in plays(folder, plan):
        assert run.codes == {"server": [0], "standby": [0]}
        assert not any("is not trusted" in line for line in run.said)


def test_new_processes_train_work_lost_with_server_and_standby(folder):
    """All workers had left, and waited for the final version: the run lacked work for ever."""
    plan = SeriesPlan(standby=True, period=1.0, slow=0.02, fits=2,
                      struck=(("t0", 1, "kill", "server standby"),))
    lost = 0
    for run in plays(folder, plan):
        lost += run.notes["work was lost"]
        assert not any("not trained" in line for line in run.said)
    assert lost


def test_workers_whose_last_version_was_lost_train_that_fit_again(folder):
    """The disk had not taken it, and they had gone on to the next fit: the server says so."""
    plan = SeriesPlan("ssp", {}, workers=2, kills=1, power=True, fits=2, struck=(
        ("t0", 1, "full", "server"), ("t1", 1, "kill", "server")))
    assert sum(run.notes["a last version was lost"] for run in plays(folder, plan))


def test_a_worker_whose_fit_ends_between_its_welcome_and_its_join_skips_it(folder):
    plan = SeriesPlan(workers=2, fits=2, slow=0.3, struck=(("t0", 1, "kill", "worker"),))
    runs = [*plays(folder, plan)]
    assert any("connecting again for the server's next one" in line
               for run in runs for line in run.said)
    assert all([1] in [sorted(script.passed) for script in run.members] for run in runs)


def test_a_process_that_joins_as_its_server_dies_at_a_fits_end_is_expected(folder):
    """The next server's checkpoint has the end, and run.json expects no further fit."""
    plan = SeriesPlan(workers=1, standby=True, period=0.1, fits=2, slow=0.3, struck=(
        ("t0", 1, "kill", "workers"), ("t1", 1, "kill", "server")))
    assert all(run.members[0].passed == {1} for run in plays(folder, plan))


def test_a_server_asks_the_standby_that_has_begun_the_next_fit(folder):
    """The standby held no version of the fit before, and was in no run.json: both served."""
    plan = SeriesPlan("ringmaster", {"r": 1000}, workers=2, standby=True, period=0.1, kills=2,
                      evaluator="works", fits=4, lasts=2.0,
                      struck=(("t4", 2, "kill", "server"),))
    for seed in (11, 16, 59):
        run = Series(plan, seed, folder / str(seed)).run()
        assert all(script.code == 0 for script in run.members)


@pytest.mark.parametrize("moment", ["t2", "t3"])
def test_a_fit_has_ended_if_its_server_dies_before_recording_that(moment, folder):
    """Its standby has begun the next fit, and kept nothing of this one: its disk was full."""
    plan = SeriesPlan(workers=1, standby=True, slow=0.3, struck=(
        (moment, 2, "full", "standby"), (moment, 2, "kill", "server")))
    said = [line for run in plays(folder, plan, 6) for line in run.said]
    assert any("cannot keep the last version of fit 2" in line for line in said)
    assert any("its run has ended, and another has begun" in line for line in said)


def test_new_processes_replace_ended_ones_after_both_servers_died(folder):
    """They have no index, and were counted together with the processes that they had replaced."""
    plan = SeriesPlan("localsgd", {}, workers=2, data=(8, 4, 2), standby=True, chosen=True,
                      period=0.1, kill_workers=1, leaves=1, breaks=2, slow=0.0, drift=0.02,
                      evaluator="works", fits=4, lasts=8.0,
                      struck=(("t1", 4, "sleep", "server worker"),
                              ("t4", 1, "kill", "server standby"), ("t4", 3, "full", "server")))
    for seed in (1, 2, 3):
        Series(plan, seed, folder / str(seed)).run()


def test_a_standby_suspended_during_a_fit_does_not_end_the_previous_fit_again(folder):
    """Its server began and trained the next fit meanwhile, and died: workers prove that."""
    plan = SeriesPlan("ringmaster", {"r": 1000}, data=(24, 4, 2), standby=True, period=1.0,
                      sleeps=1, evaluator="works", fits=4, lasts=8.0,
                      struck=(("t1", 2, "kill", "server"),))
    run = Series(plan, 11000207, folder).run()
    assert all(script.code == 0 for script in run.members)
    assert any("begins fit 3, and the state here is of fit 1" in line for line in run.said)


class Forgets(Series):
    """The disk of a server that dies loses the newest fit."""

    def dies(self, name):
        super().dies(name)
        names = self.machines[name].names
        for path in [path for path in names if "/run-002/" in path]:
            del names[path]


def test_a_server_whose_workers_have_ended_a_fit_that_it_lacks_ends_with_a_code(folder):
    run = Forgets(SeriesPlan(fits=2, hours=0.02, struck=(("t1", 2, "kill", "server"),)), 0, folder)
    run.harsh = True  # a fit is missing at the end
    run.run()
    assert {*run.codes["server"]} == {1} and all(script.code == 0 for script in run.members)
    assert any("workers have ended fit 2, and its final version is not here" in line
               for line in run.said)


def test_a_server_of_one_run_refuses_the_next_fit_in_one_line(folder):
    run = Series(SeriesPlan(one_run=True), 0, folder).run()
    assert run.codes["server"] == [0]
    for script in run.members:
        assert script.code == 1 and script.fit == 2 and "\n" not in str(script.given_up)


def test_a_restarted_server_of_one_run_refuses_workers_whose_fit_has_ended(folder):
    """They began its next run, together with workers restarted in their first fit."""
    plan = SeriesPlan(workers=2, one_run=True, struck=(("t4", 1, "kill", "server worker"),))
    runs = [Series(plan, seed, folder / str(seed)).run() for seed in range(4)]
    refused = [script for run in runs for script in run.members
               if "whose only run has ended" in str(script.given_up)]
    assert refused and all(script.code == 1 and script.fit == 2 for script in refused)


def test_a_server_does_not_wait_for_workers_ended_by_a_signal_at_their_fits_end(folder):
    """The only one is told of the end, and leaves by SIGTERM: what it would begin is missing."""
    plan = SeriesPlan("ringmaster", {"r": 1000}, workers=1, data=(24, 7, 1), chosen=True,
                      period=1.0, leaves=2, breaks=2, sleeps=1, slow=0.02, fits=2)
    run = Series(plan, 620191, folder).run()
    assert run.left_behind and run.codes == {"server": [0]} and run.members[0].code == 1
    assert any("missing at the end: worker 0 (interrupted by SIGTERM)" in line
               for line in run.said)


@pytest.mark.parametrize(("files", "fits"), [
    ({"slow": 0.3}, []), ({"slow": 0.0, "evaluator": "works", "lasts": 2.0}, [2])],
    ids=["as the run is noted as ended", "as the model is saved"])
def test_a_worker_that_joins_during_the_last_files_is_told_at_once(
        files, fits, folder, monkeypatch):
    """A signal has ended its process in the last step. Its next process got no answer, or was to
    ask again, and looked for a server until its patience was over. It waits for the next fit as
    long as it can be noted."""
    def batches(script, worker, share, real=Script._batches):
        for number, batch in enumerate(real(script, worker, share)):
            if (script.fit, script.lives, number) == (1, 1, 11):
                script.signal()
            yield batch
    monkeypatch.setattr(Script, "_batches", batches)
    plan = SeriesPlan(workers=1, data=(48, 4, 1), fits=2, speeds=(0.3,), reborn=(0.05, 0.05),
                      **files)
    for seed in range(3):
        run = Series(plan, seed, folder / str(seed)).run()
        assert run.left_behind and run.codes == {"server": [0]} and run.world.now < 60
        [script] = run.members
        assert sorted(script.models) == fits
        assert bool(fits) != ("is too late: the run has ended" in str(script.given_up))


@pytest.mark.parametrize(("plan", "seed"), [
    (SeriesPlan(workers=1, data=(45, 4, 1), leaves=1, sleeps=2, slow=0.3, fits=2), 7001939),
    (SeriesPlan(workers=2, steps=5, data=None, standby=True, period=0.1, kill_workers=1, slow=0.0,
                evaluator="works", fits=4, lasts=2.0,
                struck=(("t4", 3, "kill", "server"), ("t2", 1, "kill", "server"),
                        ("t2", 4, "kill", "server workers"))), 8001103),
    (SeriesPlan("localsgd", {}, workers=1, data=(8, 7, 1), period=1.0, leaves=2, cuts=2, sleeps=1,
                evaluator="works", fits=2, lasts=0.5,
                struck=(("t2", 1, "kill", "workers"), ("t5", 2, "kill", "server workers"))),
     9000211),
    (SeriesPlan("ringmaster", {"r": 1000}, workers=1, data=(8, 7, 1), period=1.0, kill_workers=3,
                leaves=2, evaluator="works", lasts=8.0,
                struck=(("t0", 1, "kill", "server workers"), ("t5", 2, "kill", "worker"),
                        ("t2", 1, "kill", "server"))), 9002199),
    (SeriesPlan(period=1.0, kills=1, struck=(("t4", 1, "full", "server"),)), 7220152),
    (SeriesPlan("elasticbsp", {}, workers=2, data=(8, 4, 2), standby=True, chosen=True, period=0.1,
                kill_workers=1, fits=2, struck=(("t0", 1, "kill", "workers"),)), 7240009),
    (SeriesPlan("ringmaster", {"r": 1000}, workers=1, data=(24, 4, 2), standby=True, chosen=True,
                period=0.1, power=True, slow=0.3, evaluator="works", fits=2, lasts=2.0,
                struck=(("t0", 2, "kill", "server workers"), ("t0", 1, "kill", "workers"),
                        ("t2", 1, "kill", "server standby"))), 60007567),
    (SeriesPlan("wbsp", {}, workers=2, data=(45, 7, 2), chosen=True, evaluator="works", lasts=0.5,
                struck=(("t2", 2, "kill", "server workers"), ("t1", 3, "kill", "server worker"))),
     60009455),
    (SeriesPlan("ringmaster", {"r": 1000}, workers=2, standby=True, period=1.0, slow=0.0, fits=4,
                struck=(("t3", 2, "kill", "workers"), ("t5", 3, "full", "server"),
                        ("t1", 4, "kill", "server standby"))), 61006527),
], ids=["returns while the last files are written", "server dies as its evaluator writes",
        "returns while the evaluator saves the model", "returns to the next server",
        "does not begin on a full disk", "waits for an index as the run ends",
        "returns to a server that is resumed at the end", "has said that it ends, and is killed",
        "is with workers alone behind a full disk"])
def test_a_fixed_fault_of_a_series_stays_fixed(plan, seed, folder):
    Series(plan, seed, folder).run()
