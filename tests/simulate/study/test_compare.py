"""The ranking of an advice: places, what the seeds leave open, and what is counted."""

import math
from types import SimpleNamespace

import pytest

from wbsp.core.goal import Goal
from wbsp.simulate.study.compare import Result, ranking, shards, table

TARGET = Goal.of(0.85)


def measured(accuracies):
    """What `Run.metric` returns: of another metric than accuracy no number."""
    return lambda goal: [value if goal.metric == "accuracy" else math.nan for value in accuracies]


def run(seconds, pushes=((128, 1),), target=0.85):
    """A finished run that reached the target at `seconds`, or never (None), after `pushes` of
    (samples, steps); 1,280 more examples came after the target."""
    accuracies = [0.1, 0.5 if seconds is None else 0.9]
    events = [{"kind": "evaluation"},
              *({"kind": "accept", "samples": n, "steps": steps} for n, steps in pushes),
              {"kind": "evaluation"}, {"kind": "reject", "samples": 1280, "steps": 10}]
    samples = sum(n for n, _ in pushes) + 1280
    total = {"pushes": len(pushes), "pulls": 1, "samples": samples, "steps": 99,
             "shares": dict.fromkeys(("compute", "push", "pull", "wait", "data"), 0.2)}
    return SimpleNamespace(
        time_to=lambda goal: seconds, events=events, metric=measured(accuracies),
        settings={"batch_size": 128, "model_bytes": 4},
        summary={"t": 100.0, "version": 1, "staleness": {"mean": 0.0, "max": 0}, "total": total})


def ranked(**times):
    return ranking([Result(name, tuple(map(run, seconds)), TARGET)
                    for name, seconds in times.items()])


def places(text):
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][2:]
    return {row[1]: row[0].removeprefix("| ") for row in rows}


def test_models_whose_seeds_overlap_are_equal():
    text = ranked(slow=(19, 20, 22), fast=(8, 9, 10), near=(9.5, 11, 12), far=(11.5, 13, 14),
                  never=(9, None, 9))
    # far is slower than fast beyond the seeds, though not than near
    assert places(text) == {"fast": "1", "near": "1", "far": "2", "slow": "4", "never": "-"}
    assert "| fast | 9.0 (8.0 to 10.0) |" in text and "9.0 (9.0 to 9.0), 2 of 3 runs" in text
    assert "Models of one place: no difference beyond the seeds." in text
    ends = {line[2:].split(":")[0]: line for line in text.splitlines() if line.startswith("- ")}
    assert ends["near"].endswith("; no difference beyond the seeds from fast")
    assert ends["far"].endswith("; no difference beyond the seeds from near")
    assert all("beyond the seeds" not in ends[name] for name in ("fast", "slow", "never"))


def test_one_seed_shows_no_range_and_a_line_about_it():
    text = ranked(a=(10,), b=(11,), c=(10,))
    assert places(text) == {"a": "1", "c": "1", "b": "3"}
    assert "One seed: small differences may be chance" in text and "no difference" not in text


def test_a_table_without_equal_models_has_no_line_about_them():
    assert "no difference" not in ranked(a=(1, 2), b=(3, 4))


def test_micro_batches_and_directed_sizes_count_as_parts_of_mini_batches():
    micro = Result("micro", (run(10, [(32, 1)] * 8),), TARGET)
    sized = Result("sized", (run(10, [(200, 1), (56, 1), (256, 2)]),), TARGET)
    assert (micro.batches, sized.batches) == (2, 4)  # up to the target
    assert Result("never", (run(None, [(32, 1)] * 8),), Goal.of(0.95)).batches == 12
    rows = [line.split(" | ") for line in table([micro, sized]).splitlines()]
    column = rows[0].index("mini-batches")
    assert [row[column] for row in rows[2:]] == ["12", "14"]  # of the whole run
    text = ranking([micro, sized])
    assert "0.2 mini-batches/s" in text and "needed 2 mini-batches, the fewest of all" in text
    assert "needed 4 mini-batches, 2.00 times the fewest" in text


def test_evaluations_that_are_not_finite_reach_nothing():
    broken = run(None)
    broken.metric = measured([0.1, float("nan")])
    assert Result("broken", (broken,), TARGET).batches == pytest.approx(11)


def of_shards(**compared):
    return shards({name: {count: Result(f"{name} shards={count}", tuple(map(run, seconds)), TARGET)
                          for count, seconds in results.items()}
                   for name, results in compared.items()}).splitlines()


def test_the_fewest_shards_that_no_others_beat_are_best():
    lines = of_shards(quick={1: (20, 22), 2: (9, 11), 4: (8, 10)},  # 4 not beyond the seeds
                      even={1: (10.2,), 2: (10.15,), 4: (10.15,)},  # half a per cent is nothing
                      late={1: (None,), 2: (30,), 4: (29,)})
    assert lines == [
        "- quick: best with 2 shards, 10.0 s to 85 % (1: 21.0 s to 85 %, 4: 9.0 s to 85 %); "
        "more gain nothing",
        "- even: best with 1 shard, 10.2 s to 85 % (2: 10.2 s to 85 %, 4: 10.2 s to 85 %); "
        "more gain nothing",
        "- late: best with 4 shards, 29.0 s to 85 % (1: 0.1 mini-batches/s, 2: 30.0 s to 85 %)",
        "", "Best: quick with 2 shards, 10.0 s to 85 %."]


def test_without_a_target_reached_speed_decides_on_the_shards():
    fast, slow = (run(None, pushes=((128, 1),) * n) for n in (50, 20))
    text = shards({"a": {1: Result("a", (slow,), TARGET), 2: Result("a", (fast,), TARGET)}})
    assert text == "- a: best with 2 shards, 0.6 mini-batches/s (1: 0.3 mini-batches/s)"


def test_without_training_speed_ranks_and_no_accuracy_is_named():
    runs = {name: run(None, pushes=((128, 1),) * n) for name, n in (("slow", 20), ("fast", 50))}
    for one in runs.values():
        one.metric = measured([])
        one.events = [event for event in one.events if event["kind"] != "evaluation"]
    text = ranking([Result(name, (one,)) for name, one in runs.items()])
    assert list(places(text).items()) == [("fast", "-"), ("slow", "-")]
    assert "| - | fast | 0.6 |" in text and "No network was trained" in text
    assert "nan" not in text and "accuracy" not in text and "%" in text
