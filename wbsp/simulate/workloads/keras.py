"""A real network as the workload of simulated workers, on TensorFlow or JAX.

All workers share one Keras model: a worker's own variables are swapped in before its step and kept
aside while others train, so that memory and compile time do not grow with the number of workers.
Each virtual step computes that worker's real update, with its own optimizer state and its own
batches.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from os import PathLike
from types import ModuleType
from typing import Any

import keras
import numpy as np

from wbsp.replica.layers import trained
from wbsp.replica.model import sums_gradients
from wbsp.simulate.workloads.base import check_back_end, of_experiment
from wbsp.simulate.workloads.network import SharedNetwork
from wbsp.sync.batch import least_of, power_of
from wbsp.tensors.layout import TensorSpec, statistics

Stream = Callable[[int, int], Any]  # (start, count) -> the batch of `count` examples from `start`


def make_deterministic() -> None:
    """Make the same computation give the same bits. To be called before anything is computed.

    Raises ValueError for a back end that `check_back_end` refuses.
    """
    _back_end().make_deterministic()


def share(model: keras.Model, batch: Any) -> SharedNetwork:
    """Return the network that simulated workers share; `batch`: see `SharedNetwork`.

    Raises ValueError for a back end that `check_back_end` refuses.
    """
    return _back_end().Network(model, batch)


def _back_end() -> ModuleType:
    name = keras.backend.backend()
    check_back_end(name)
    return importlib.import_module(f"wbsp.simulate.workloads.{name}")


def no_stream(worker: int | None) -> Stream:
    """Raise ValueError: the stream of a workload whose batches all have one size."""
    raise ValueError("this workload has no stream of examples, which directed batch sizes need")


class KerasWorkload:
    """Replicas of a `SharedNetwork` that begin at the variables of `fresh`; see `Workload`.

    Args:
        batches: worker -> its endless batches, each of `batch_size` examples.
        stream: for batches whose size the server directs: worker -> its own stream of examples, and
            None -> the stream that all workers share.
        counted: worker -> the steps that the optimizer's schedule counts before its next one; None:
            the worker's own.
        rate: worker -> the learning rate of its next step; None: the optimizer's own schedule.
    """

    def __init__(self, network: SharedNetwork, fresh: keras.Model, workers: int,
                 batches: Callable[[int], Iterable[Any]], batch_size: int,
                 stream: Callable[[int | None], Stream] = no_stream,
                 counted: Callable[[int], int] | None = None,
                 rate: Callable[[int], float] | None = None):
        self._network, self.batch, self._counted = network, batch_size, counted
        self._rate = rate
        self._initial, own = network.begin(fresh)
        self.statistics = statistics([TensorSpec(v.path, tuple(v.shape)) for v in trained(fresh)])
        self._own = [own] * workers
        self._batches = cache(lambda worker: iter(batches(worker)))
        self._stream = cache(stream)
        self._position = [0] * workers  # in its own stream
        # Vectors lie where the network computes. None: only the network holds x.
        self._x: list[Any] = [self._initial] * workers
        self._anchor = [self._initial] * workers
        self._live: int | None = None  # the worker whose own variables the network has
        found = network.model.optimizer
        self._power = power_of(type(found))
        rate_of = found._learning_rate
        fixed = isinstance(rate_of, keras.optimizers.schedules.LearningRateSchedule)
        self._plain = None if fixed else float(rate_of)  # the optimizer's own rate
        self._scaled: set[int] = set()  # workers whose rate has gone with their batch

    @property
    def least(self) -> int | None:
        """As of `Workload`."""
        if self._power is None or self._plain is None:
            return None
        return least_of(self.statistics)

    @property
    def sgd(self) -> bool:
        """As of `Workload`."""
        return sums_gradients(self._network.model)

    def initial(self) -> np.ndarray:
        return np.asarray(self._initial)

    def step(self, worker: int, samples: int | None = None, start: int | None = None,
             part: float = 1.0) -> tuple[int, float]:
        self._make_live(worker)
        if self._counted is not None:
            self._network.count(self._counted(worker))
        if part != 1.0:
            self._scaled.add(worker)
        if self._rate is not None or worker in self._scaled:
            rate = self._plain if self._rate is None else self._rate(worker)
            assert rate is not None
            self._network.set_rate(rate * part ** (self._power or 0.0))
        if samples is None:
            samples, loss = self.batch, self._network.step(next(self._batches(worker)))
        else:
            loss = self._network.step_on(self._examples(worker, samples, start))
        self._x[worker] = None
        return samples, loss

    def cut(self, worker: int) -> np.ndarray:
        x = self._read(worker)
        update = x - self._anchor[worker]
        self._anchor[worker] = x
        return self._network.send(update)

    def adopt(self, worker: int, vector: np.ndarray, how: str) -> None:
        version = self._network.bring(vector)
        if how == "replace":
            self._x[worker] = version
        else:
            self._x[worker] = version + (self._read(worker) - self._anchor[worker])
        self._anchor[worker] = version

    def evaluate(self, vector: np.ndarray, test_set: Iterable[Any]) -> dict[str, float]:
        """Return loss and metrics of the model at `vector`, float32 [size]."""
        if self._live is not None:
            self._read(self._live)
        return self._network.evaluate(vector, test_set)

    def _make_live(self, worker: int) -> None:
        """Put the worker's state into the network."""
        if worker != self._live:
            if self._live is not None:
                self._read(self._live)
                self._own[self._live] = self._network.own()
            self._network.take(self._own[worker])
            self._live = worker
        x = self._x[worker]
        if x is not None:
            self._network.write(x)

    def _examples(self, worker: int, samples: int, start: int | None) -> Any:
        if start is not None:
            return self._stream(None)(start, samples)
        start = self._position[worker]
        self._position[worker] += samples
        return self._stream(worker)(start, samples)

    def _read(self, worker: int) -> Any:
        x = self._x[worker]
        if x is None:
            x = self._x[worker] = self._network.read()
        return x


