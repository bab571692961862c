"""Arguments of a user's code: each is taken by its plain meaning, or refused by its name."""

import decimal
import math
import sys

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

import wbsp
from wbsp import given
from wbsp.core.messages import LearningRate, Measured, StopRun
from wbsp.core.stats import Report
from wbsp.reading import Version
from wbsp.sync.base import Push
from wbsp.wire.messages import codec as m
from wbsp.worker import loop
from wbsp.worker.share import Share

NAN, INF = float("nan"), float("inf")


class Rude:
    """A value of a class whose every method fails."""

    def __repr__(self):
        raise RuntimeError("no")

    __float__ = __index__ = __iter__ = __len__ = __repr__


HOSTILE = [
    None, NAN, INF, -INF, -1, 0, 1, 2.0, 2.5, 1e308, 10**30, 10**5000, True, "", "5", "x" * 10**6,
    "\x1b[2Jred\nline", "\ud800", b"5", b"\xff" * 1000, bytearray(b"5"), 1 + 0j, [], [1], (), {},
    {"a": 1}, {1: "a"}, {"a" * 200: "b"}, object(), Rude(), int, np.int64(5), np.int8(-5),
    np.float32(2), np.float64("nan"), np.bool_(True), np.array(3), np.array(3.5), np.array([4]),
    np.array([1.0, 2.0]), np.array("5"), np.datetime64("2020"), decimal.Decimal("7"),
    decimal.Decimal("NaN"), [Rude()], np.zeros(10**6)]


def variables():
    torch = pytest.importorskip("torch")
    return torch.nn.Linear(2, 1)


def in_order(error, name):
    """An error that names the argument, on one line that a terminal shows as it is."""
    text = str(error)
    assert name in text and text.isprintable() and len(text) < 600, text


def offers(name, value, call):
    """Call it: the value is taken, or refused at once by the argument's name."""
    try:
        return call(value)
    except ValueError as error:
        in_order(error, name)
    except OSError as error:  # there is no such file
        assert isinstance(value, str) and repr(value) in str(error) and "\n" not in str(error)
    except TypeError as error:  # of Python itself
        assert "report() keywords" in str(error)


@pytest.mark.parametrize("name", [
    "n", "batch_size", "epochs", "seed", "connect_timeout", "patience", "band_width_limit",
    "worker_index", "transport", "address", "token_file", "expected", "say", "frozen", "local",
    "names"])
def test_each_argument_of_a_worker_is_taken_or_refused_by_its_name(name):
    net = variables()
    taken = []
    for value in HOSTILE:
        worker = offers(name, value, lambda value: wbsp.Worker(
            net, **{"n": 8, "batch_size": 4, "token_file": "", name: value}))
        taken += [value] if worker is not None else []
    assert name in ("transport", "address", "frozen", "names") or taken


@pytest.mark.parametrize("name", ["n", "batch_size", "seed", "validate"])
def test_data_that_are_taken_fit_their_message(name):
    for value in HOSTILE:
        share = offers(name, value, lambda value: Share(**{"n": 8, "batch_size": 4, name: value}))
        if share is not None:
            share.wants(3)
            m.check(m.FromWorker, m.Join([], data=share.data))
    for value in HOSTILE:
        offers("epochs", value, Share(8, 4).wants)


def test_counts_and_losses_of_a_step_fit_a_push():
    worker = wbsp.Worker(variables(), batch_size=4, token_file="")
    for value in HOSTILE:
        for name in ("samples", "steps"):
            counts = offers(name, value, lambda value, name=name: worker._counts(
                **{"steps": 1, "samples": 1, name: value}))
            if counts is not None:
                m.check(Push, Push(0, 0, 0, *counts, 0.1))
                assert all(type(count) is int for count in counts)
        loss = offers("loss", value, worker._known)
        report = Report()
        report.count_steps(1, 1 << 30, NAN if loss is None else loss)
        report.count_steps(1, 1 << 30, NAN if loss is None else loss)
        m.check(m.FromWorker, m.Heartbeat(report))
    assert worker._counts(np.int64(2), None) == (2, 8)
    assert worker._counts(2.0, np.array(0)) == (2, 0)
    assert worker._known(np.float32(0.5)) == 0.5 and math.isnan(worker._known(None))


