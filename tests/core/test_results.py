"""What follows from the results of versions."""

import pytest

from wbsp.core.goal import Goal
from wbsp.core.results import Best, Goals, Results

SCORE, LOSS = Goal("score", True, 4.0), Goal("loss", False)


def results(**goals):
    return Results(Goals(**goals))


def test_the_best_version_is_found_by_its_metric_and_later_worse_ones_are_counted():
    found = results(best=SCORE)
    taken = [found.take(float(t), t, {"val_score": score}) for t, score in enumerate([1, 3, 2, 2])]
    assert taken == [True, True, False, False]
    assert found.best == Best("score", 3, 1, worse=2)
    assert not found.take(4.0, 4, {"loss": 0.0}) and found.best.worse == 2, "it has no score"


@pytest.mark.parametrize("goals, metrics, reason", [
    ({"target": SCORE}, {"score": 4}, "target score 4 reached (version 1,007: 4)"),
    ({"target": SCORE}, {"score": 3}, None),
    ({"accuracy": 0.5}, {"accuracy": 0.75},
     "target accuracy 0.5 reached at 9.0 s (version 1007: 0.7500)"),
    ({"accuracy": 0.5}, {"loss": 0.1}, None),
    ({}, {"accuracy": 1.0}, None)])
def test_a_result_ends_the_run_by_its_goals(goals, metrics, reason):
    found = results(**goals)
    assert found.reason is None
    found.take(9.0, 1007, metrics)
    assert found.reason == reason


def test_a_slower_evaluation_of_an_older_version_ends_the_run_too():
    found = results(target=SCORE)
    found.take(2.0, 2, {"score": 1})
    found.take(1.0, 1, {"score": 5})
    assert found.reason == "target score 4 reached (version 1: 5)"
    assert found.newest.version == 2 and found.of(2, "score") == 1 and found.of(1, "score") is None


def test_evaluations_in_a_row_that_are_no_better_end_the_run():
    found = results(best=LOSS, patience=2)
    for version, loss in enumerate([1.0, 0.5, 0.6, 0.5]):
        found.take(0.0, version, {"loss": loss})
    assert found.reason == "2 evaluations in a row were no better than version 1 (loss 0.5)"


def test_a_goal_whose_metric_the_first_evaluation_lacks_is_named_once():
    found = results(target=SCORE, best=LOSS)
    assert found.lacking({}) == {}
    assert found.lacking({"loss": 1.0}) == {"target": SCORE}
    assert found.lacking({"loss": 1.0}) == {}


def test_a_resumed_run_continues_from_its_best_version():
    kept, saved = Best("val_score", 5, 7), Best("score", 5, 7, worse=3)
    found = results(target=SCORE, best=SCORE)
    assert not found.resume(kept, saved) and found.best == saved
    assert found.reason == "target score 4 reached (version 7: 5)", "that had ended it"
    assert not found.resume(kept, None) and found.best == Best("score", 5, 7)
    assert found.resume(None, saved), "its file is elsewhere"
    assert found.resume(Best("loss", 1, 9), saved) and found.best == saved
    assert not found.resume(None, None) and found.best is None and found.reason is None
