"""Series of fits under faults, in virtual time: one server, and workers that fit several times."""

import pytest
from simulated.command import scratch
from simulated.series_world import WHOLE, Series, SeriesPlan

from wbsp.sync import MODELS


@pytest.fixture
def folder():
    with scratch() as folder:
        yield folder


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


def test_a_server_of_one_run_refuses_the_next_fit_in_one_line(folder):
    run = Series(SeriesPlan(one_run=True), 0, folder).run()
    assert run.codes["server"] == [0]
    for script in run.members:
        assert script.code == 1 and script.fit == 2 and "\n" not in str(script.given_up)