def test_tensors_are_the_numbers_that_they_hold():
    torch = pytest.importorskip("torch")
    assert given.whole("samples", torch.tensor(4)) == given.whole("samples", torch.tensor(4.0)) == 4
    assert given.loss(torch.tensor([0.5], dtype=torch.bfloat16)) == 0.5
    for wrong in (torch.tensor([1, 2]), torch.tensor(True), torch.tensor(2.5), torch.tensor(NAN),
                  torch.empty(1, device="meta")):
        with pytest.raises(ValueError, match="samples="):
            given.whole("samples", wrong)


def test_reasons_are_texts_of_one_line():
    worker = loop.Worker("localhost:1", token_file="")
    for value in HOSTILE:
        try:
            worker.stop_run(value)
        except RuntimeError as error:  # no fit has begun: it was taken
            assert "has not been part of a run yet" in str(error)
            m.check(m.FromWorker, StopRun(given.reason("reason", value)))
        except ValueError as error:
            in_order(error, "reason")
        offers("reason", value, worker.interrupt)


@pytest.mark.parametrize("name", ["address", "at", "every", "token_file", "patience", "say"])
def test_each_argument_of_versions_is_taken_or_refused_by_its_name(name):
    for value in HOSTILE:
        offers(name, value, lambda value: wbsp.versions(
            **{"token_file": "", "say": lambda text: None, name: value}))


def test_metrics_of_a_version_fit_their_message():
    sent, said = [], []

    class Server:
        report, say = sent.append, said.append

    version = Version.__new__(Version)
    version.number, version.run, version._server = 3, "run", Server
    for value in HOSTILE:
        offers("loss", value, lambda value: version.report(loss=value))
    version.report(**{"x" * 10**5: 1.0, "x" * 10**5 + "y": 2.0})
    version.report(**{"\x1b\n": 3.0, "": 4.0, "\ud800": 5})
    with pytest.raises(ValueError, match="65 metrics"):
        version.report(**{f"m{k}": 1.0 for k in range(65)})
    for message in sent:
        m.check(m.FromWorker, message)
    assert all(line.isprintable() and len(line) < 300 for line in said)


NUMBERS = st.one_of(st.floats(), st.integers(), st.sampled_from(HOSTILE))


@drawn(st.dictionaries(st.text(max_size=80), NUMBERS, max_size=90))
def test_validation_results_of_any_names_and_numbers_fit_their_message(values):
    sent, names = given.metrics(values)
    m.check(m.FromWorker, Measured(0, sent))
    assert sent.keys() == {names[name] for name in names} and len(names) == len(sent)


def test_a_message_that_no_server_could_read_is_refused_by_its_sender():
    push = Push(0, 0, 0, 1, 1, 0.1)
    m.check(Push, push)
    for message, names in [(push._replace(samples=2.5), "samples=2.5"),
                           (push._replace(steps=np.int64(2)), "steps=np.int64"),
                           (push._replace(seconds=None), "seconds=None"),
                           (StopRun("x" * 5000), "reason='xxx"), (StopRun(None), "reason=None"),
                           (LearningRate(0, NAN), "rate=nan"),
                           (Measured(0, {"a" * 65: 1.0}), "values")]:
        with pytest.raises(ValueError, match="cannot be sent") as caught:
            m.check(Push if isinstance(message, Push) else m.FromWorker, message)
        in_order(caught.value, names)


def test_a_value_without_a_short_text_is_named_by_its_type():
    assert given.shown(Rude()) == "a Rude" and given.shown(10**5000) == "a int"
    assert sys.getsizeof(given.shown("x" * 10**7)) < 300
