"""Which metric decides on the best version, and which value ends a run."""

import pytest

from wbsp.core.goal import Goal, plain, validation


@pytest.mark.parametrize("text, goal", [
    ("accuracy:0.9", Goal("accuracy", True, 0.9)),
    ("val_loss:0.25", Goal("val_loss", False, 0.25)),
    ("mean_absolute_error:1e-3", Goal("mean_absolute_error", False, 1e-3)),
    ("bits_per_byte:2.5", Goal("bits_per_byte", False, 2.5)),
    ("min:rate:-2", Goal("rate", False, -2.0)),
    ("max:top1_error:3", Goal("top1_error", True, 3.0))])
def test_a_target_names_a_metric_and_its_direction(text, goal):
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
    assert not any(goal.reached({"a": float("nan")}) for goal in (high, low))


def test_a_goal_is_given_as_a_text_or_as_an_accuracy():
    assert Goal.of("loss:2.0") == Goal("loss", False, 2.0)
    assert Goal.of(0.85) == Goal("accuracy", True, 0.85) == Goal.of(Goal.of(0.85))
    assert Goal.of(None) is None and Goal.of(float("inf")) is None
    assert [Goal.of(one).text for one in (0.85, "loss:2.5", "val_accuracy:0.5")] == [
        "85 %", "loss 2.5", "50 %"]
    assert (Goal.of(0.85).whole, Goal.of("loss:2.5").whole) == ("85 % accuracy", "loss 2.5")


def test_the_best_value_is_a_number():
    nan = float("nan")
    assert Goal("loss", False).best([3.0, nan, 2.0]) == 2.0 == Goal("a", True).best([1.0, 2.0, nan])
    assert Goal("loss", False).best([nan]) is None


@pytest.mark.parametrize("asked", ["loss", "val_loss", "min:val_loss"])
@pytest.mark.parametrize("reported", ["loss", "val_loss"])
def test_a_metric_is_the_same_with_and_without_the_prefix_of_keras(asked, reported):
    goal = Goal.parse("target", f"{asked}:0.5", valued=True)
    assert goal.value({reported: 0.4, "accuracy": 1.0}) == 0.4 and goal.reached({reported: 0.5})
    assert not goal.most and goal.ranks_by(reported) and not goal.ranks_by("val_acc")
    assert goal.value({"accuracy": 1.0}) is None


def test_where_both_forms_are_reported_the_name_as_written_counts():
    both = {"loss": 1.0, "val_loss": 2.0}
    assert Goal("loss", False).value(both) == 1.0 and Goal("val_loss", False).value(both) == 2.0
    assert plain(both) == both and plain({"val_loss": 2.0, "auc": 3.0}) == {"loss": 2.0, "auc": 3.0}
    assert validation(both) == {"val_loss": 2.0}
    assert validation({"loss": 1.0, "val_auc": 3.0}) == {"val_loss": 1.0, "val_auc": 3.0}