class Experiment:
    """A network and a data set by the names of the experiment's `models` and `data`.

    Attributes: `size`, the examples of an epoch; `model_bytes` as float32; `rate`.

    Raises ValueError or OSError in one line.

    Args:
        lr: initial learning rate; None: the network's published one.
        decays: {steps: factor of the rate from there on}; None: the published ones.
        test_images: how many images of the test set an evaluation looks at, always the same ones;
            None: all. Many short runs would otherwise spend their time on evaluations.
        optimizer: of each worker: a name of `OPTIMIZERS` in models/training.py, or adamw with its
            options (models/adamw.py); None: plain SGD.
    """

    def __init__(self, model: str, dataset: str, batch_size: int, lr: float | None = None,
                 data_dir: str | PathLike[str] | None = None, test_images: int | None = None,
                 decays: Mapping[int, float] | None = None, optimizer: str | None = None):
        models, data = of_experiment("models"), of_experiment("data")
        self._model, self._batch_size = model, batch_size
        self._build = models.build
        self.size = data.size(dataset)  # examples of an epoch
        self._augmented = of_experiment(f"data.{dataset}").AUGMENTED
        self._pipeline = of_experiment(
            "data.pipeline_jax" if keras.backend.backend() == "jax" else "data.pipeline")
        # Once for all workers.
        self._train = self._pipeline.in_memory(*data.load(dataset, data_dir, "train"))
        x, y = data.load(dataset, data_dir, "test")
        if test_images is not None and test_images > len(y):
            raise ValueError(f"--test_images={test_images}: the test set of {dataset} has {len(y)}")
        chosen = of_experiment("data.draws").subset(len(y), test_images)
        self._test = list(self._pipeline.test(x[chosen], y[chosen], min(len(chosen), 1000)))
        training = of_experiment("models.training")
        self._compile, self._published = training.compile, training.published_decays
        self._lr, self._decays, self._optimizer = lr, decays, optimizer
        self._adamw = of_experiment("models.adamw").adamw(optimizer)
        self._networks: dict[int, SharedNetwork] = {}  # by micro-batches
        # By size: batches of a worker.
        self._made: dict[int, Callable[[int, int], Iterator[Any]]] = {}
        self.model_bytes = 4 * self._network(1).read().size

    @property
    def rate(self) -> float:
        """The initial learning rate."""
        if self._lr is not None:
            return self._lr
        schedule = self._network(1).model.optimizer._learning_rate
        if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            return float(schedule(0))
        return float(schedule)

    @property
    def decays(self) -> Mapping[int, float] | None:
        """{steps: factor of the rate from there on}; None: the published ones, or the network's."""
        return self._decays

    def with_batch(self, batch_size: int) -> Experiment | None:
        """Return this experiment with another batch, and a rate and decays that suit it.

        The rate of SGD is in proportion to the batch, that of Adam and AdamW to its root
        (Malladi et al. 2022, arXiv 2205.10287). None: the network comes compiled with a schedule of
        its own.
        """
        decays, compiled = self._decays, self._build(self._model, 0)
        in_proportion = self._optimizer != "adam" and self._adamw is None
        if compiled.compiled:
            in_proportion = isinstance(compiled.optimizer, keras.optimizers.SGD)
            if isinstance(compiled.optimizer._learning_rate,
                          keras.optimizers.schedules.LearningRateSchedule):
                return None
        elif decays is None and self._adamw is None:
            decays = self._published(self._model)
        part, other = batch_size / self._batch_size, copy.copy(self)
        other._batch_size, other._networks = batch_size, {}
        other._lr = self.rate * (part if in_proportion else part ** 0.5)
        other._decays = decays and {round(steps / part): factor for steps, factor in decays.items()}
        return other

    def workload(self, seed: int, workers: int, micro_batches: int = 1,
                 counted: Callable[[int], int] | None = None,
                 done: Callable[[int], float] = lambda worker: 0.0) -> KerasWorkload:
        """Replicas at the initial model of `seed`, with the batches real workers would have.

        Args:
            micro_batches: the number into which a mini-batch is split; each is a step.
            counted: as of a KerasWorkload.
            done: worker -> part of the run's examples that are trained, which AdamW's schedule
                follows.
        """
        highest, options = self.rate, self._adamw
        rate = options and (lambda worker: highest * options.factor(done(worker)))
        keras.utils.set_random_seed(seed)
        size = self._batch_size // micro_batches
        return KerasWorkload(
            self._network(micro_batches), self._build(self._model, seed), workers,
            lambda worker: self._batches(size, seed, worker), size,
            lambda worker: self._stream(seed if worker is None else (seed, worker)),
            counted, rate)

    def evaluate(self, workload: KerasWorkload, vector: np.ndarray) -> dict[str, float]:
        """Return loss, accuracy and top5 (0..1) on the test set."""
        return workload.evaluate(vector, self._test)

    def _network(self, micro_batches: int) -> SharedNetwork:
        if micro_batches not in self._networks:
            model = self._compile(self._build(self._model, 0), self._model, self._lr,
                                  micro_batches, decays=self._decays, kind=self._optimizer)
            self._networks[micro_batches] = share(
                model, next(self._batches(self._batch_size, 0, 0)))
        return self._networks[micro_batches]

    def _batches(self, size: int, seed: int, worker: int) -> Iterator[Any]:
        if size not in self._made:
            self._made[size] = self._pipeline.batches(*self._train, size, self._augmented)
        return self._made[size](seed, worker)

    def _stream(self, seed: int | tuple[int, int]) -> Stream:
        return self._pipeline.shared_batch(*self._train, seed, self._augmented)
