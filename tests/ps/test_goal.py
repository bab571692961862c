"""Which metric says what the best version is, and which value ends a run."""

import pytest

from wbsp.ps.goal import Goal


@pytest.mark.parametrize("text, goal", [
    ("accuracy:0.9", Goal("accuracy", True, 0.9)),
    ("val_loss:0.25", Goal("val_loss", False, 0.25)),
    ("mean_absolute_error:1e-3", Goal("mean_absolute_error", False, 1e-3)),
    ("min:rate:-2", Goal("rate", False, -2.0)),
    ("max:top1_error:3", Goal("top1_error", True, 3.0))])
def test_a_target_names_a_metric_and_what_is_better(text, goal):
    assert Goal.parse("target", text, valued=True) == goal
    name = text.rpartition(":")[0]
    assert Goal.parse("best", name, valued=False) == goal._replace(target=None)
    assert Goal.parse("target", str(goal), valued=True) == goal


@pytest.mark.parametrize("text", ["accuracy", "accuracy:", ":0.9", "accuracy:good", "loss:nan",
                                  "a:b:0.5", ""])
def test_an_invalid_target_is_refused_in_one_line(text):
    with pytest.raises(ValueError, match=f"^--target={text}: write METRIC:VALUE, such as"):
        Goal.parse("target", text, valued=True)


def test_a_value_that_is_as_good_as_the_target_reaches_it():
    high, low = Goal("a", True, 0.5), Goal("a", False, 0.5)
    assert [high.reached({"a": v}) for v in (0.4, 0.5, 0.6)] == [False, True, True]
    assert [low.reached({"a": v}) for v in (0.4, 0.5, 0.6)] == [True, True, False]
    assert not high.reached({"b": 1.0}) and not Goal("a", True).reached({"a": 1.0})
