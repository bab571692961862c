"""Copies of a callback, and errors that a script ends with."""

import copy
import pickle
import sys

import keras
import pytest

import wbsp
from wbsp.wire.errors import TransportError
from wbsp.worker import loop as module
from wbsp.worker.errors import in_one_line
from wbsp.worker.loop import PROCESS

pytestmark = pytest.mark.slow  # Keras takes its seconds to start


class Own(wbsp.SyncCallback):
    """A callback as a user may derive one."""

    def __init__(self, notes):
        super().__init__("localhost:1", 3, patience=7.0)
        self.notes = notes


@pytest.fixture
def hook():
    return Own(["a"])


@pytest.mark.parametrize("copied", [
    copy.copy, copy.deepcopy, lambda hook: pickle.loads(pickle.dumps(hook))])
def test_a_callback_can_be_copied_and_the_copy_is_one_of_its_own(hook, copied):
    other = copied(hook)
    assert type(other) is Own and other.worker == 3 and other.notes == ["a"]
    mine, its = hook._member, other._member
    assert its is not mine and its.task == mine.task
    assert its._ending is not mine._ending and its._signals is not mine._signals
    hook.interrupt("only this one")
    assert hook.stop_reason == "only this one" and other.stop_reason is None


def test_a_copy_knows_the_secret_and_a_pickle_does_not_hold_it(tmp_path):
    path = tmp_path / "token"
    path.write_text("0123456789abcdef")
    hook = wbsp.SyncCallback("localhost:1", 0, token_file=str(path))
    assert b"0123456789abcdef" not in pickle.dumps(hook)
    assert copy.deepcopy(hook)._member.access.token == b"0123456789abcdef"


def test_a_callback_in_a_fit_cannot_be_copied(hook, monkeypatch):
    part = PROCESS.part(hook._member.task)
    monkeypatch.setattr(part, "member", hook._member)
    copy.deepcopy(hook)  # which is connected, as after hook.rule: the copy takes its place
    hook._member.loop = module.Loop()
    with pytest.raises(TypeError, match="worker 3 is in a run, and a copy of its SyncCallback wou"):
        copy.deepcopy(hook)
    part.member = None
    copy.deepcopy(hook)


def test_a_copy_trains_the_same_dataset_and_another_process_cannot(hook):
    data = hook.examples(lambda i: i, n=8, batch_size=4)
    stream = wbsp.SyncCallback("localhost:1", 2)
    stream.stream(lambda start, count: (start, count), 8)
    for one in hook, stream:
        mine = one._member
        its = copy.deepcopy([one])[0]._member
        assert its.share is mine.share and its.dataset is mine.dataset
        assert its.assignments is mine.assignments and its.batch == mine.batch
        with pytest.raises(TypeError, match="data of this SyncCallback belong to this process; m"):
            pickle.dumps(one)
    assert hook._member.dataset is data


def test_callbacks_that_belong_to_the_hook_are_copied_with_it(hook):
    schedule = wbsp.RunSchedule(keras.optimizers.schedules.CosineDecay(0.1, 10), hook)
    copied, its = copy.deepcopy([hook, schedule])
    assert its is not schedule and its._hook is copied
    assert float(keras.ops.convert_to_numpy(its._rate(5))) == pytest.approx(0.05)


@pytest.fixture
def hooks(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)


def show(error):
    sys.excepthook(type(error), error, error.__traceback__)


def raised(error):
    with pytest.raises(type(error)), in_one_line():
        raise error
    return error


@pytest.mark.parametrize("error", [TransportError("the server refused: no"), ValueError("bad"),
                                   FileNotFoundError("gone")])
def test_an_error_with_its_reason_is_printed_in_one_line(hooks, capsys, error):
    show(raised(error))
    assert capsys.readouterr().err == f"wbsp: {error}\n"


def test_other_errors_show_their_traceback(hooks, capsys):
    raised(ValueError("ours"))
    show(raised(ZeroDivisionError("a fault")))
    show(ValueError("of the script"))
    shown = capsys.readouterr().err
    assert "ZeroDivisionError: a fault" in shown and "Traceback" in shown
    assert "ValueError: of the script" in shown


def test_a_users_own_hook_stays(hooks):
    def own(*_):
        """Shows errors in another way."""

    sys.excepthook = own
    raised(ValueError("bad"))
    assert sys.excepthook is own


def test_the_error_of_a_bad_argument_needs_no_traceback():
    with pytest.raises(ValueError) as caught:
        wbsp.SyncCallback("nowhere", 0)
    assert caught.value._wbsp_says_all
