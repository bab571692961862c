"""Signals in `fit`: the first asks, the second acts, and afterwards the handlers are as before."""

import os
import signal
import threading

import pytest

from wbsp.worker.signals import Signals


@pytest.fixture(autouse=True)
def usual():
    """Python's own handlers, also where the tests were started with others."""
    saved = {s: signal.signal(s, handler) for s, handler in (
        (signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL))}
    yield
    for signum, handler in saved.items():
        signal.signal(signum, handler)


@pytest.fixture
def reasons():
    return []


@pytest.fixture
def signals(reasons):
    return Signals(reasons.append)


def handlers():
    return signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)


USUAL = signal.default_int_handler, signal.SIG_DFL


def test_the_first_signal_asks_for_the_end_and_is_raised_again_after_it(signals, reasons):
    signals.hold(lambda: True)
    signal.raise_signal(signal.SIGINT)
    assert reasons == ["interrupted by SIGINT"] and signals.caught == signal.SIGINT
    signals.release()
    assert handlers() == USUAL
    with pytest.raises(KeyboardInterrupt):
        signals.raise_again()
    signals.raise_again()  # once


def test_the_second_acts_at_once(signals, reasons):
    signals.hold(lambda: True)
    signal.raise_signal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert reasons == ["interrupted by SIGTERM"]
    assert handlers() == USUAL
    signals.raise_again()  # it has acted


def test_held_handlers_are_restored_without_a_signal(signals, reasons):
    signals.hold(lambda: True)
    assert handlers() != USUAL
    signals.release()
    signals.raise_again()
    assert handlers() == USUAL and not reasons


def test_a_handler_of_the_users_own_is_left_alone(signals, reasons):
    signal.signal(signal.SIGINT, mine := lambda signum, frame: reasons.append("mine"))
    signals.hold(lambda: True)
    assert signal.getsignal(signal.SIGINT) is mine
    signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGTERM, mine)  # in mid-training
    signals.release()
    assert reasons == ["mine"] and handlers() == (mine, mine)


def test_a_signal_that_is_not_needed_has_its_usual_effect(signals, reasons):
    """As after a failed fit, which Keras does not report."""
    signals.hold(lambda: False)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert handlers() == USUAL and not reasons


def test_released_in_another_thread(signals, reasons):
    signals.hold(lambda: True)
    in_thread(signals.release)
    assert handlers() != USUAL, "only the main thread may set them"
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert handlers() == USUAL and not reasons


def test_the_next_to_hold_finds_the_usual_handlers(signals, reasons):
    signals.hold(lambda: True)
    in_thread(signals.release)
    second = Signals(lambda reason: reasons.append("second"))
    second.hold(lambda: True)
    signal.raise_signal(signal.SIGINT)
    assert reasons == ["second"]
    second.release()
    assert handlers() == USUAL


def test_signals_are_not_held_in_another_thread(signals):
    in_thread(lambda: signals.hold(lambda: True))
    assert handlers() == USUAL
    signals.release()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_ends_by_the_signal(signals):
    """As a pool's process: the sender of SIGTERM waits for its end."""
    signals.hold(lambda: True)
    child = os.fork()
    if child == 0:
        signal.raise_signal(signal.SIGTERM)
        os._exit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
    signals.release()


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
