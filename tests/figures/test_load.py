"""Statistics of runs, computed before anything is drawn."""

from dataclasses import replace

import pytest

from wbsp.figures.__main__ import main
from wbsp.figures.load import by_group, gather


def test_runs_that_differ_by_the_seed_form_one_group(make_run):
    statistics = gather([make_run("a", "wbsp", 0), make_run("b", "wbsp", 1),
                         make_run("c", "bsp", 0)])
    assert {group: len(members) for group, members in by_group(statistics).items()} == {"wbsp": 2,
                                                                                  "bsp": 1}
    assert [one.name for one in statistics] == ["wbsp #1 (seed 0)", "wbsp #2 (seed 1)", "bsp"]


def test_a_group_names_the_settings_that_distinguish_it(make_run):
    statistics = gather([make_run("a", "ssp", options={"s": 3}),
                         make_run("b", "ssp", options={"s": 10}),
                    make_run("c", "bsp")])
    assert [one.group for one in statistics] == ["ssp s=3", "ssp s=10", "bsp"]


def test_an_unequal_comparison_shows_in_the_names(make_run):
    statistics = gather([make_run("a", "wbsp", batch=128), make_run("b", "bsp", batch=64)])
    assert [one.group for one in statistics] == ["wbsp batch=128", "bsp batch=64"]


def test_where_and_when_a_run_was_made_is_no_setting(make_run):
    def made(name, sync, seed):
        return make_run(name, sync, seed, id=name, series=name, port=2606 + seed, epoch=1 + seed,
                        date=f"2026-11-2{seed}T12:00:00+01:00", host=name, release=f"1.{seed}",
                        python=f"3.1{seed}", beside=None if seed else "a:1", ended=bool(seed))

    statistics = gather([made("a", "bsp", 0), made("b", "bsp", 1), made("c", "wbsp", 2)])
    assert [one.group for one in statistics] == ["bsp", "bsp", "wbsp"]
    assert [one.name for one in statistics] == ["bsp #1 (seed 0)", "bsp #2 (seed 1)", "wbsp"]


@pytest.mark.parametrize("ended", [True, False], ids=["from the summary", "from the spans"])
def test_shares_are_those_of_the_compute_lane(make_run, ended):
    [stats] = gather([make_run("run", "wbsp", ended=ended)])
    assert stats.shares[0] == pytest.approx(
        {"compute": 0.6, "push": 0.3, "pull": 0.1, "wait": 0, "data": 0})
    assert stats.shares[1] == pytest.approx(
        {"compute": 0.7, "push": 0.1, "pull": 0.1, "wait": 0, "data": 0.1})
    assert stats.total_shares["compute"] == pytest.approx(0.65)


def test_steps_staleness_and_commits_come_from_the_events(make_run):
    [stats] = gather([make_run("run", "wbsp", rounds=10, stale=(0, 2))])
    assert stats.steps == {0: 30, 1: 10}
    assert len(stats.staleness) == 40 and set(stats.staleness) == {0, 1, 2}
    assert stats.versions == pytest.approx([r + 0.9 for r in range(10)])
    assert stats.duration == 10


def test_versions_of_a_site_are_its_own_and_those_from_above(site_run):
    [stats] = gather([site_run])
    assert stats.versions == pytest.approx([1.0, 2.0, 3.0])
    assert stats.steps == {0: 2}


def test_work_that_was_sent_again_counts_as_steps(make_run):
    run = make_run("run", "wbsp", rounds=10)
    again = {"kind": "resent", "t": 9.5, "worker": 1, "steps": 4}
    before, after = gather([run, replace(run)])
    after.run.events = [*run.events, again]
    assert before.steps == {0: 30, 1: 10} and after.steps == {0: 30, 1: 14}


@pytest.mark.parametrize("file", ["run.json", "summary.json"])
def test_a_damaged_file_is_one_line(make_run, file, capsys):
    folder = make_run("run", "wbsp").folder
    (folder / file).write_text('{"sync": ')
    assert main([str(folder)]) == 1
    error = capsys.readouterr().err
    assert f"figures: {folder / file} is damaged: " in error and error.count("\n") == 1


@pytest.mark.parametrize("file, line, words", [
    ("events.jsonl", "[]", "Expected `object`, got `array`"),
    ("events.jsonl", '{"t": 1.0}', "missing required field `kind`"),
    ("events.jsonl", '{"t": 1.0, "kind": "accept", "worker": 0}', "missing required field `steps`"),
    ("events.jsonl", '{"t": 1.0, "kind": "commit", "version": "v7"}', "got `str` - at `$.version`"),
    ("events.jsonl", '{"t": 1.0, "kind": "adopt"}', "missing required field `version`"),
    ("events_wk0.jsonl", '{"t": 1.0, "seconds": 1.0, "lane": "compute", "kind": "naps"}', "naps"),
    ("summary.json", "{}", "missing required field `workers`"),
    ("summary.json", '{"workers": {"first": {"seconds": {}}}}', "got `str`"),
    ("summary.json", "[]", "Expected `object`, got `array`"),
    ("run.json", "[]", "Expected `object`, got `array`"),
])
def test_json_of_another_shape_is_one_line(make_run, file, line, words, capsys):
    folder = make_run("run", "wbsp").folder
    with open(folder / file, "a" if file.endswith("l") else "w") as log:
        log.write(f"{line}\n")
    assert main([str(folder)]) == 1
    error = capsys.readouterr().err
    assert f"figures: {folder / file}" in error and " is damaged: " in error and words in error
    assert error.count("\n") == 1


def test_of_many_workers_the_slowest_and_the_fastest_are_kept(make_run):
    [stats] = gather([make_run("run", "wbsp")])
    stats.workers = list(range(100))
    stats.steps = {worker: (worker * 37) % 100 for worker in range(100)}
    picked = stats.pick_workers(12)
    assert len(picked) == 12 and picked == sorted(picked)
    assert {0, 99} <= {stats.steps[worker] for worker in picked}
    assert stats.pick_workers(100) == list(range(100))
