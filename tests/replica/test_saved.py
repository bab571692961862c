"""`wbsp.load`: what a run has saved, in a model of the user's own."""

import numpy as np
import pytest

import wbsp
from wbsp.ps.checkpoint.format import Checkpoint, save
from wbsp.ps.checkpoint.state import RunState
from wbsp.ps.checkpoint.writer import BEST, CHECKPOINT
from wbsp.replica.model import open_replica
from wbsp.replica.states import states
from wbsp.replica.values import Values
from wbsp.saved import assign
from wbsp.tensors.frozen import FrozenValues

keras = pytest.importorskip("keras")

X = np.random.default_rng(3).normal(size=(16, 6)).astype("float32")


def model(units=4, words=None):
    layers = [keras.layers.Rescaling(words)] if words else []
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(units, "relu"),
                             keras.layers.BatchNormalization(), keras.layers.Dense(2)])


def trained(seed, **of):
    """A model with random values in all its variables."""
    draw = np.random.default_rng(seed)
    one = model(**of)
    one.set_weights([draw.uniform(0.5, 1, w.shape) for w in one.get_weights()])
    return one


def leave(path, one, version):
    """Write the checkpoint that a server has of this model."""
    replica = open_replica(one)
    save(path, Checkpoint(replica.read(), list(replica.layout), RunState(
        version=version, next_seq={}, totals=(0, 0), elapsed=0.0, layers=states(one))))


def predicts(one):
    return np.asarray(keras.ops.convert_to_numpy(one(X)))


def test_the_newest_and_the_best_version_are_put_into_a_model_built_again(tmp_path):
    newest, best = trained(1), trained(2)
    leave(tmp_path / CHECKPOINT, newest, 7)
    leave(tmp_path / BEST, best, 5)
    mine = model()
    assert wbsp.load(tmp_path, mine) == 7
    assert np.array_equal(predicts(mine), predicts(newest))
    assert wbsp.load(str(tmp_path), mine, best=True) == 5
    assert np.array_equal(predicts(mine), predicts(best))


def test_a_version_is_loaded_into_a_model_with_any_frozen_variables(tmp_path):
    def part_frozen(one):
        one.layers[0].trainable = False
        return one

    saved = part_frozen(trained(1))
    values = Values(saved)
    save(tmp_path / CHECKPOINT, Checkpoint(
        values.open().read(), values.layout, RunState(
            version=3, next_seq={}, totals=(0, 0), elapsed=0.0),
        frozen=FrozenValues(values.frozen.layout, values.frozen.read())))
    for mine in (part_frozen(model()), model()):
        assert wbsp.load(tmp_path, mine) == 3
        assert np.array_equal(predicts(mine), predicts(saved))


def test_a_loaded_version_keeps_the_models_constraints(tmp_path):
    def kept():
        return keras.Sequential([keras.Input((6,)),
                                 keras.layers.Dense(3, kernel_constraint="non_neg")])

    negative = kept()
    negative.set_weights([-np.ones((6, 3)), np.zeros(3)])
    leave(tmp_path / CHECKPOINT, negative, 1)
    mine = kept()
    wbsp.load(tmp_path, mine)
    assert predicts(mine).min() == predicts(mine).max() == 0


@pytest.mark.parametrize("other, said", [
    ({"units": 5}, r"of another model than .*: variable 0 is .*\[6, 5\] here and .*\[6, 4\] there"),
    ({"words": 0.5}, "layer rescaling.* is not in the run")])
def test_another_model_is_refused_in_one_line_and_unchanged(tmp_path, other, said):
    leave(tmp_path / CHECKPOINT, trained(1), 7)
    mine = trained(2, **other)
    before = predicts(mine)
    with pytest.raises(ValueError, match=said) as refused:
        wbsp.load(tmp_path, mine)
    assert "\n" not in str(refused.value)
    assert np.array_equal(predicts(mine), before)


def test_a_folder_without_such_a_version_is_refused_in_one_line(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no version: .* give the folder of a run"):
        wbsp.load(tmp_path, model())
    leave(tmp_path / CHECKPOINT, trained(1), 7)
    with pytest.raises(FileNotFoundError, match="no best version: no process has evaluated"):
        wbsp.load(tmp_path, model(), best=True)
    (tmp_path / BEST).write_bytes(b"torn")
    with pytest.raises(ValueError, match="is not a wbsp checkpoint"):
        wbsp.load(tmp_path, model(), best=True)


def test_a_module_of_pytorch_is_loaded_too():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: scripts/test_torch.sh")

    def network():
        return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))

    one, other = network(), network()
    values = Values(one)
    saved = Checkpoint(values.open().read(), values.layout, RunState(
        version=3, next_seq={}, totals=(0, 0), elapsed=0.0))
    assign(saved, other, "the version")
    assert all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))
    with pytest.raises(ValueError, match="^the version is of another model than a Linear: 2 var"):
        assign(saved, torch.nn.Linear(6, 4), "the version")


def test_a_pytree_is_not_written_to():
    tree = {"w": pytest.importorskip("jax.numpy").zeros(3)}
    saved = Checkpoint(np.ones(3, "float32"), Values(tree).layout, RunState(
        version=3, next_seq={}, totals=(0, 0), elapsed=0.0))
    with pytest.raises(ValueError, match="^cannot write to a pytree of JAX"):
        assign(saved, tree, "the version")
