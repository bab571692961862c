"""How a block ends by an error, and what the next one is: each row of the table in
docs/how-to/any-loop.md. The workers are threads of the test, with a real server."""

import threading
import time

import pytest
from jobs import PATIENCE, both

import wbsp
from wbsp.worker import next_run
from wbsp.worker.errors import ends_trial

jnp = pytest.importorskip("jax.numpy")
optuna = pytest.importorskip("optuna")
pytestmark = pytest.mark.usefixtures("process_ends")

N, BATCH = 64, 8
ENDLESS = 8000  # epochs, as many as there may be: a worker ends such a block before
OWN = 100.0  # by so much the weights of one trial differ from those of the next


def ends(server):
    """Wait until the workers' processes and the server have ended."""
    next_run.close_all()
    server.ends_well()


class Trials:
    """One worker's blocks, each of which begins with weights of its own.

    began: the weights with which each block began
    ended: why each block ended: its stop reason, or its error
    """

    def __init__(self, server, index, seconds=0.01):
        self._server, self._index, self._seconds = server, index, seconds
        self.began, self.ended, self.said = [], [], []

    def block(self, own, at_step=lambda w, step: None, epochs=2):
        step = 0
        try:
            with wbsp.Worker({"x": jnp.full(4, own)}, n=N, batch_size=BATCH, epochs=epochs,
                             address=self._server.address, worker_index=self._index,
                             say=self.said.append) as w:
                self.began.append(round(float(w.values["x"][0])))
                for _ in w.epochs():
                    for _ in w.indices():
                        time.sleep(self._seconds)
                        step += 1
                        at_step(w, step)
                        w.step(0.5, {"x": w.values["x"] + 1e-3})
            self.ended.append(w.stop_reason)
        except BaseException as error:
            self.ended.append(type(error).__name__)
            if isinstance(error, AssertionError):
                raise


def raises(error, at=3):
    def at_step(w, step):
        if step == at:
            raise error
    return at_step


def test_the_errors_of_tuners_are_known_by_their_names():
    class Mine(optuna.TrialPruned):
        pass
    failed = type("FailedTrialError", (Exception,), {"__module__": "keras_tuner.src.errors"})
    assert ends_trial(optuna.TrialPruned()) and ends_trial(Mine()) and ends_trial(failed())
    other = type("TrialPruned", (Exception,), {"__module__": "mine"})
    assert not any(ends_trial(error) for error in (ValueError(), KeyboardInterrupt(), other()))


@pytest.mark.parametrize("prune", ["both", "one", "the slow one"])
def test_a_trial_that_is_pruned_ends_its_run_for_all_and_the_next_is_a_new_one(jobs, prune):
    server = jobs.server(sync="pcc", series=True).listens()
    pruned = {"both": (0, 1), "one": (0,), "the slow one": (1,)}[prune]

    def tune(index, seconds):
        trials = Trials(server, index, seconds)
        trials.block(OWN, raises(optuna.TrialPruned()) if index in pruned else
                     lambda w, step: None, epochs=ENDLESS)
        trials.block(2 * OWN)
        return trials
    workers = both((tune, 0, 0.001), (tune, 1, 0.03))
    why = "its trial has ended (TrialPruned)"
    for index, trials in enumerate(workers):
        assert trials.began == [OWN, 2 * OWN]  # from its own weights, not the pruned trial's
        first, second = trials.ended
        assert second == "all 2 epochs are trained"
        assert (first == "TrialPruned" and index in pruned) or why in first
        assert any(why in line for line in trials.said)
    assert server.find(r"stopped: worker \d: its trial has ended \(TrialPruned\)")
    ends(server)


