"""What becomes of a model's variables, compared with another worker's."""

import pytest

from wbsp.tensors.frozen import Division, other_model
from wbsp.tensors.layout import TensorSpec, namesakes


def layout(*names):
    return [TensorSpec(name, (3,)) for name in names]


RUN = Division(layout("net/a", "net/b"), layout("net/c"), ["net/d"])


@pytest.mark.parametrize("mine, said", [
    (RUN, None),
    (Division(layout("net_1/a", "net_1/b"), layout("net_1/c"), ["net_1/d"]), None),
    (Division(layout("net/a"), layout("net/b", "net/c"), ["net/d"]),
     "net/b is frozen here and trained there"),
    (Division(layout("net/a"), layout("net/c"), ["net/b", "net/d"]),
     "net/b is local here and trained there"),
    (Division(layout("net/a", "net/b"), (), ["net/c", "net/d"]),
     "net/c is local here and frozen there"),
    (Division(layout("net/a", "net/b"), layout("net/c"), ["net/d", "net/e"]),
     "net/e, which is local, is only here"),
    (Division(layout("net/a", "net/b"), layout("net/c")), "net/d, which is local, is only there"),
    (Division(layout("net/a", "net/x"), layout("net/c"), ["net/d"]),
     "variable 1 is net/x[3] here and net/b[3] there")])
def test_the_first_difference_is_named(mine, said):
    found = other_model(mine, RUN)
    assert found == said


def test_variables_are_found_under_the_names_that_another_process_gives_them():
    mine = ["net_3/dense_7/kernel", "net_3/dense_9/kernel"]
    theirs = ["net/dense/kernel", "net/dense_1/kernel"]
    assert namesakes(mine, theirs, theirs[1:]) == mine[1:]
    assert namesakes(mine[:1], theirs, theirs[1:]) == []
