"""Variables that each worker keeps for itself: what a version changes, and what it does not."""

import numpy as np
import pytest

from wbsp.ps.checkpoint.format import Checkpoint
from wbsp.ps.checkpoint.state import RunState
from wbsp.replica.base import divide
from wbsp.replica.model import KerasPart
from wbsp.replica.values import Values
from wbsp.saved import assign
from wbsp.tensors.frozen import FrozenValues

keras = pytest.importorskip("keras")
L = keras.layers


class Counts(L.Layer):
    def build(self, shape):
        self.seen = self.add_weight(shape=(2,), initializer="zeros", dtype="int32",
                                    trainable=False)

    def call(self, x):
        return x


def model():
    """Of which `mine` is to be local, and the first layer is frozen."""
    one = keras.Sequential([
        keras.Input((4,)), L.Dense(3, name="still"), L.BatchNormalization(name="norm"),
        Counts(name="mine_too"), L.Dense(2, name="mine")], name="net")
    one.layers[0].trainable = False
    return one


def divided():
    one = model()
    part = KerasPart(one)
    divide([part], None, ["net/mine"])
    return one, part


def ends(held):
    return ["/".join(spec.name.split("/")[-2:]) for spec in held]


def test_local_variables_are_outside_of_vector_and_frozen_and_no_version_changes_them():
    one, part = divided()
    assert ends(held.spec for held in part.local) == ["mine/kernel", "mine/bias"]
    assert ends(held.spec for held in part.frozen) == ["still/kernel", "still/bias"]
    assert ends(part.layout) == ["norm/gamma", "norm/beta", "norm/moving_mean",
                                 "norm/moving_variance"]
    replica = part.open()
    mine = one.get_layer("mine")
    mine.bias.assign([1, 2])
    replica.stepped()
    assert not np.asarray(replica.cut()).any()
    replica.adopt(replica.bring(np.full(12, 5, np.float32)), "replace")
    replica.hold()
    mine.bias.assign([3, 4])
    assert not replica.put_back(), "whoever writes to them between two steps"
    assert keras.ops.convert_to_numpy(mine.bias).tolist() == [3, 4]
    assert (replica.read() == 5).all()


def test_frozen_variables_may_be_local():
    values = Values(model(), local=["net/still"])
    assert not values.frozen.layout and len(values.local) == 2 and len(values.layout) == 6
    values = Values({"a": model(), "b": model()}, local=["a"])
    assert len(values.local) == 8 and len(values.layout) == 6


def test_whole_numbers_that_are_local_are_not_compared():
    part = KerasPart(model())
    assert len(part.states()) == 1
    divide([part], None, ["net"])
    assert not part.states() and not part.layout


@pytest.mark.parametrize("local, said", [
    (["net/mein"], r"local=\['net/mein'\]: no variable has this name or .*; there are net/"),
    ("net/mine", "local='net/mine': give a list of names"),
    (["net"], "that are neither frozen nor local: there")])
def test_names_that_cannot_be_are_refused_in_one_line(local, said):
    with pytest.raises(ValueError, match=said) as no:
        Values(model(), local=local)
    assert "\n" not in str(no.value)


def test_a_saved_version_leaves_them_as_they_are():
    _one, part = divided()
    state = RunState(version=3, next_seq={}, totals=(0, 0), elapsed=1.0,
                     local=[held.spec.name for held in part.local])
    frozen = [held.spec for held in part.frozen]
    saved = Checkpoint(np.full(12, 7, np.float32), part.layout, state,
                       frozen=FrozenValues(frozen, np.full(15, 8, np.float32)))
    assert RunState.from_json(state.to_json()).local == state.local
    other = model()
    mine = [keras.ops.convert_to_numpy(v) for v in other.get_layer("mine").weights]
    assign(saved, other, "version 3")
    assert [np.array_equal(was, keras.ops.convert_to_numpy(v)) for was, v in
            zip(mine, other.get_layer("mine").weights, strict=True)] == [True, True]
    assert {float(v) for weights in other.get_layer("still").get_weights()
            for v in weights.ravel()} == {8.0}
    with pytest.raises(ValueError, match="version 3 is of another model"):
        assign(saved._replace(state=RunState(version=3, next_seq={}, totals=(0, 0), elapsed=1.0)),
               other, "version 3")