def test_another_error_leaves_the_run_and_the_next_block_joins_it_again(jobs):
    server = jobs.server(sync="pcc", series=True).listens()

    returned = threading.Event()

    def fails(index):
        trials = Trials(server, index)
        trials.block(OWN, raises(ArithmeticError()), epochs=30)
        trials.block(2 * OWN, raises(KeyboardInterrupt()), epochs=30)
        trials.block(3 * OWN, lambda w, step: returned.set(), epochs=30)
        return trials

    def trains(index):
        trials = Trials(server, index, 0.02)
        trials.block(OWN, lambda w, step: returned.wait(PATIENCE), epochs=30)
        return trials
    mine, other = both((fails, 0), (trains, 1))
    assert mine.began == 3 * [OWN] and other.began == [OWN]
    assert mine.ended == ["ArithmeticError", "KeyboardInterrupt", "all 30 epochs are trained"]
    assert other.ended == ["all 30 epochs are trained"]
    ends(server)


def test_once_all_have_left_by_an_error_the_next_block_is_a_new_run(jobs):
    server = jobs.server(sync="pcc", series=True).listens()

    def fails(index, seconds):
        trials = Trials(server, index, seconds)
        trials.block(OWN, raises(ArithmeticError()), epochs=30)
        server.until("worker 0 left: its loop was left by ArithmeticError")
        server.until("worker 1 left: its loop was left by ArithmeticError")
        trials.block(2 * OWN)
        return trials
    for trials in both((fails, 0, 0.001), (fails, 1, 0.02)):
        assert trials.began == [OWN, 2 * OWN]
        assert trials.ended == ["ArithmeticError", "all 2 epochs are trained"]
    assert server.find("stopped: all workers had left it in mid-run, and one begins anew")
    ends(server)


def test_the_only_workers_cell_that_is_run_again_is_a_new_run(jobs):
    server = jobs.server(sync="pcc", workers=1, series=True).listens()
    trials = Trials(server, 0)
    for own in (1, 2):
        trials.block(own * OWN, raises(KeyboardInterrupt()))
    trials.block(3 * OWN)
    assert trials.began == [OWN, 2 * OWN, 3 * OWN]
    assert trials.ended[-1] == "all 2 epochs are trained"
    ends(server)


@pytest.mark.parametrize("error", [optuna.TrialPruned(), ArithmeticError()], ids=type)
def test_a_run_that_a_worker_has_stopped_is_left_in_good_order(jobs, error):
    server = jobs.server(sync="pcc", series=True).listens()

    def stops(w, step):
        if step == 3:
            w.stop_run("it is bad")
            raise error

    def tune(index):
        trials = Trials(server, index)
        trials.block(OWN, (lambda w, step: None) if index else stops, epochs=ENDLESS)
        trials.block(2 * OWN)
        return trials
    mine, other = both((tune, 0), (tune, 1))
    assert mine.began == other.began == [OWN, 2 * OWN]
    assert mine.ended == [type(error).__name__, "all 2 epochs are trained"]
    assert other.ended == ["worker 0: it is bad", "all 2 epochs are trained"]
    ends(server)


def test_a_study_of_optuna_goes_through_its_trials(jobs):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    server = jobs.server(sync="pcc", series=True).listens()

    def tune(index):
        trials = Trials(server, index)

        def objective(trial):
            own, prunes = OWN * (trial.number + 1), trial.number % 2
            with wbsp.Worker({"x": jnp.full(4, own)}, n=N, batch_size=BATCH,
                             epochs=ENDLESS if prunes else 1, address=server.address,
                             worker_index=index, say=trials.said.append) as w:
                trials.began.append(round(float(w.values["x"][0])))
                for _ in w.epochs():
                    for _ in w.indices():
                        w.step(0.5, w.values)
                        if prunes and index == 0:
                            raise optuna.TrialPruned
            if w.stop_reason and "trial has ended" in w.stop_reason:
                raise optuna.TrialPruned
            return 0.0
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=3))
        study.optimize(objective, n_trials=4)
        return trials.began, [trial.state.name for trial in study.trials]
    for began, states in both((tune, 0), (tune, 1)):
        assert began == [OWN * (k + 1) for k in range(4)]
        assert states == ["COMPLETE", "PRUNED", "COMPLETE", "PRUNED"]
    ends(server)
