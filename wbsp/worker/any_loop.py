"""A worker in any training loop: `with wbsp.Worker(values) as w:` around it, `w.step` in it.

The values may be of any framework; this module imports none.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal

import numpy as np

from wbsp import given, timeouts
from wbsp.core.messages import EPOCHS, EXAMPLES
from wbsp.core.permutation import Order
from wbsp.process.host import HOST
from wbsp.replica.mapped import Names
from wbsp.replica.values import Values, rank_of
from wbsp.runlog.console import say
from wbsp.saved import fill
from wbsp.sync.base import WorkerRule
from wbsp.sync.batch import POWER
from wbsp.worker import loop
from wbsp.worker.errors import in_one_line, says_all
from wbsp.worker.front import FrontEnd
from wbsp.worker.rate import GROUP, OWN, StepRate, TorchRate
from wbsp.worker.share import Share

_UNSOUND = (
    "its model was not finite, and is the run's version again. Its optimizer is the loop's own: if "
    "that keeps NaN (Adam's moments), each further push is rejected, too, and after three of them "
    "the server lets this worker go. Empty its state (PyTorch: optimizer.state.clear()), or skip "
    "steps whose loss is not finite")
_CHECKS = 0.01  # of the time: to look whether the values are still the same variables
_AHEAD = ("a batch was requested before the last one was trained: call w.step(loss) after each. If "
          "a trainer reads ahead, give its loader a __len__ (PyTorch Lightning), and accumulate "
          "gradients inside one step, on a batch of twice the size (Hugging Face: leave "
          "gradient_accumulation_steps at 1). A loader that reads ahead, such as one with "
          "num_workers, belongs in w.batches(loader)")


class _Block(loop.Loop):
    """The block of a `with` statement, whose end is always noticed."""

    shares = ("wbsp.Worker(values, n=..., batch_size=..., epochs=...), and w.epochs() and "
              "w.indices() or w.batches() in place of the loop's own")

    def __init__(self) -> None:
        self._left = False

    @property
    def running(self) -> bool:
        return not self._left

    def forget(self) -> None:
        self._left = True


class Worker(FrontEnd):
    """Make a training loop of any kind one worker of a run: a context manager.

        with wbsp.Worker(model, n=len(x), batch_size=64, epochs=5) as w:
            for epoch in w.epochs():
                for indices in w.indices():
                    w.step(train(x[indices], y[indices]))

    Entering the block joins the run and sets the values to the run's version. The loop calls `step`
    after each of its steps. Leaving the block waits for the other workers, and sets the values to
    the run's final version. If an exception leaves the block, the worker leaves the run. Each block
    is a run.

    Attributes:
        sampler: the `batch_sampler` of a torch DataLoader, if the workers share their data: this
            worker's batches of one epoch. `batches` takes such a loader, and has it read ahead.
    """

    _name, _shares = "w", "wbsp.Worker(values, n=their number, batch_size=...)"

    _power: float | None = None  # of the batch, by which the loop's rate goes; None: it does not
    _rate: StepRate | None = None  # in a run whose server chooses the batches
    _torch: TorchRate | None = None

    def __init__(self, values: Any, n: int | None = None, batch_size: int | None = None, *,
                 epochs: int = 1, seed: int = 0, address: str | None = None,
                 worker_index: int | None = None, token_file: str | None = None,
                 connect_timeout: float = timeouts.CONNECT, band_width_limit: float | None = None,
                 expected: dict[str, str] | None = None, say: Callable[[str], None] = say,
                 patience: float = timeouts.WORKER_PATIENCE, transport: str | None = None,
                 frozen: Sequence[str] | None = None, local: Sequence[str] = (),
                 names: Names | None = None,
                 optimizer: Literal["adam"] | None = None):
        """Set up the worker; entering the block connects it.

        address, worker_index, token_file and transport are read from the environment if they are
        None.

        Args:
            values: the trained values: a Keras model, a torch.nn.Module, tf.Variables or torch
                tensors in a list or dict, a pytree of JAX arrays, or a dict of several models.
            n: number of examples that all workers share; each is trained once in an epoch, by
                any worker. None: this worker has its own data.
            batch_size: examples of a step.
            epochs: passes over the n examples, by all workers together; without n: of this worker.
            seed: of the order of shared data, which differs between epochs.
            address: host:port of the server; with a standby: host:port,host:port; if neither this
                nor the environment gives one: localhost:2606.
            worker_index: 0 ... worker_num - 1, each once; if neither this nor the environment gives
                one, the server chooses one that no process holds.
            token_file: file with the server's shared secret; default, for a server of another
                machine: ~/.config/wbsp/token, if there is one; "": the server has none.
            connect_timeout: seconds to wait for the first connection to the server.
            band_width_limit: limit of this worker's traffic, MB/s in each direction.
            expected: settings that must equal the server's (name -> text).
            say: function that prints a line for the user.
            patience: seconds to wait for a lost server.
            transport: "auto": share memory with a server of this machine; "tcp": share none.
            frozen: names of variables that no step changes, or the beginnings of these; updates and
                versions do not carry them. None: those that the framework declares frozen. []: no
                variable is frozen.
            local: names of variables that each worker keeps for itself, or the beginnings of these;
                they do not travel, are not compared, and no version changes them. The same names on
                all workers.
            names: of the run's variables, in its order, if other workers train the model in
                another framework. The run's name -> the name here, or (the name here, axes):
                numpy.transpose(variable here, axes) is the run's. None: the names are equal.
            optimizer: "adam", of a loop with Adam, AdamW or RMSprop that multiplies its learning
                rate by `rate_scale` in each step, so that the server may choose a smaller batch of
                shared data. None: those of PyTorch are found.

        Raises:
            ValueError: an argument is wrong or missing, or the values cannot be trained together.
            OSError: the token file cannot be read.
        """
        # In a process of a group of PyTorch's, which is one worker: what it has to do with the
        # others; of another rank than 0, that stands for its membership, too.
        self._ranks: Any = None
        self._follower: Any = None
        if (rank := rank_of(values)) is not None:
            ranks = importlib.import_module("wbsp.worker.ranks")
            self._ranks = ranks.Follower() if rank else ranks.Leader()
            self._follower = self._ranks if rank else None
        with in_one_line(), self._agreeing():
            self._set_up(values, n, batch_size, epochs, seed, frozen, names, local)
            if optimizer not in (None, "adam"):
                raise ValueError(f"optimizer={given.shown(optimizer)}: it must be 'adam', or left "
                                 "out")
            self._power = None if optimizer is None else POWER
            self._member: loop.Worker = self._follower or loop.Worker(
                address, worker_index, token_file, connect_timeout, band_width_limit, expected, say,
                patience, transport, name="wbsp.Worker")
            self._share = None
            if n is not None and batch_size is not None:
                self._share = Share(n, batch_size, seed)
                self._share.wants(self._epochs)
                if self._follower is not None:
                    self._share = self._follower.shares(self._share.data)
        self._member.trains(self._share)
        self._before: Any = None  # the loss of the step before, if it may not be computed yet
        self._passed: Any = None  # the replica, in a block whose run has ended before

    @contextlib.contextmanager
    def _agreeing(self) -> Iterator[None]:
        """Raise, in all processes of a worker, if the body raises in one of them.

        So it does if they were given different arguments.
        """
        if self._ranks is None:
            yield
            return
        self._given: dict[str, Any] | None = None
        error: Exception | None = None
        try:
            yield
        except Exception as wrong:
            error = wrong
        self._ranks.group.agree(self._given, error)

    def _set_up(self, values: Any, n: int | None, batch_size: int | None, epochs: int, seed: int,
                frozen: Sequence[str] | None, names: Names | None, local: Sequence[str]) -> None:
        """Set what all processes of a worker have."""
        if n is not None and batch_size is None:
            raise ValueError(f"n={given.shown(n)} examples to share: give batch_size as well, "
                             "the examples of a step")
        epochs = given.whole("epochs", epochs, 1, given.MOST if n is None else EPOCHS)
        if batch_size is not None:
            batch_size = given.whole("batch_size", batch_size, 1, EXAMPLES)
        # once: an iterator would be empty at the next look
        frozen, local = given.names("frozen", frozen), given.names("local", local) or []
        self._look = partial(Values, frozen=frozen, names=names, local=local)
        self._look_at_all = partial(Values, frozen=[], names=names, local=local)
        self._values = self._look(values)
        self._given = {
            "n": None if n is None else given.whole("n", n, 1, EXAMPLES), "batch_size": batch_size,
            "epochs": epochs, "seed": given.whole("seed", seed), "frozen": frozen, "local": local,
            "names": None if names is None else repr(names)}
        self._epochs = epochs
        self._batch, self._samples = batch_size, batch_size or 1
        self._order = Order()
        self._steps = 0  # since the block was entered
        self._loads = False  # `batches` iterates over a loader, and restarts it
        self.sampler: Iterable[list[int]] = _Sampler(self)

    def __enter__(self) -> Worker:
        """Join the run, and adopt its version.

        If the run has ended before this process came, the block has no examples, and `stop_reason`
        says why the run ended; the values are its final version.

        Raises:
            TransportError: no server answers, or it refuses this worker; one line.
            ValueError: the run's synchronization model needs shared data.
        """
        member = self._member
        # Variables may be frozen, or free again, since the last block.
        values = self._values = self._look(self._values.given)
        self._steps, self._before, self._loads, self._checked = 0, None, False, 0.0
        self._passed = None
        if self._follower is not None:
            self._follower.begin(values)
            return self
        member.enter(_Block())
        with member.leaving_on_error(), self._telling():
            _, welcome = member.connect()
            if member.passes:
                self._pass_by()
                return self
            sync, rule = welcome.run.sync, welcome.rule
            if rule.shared and self._share is None:
                raise ValueError(f"under {sync} the server assigns the examples: share the data, "
                                 "wbsp.Worker(values, n=..., batch_size=...)")
            member.assignments.begin(None)
            for line in [*loop.advice(sync, rule, "the loop"), *values.remarks()]:
                member.say(line)
            replica = values.open()
            if not member.join(replica, values.states(), values.frozen,
                               local=values.local, entries=values.entries()):
                self._pass_by()
                return self
            values.adopted()
            member.begun().tell_when_renewed(partial(member.say_once, _UNSOUND))
            self._follow(rule)
            self._step_begins()
            if self._ranks is not None:
                self._ranks.begin(replica, values, self._share, None, member.run_examples)
        return self

    def _follow(self, rule: WorkerRule) -> None:
        """Have the learning rate go with the batch, if the server chooses that."""
        self._rate = self._torch = None
        member = self._member
        if not rule.sizes or self._share is None:
            return
        if self._ranks is not None:
            member.say(GROUP)
            return
        self._rate = StepRate(member.begun(), member.say)
        if self._power is not None:
            self._rate.goes_by(self._power)
        elif "torch" in sys.modules:
            self._torch = TorchRate(self._rate, member.say)

    def _unhook(self) -> None:
        if self._torch is not None:
            self._torch.close()
            self._torch = None

    @property
    def rate_scale(self) -> float:
        """Factor of the learning rate of the next step, which goes with its batch: see `optimizer`.

        1 with the batch of the script, and in a loop whose rate wbsp sets itself.
        """
        return 1.0 if self._power is None or self._rate is None else self._rate.factor

    def _pass_by(self) -> None:
        """Take the final version of the run, which has ended, and train nothing."""
        member = self._member
        run = member.pass_by()
        values = self._values = self._look(
            fill(self._look_at_all(self._values.given), run.saved, run.of))
        member.say(run.begins("training nothing in this block"))
        self._passed = values.open()
        if self._ranks is not None:
            self._ranks.begin(self._passed, values, self._share, self.stop_reason,
                              member.run_examples)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        """Push the remaining progress, wait for the run's final version, and adopt it."""
        member = self._member
        if self._follower is not None:
            self._follower.end(self._values, error)
            return
        self._unhook()
        if member.loop is None:
            return  # it has left, after a signal or an error that the block has caught
        if error is not None:
            group = None if self._ranks is None else self._ranks.group
            left = None if group is None else group.who_left()
            if left is not None and left not in str(error):
                member.say(f"{left}; so this process ends with {type(error).__name__}")
            elif group is not None and left is None and not group.fail(error):
                member.say(f"{type(error).__name__} has left rank 0 alone of this worker's "
                           f"{group.size} processes: the others may wait for it in a "
                           "step, until its process ends. Raise such an error in all of them, "
                           "after w.step()")
            member.left_by(error)
            return
        with member.leaving_on_error(), self._telling():
            self._values.check()
            if self._passed is not None:
                self._passed.put_back()
            else:
                if self._share is not None and member.stop_reason is None:
                    member.say("its loop has ended before the run, and leaves the rest to the "
                               "other workers; loops over w.epochs() and w.batches() end with the "
                               "run")
                member.finish(member.interrupted)
            if self._ranks is not None:
                self._ranks.settle(self.stop_reason, member.run_examples)
            for line in self._values.finish():
                member.say(line)
        member.end(None)

    @property
    def values(self) -> Any:
        """The trained values; of a pytree, the newest one."""
        return self._values.given

    @property
    def stop_reason(self) -> str | None:
        """Why training ends before the loop is done; None if it does not.

        `epochs`, `indices` and `batches` end then; any other loop must check this.
        """
        return self._member.stop_reason if self._ranks is None else self._ranks.reason

    @property
    def _step_size(self) -> int | None:
        return self._batch

    @property
    def _data(self) -> Any:
        return self._share

    def step(self, loss: Any = None, values: Any = None, *, steps: int = 1,
             samples: int | None = None) -> Any:
        """Push and adopt versions by the server's synchronization model, after a step of the loop.

        Args:
            loss: of the step, a number or a scalar of the framework; None: unknown. If it is
                still being computed, as on JAX or a GPU, this waits only for the loss of the step
                before.
            values: the pytree that the step returned. Other values change in place.
            steps: number of steps since the last call, for example in a loop inside a tf.function.
            samples: examples of these steps; None: `batch_size` for each. 0: they trained nothing,
                as in a step whose batch was empty.

        Returns:
            The values to continue with: a new pytree if a version was adopted.

        Raises:
            TransportError: the server is lost.
            ValueError: the values are not those that entered the block, because a variable was
                added, removed or replaced or has another shape or type; or the step has trained no
                batch of the shared data; or loss, steps or samples are no such numbers.
        """
        member = self._member
        if self._follower is not None:
            self._steps += self._counts(steps, samples)[0]
            self._follower.step(self._steps)
            return self._values.given
        with member.leaving_on_error(), self._telling():
            self._within("w.step()")
            _check_outside(loss)
            steps, samples = self._counts(steps, samples)
            self._values.take(values)
            if self._passed is None:
                self._step(loss, steps, samples)
            else:  # it trains nothing
                self._check_values()
                self._passed.put_back()
                self._steps += steps
            member.stop_due()
            self._step_begins()
            if self._ranks is not None:
                self._ranks.settle(member.stop_reason, member.run_examples)
        return self._values.given

    def _step(self, loss: Any, steps: int, samples: int) -> None:
        """Push and adopt after a step, as `step` does."""
        runtime = self._member.connected()
        if self._share is not None:
            self._check_shared(self._share, steps)
        known = self._known(loss)
        self._check_values()
        try:
            runtime.step_done(samples, known, self._steps, steps)
        except Exception:  # perhaps since a variable has another shape, which a line explains
            self._values.check()
            raise
        self._steps += steps
        if self._rate is not None and not self._rate.found:
            self._member.say_once(OWN.format(self._member.connect()[1].run.sync))

    def _counts(self, steps: Any, samples: Any) -> tuple[int, int]:
        """Return the numbers of steps and examples of a step. Raises ValueError."""
        steps = given.whole("steps", steps, 1, given.MOST_AT_ONCE)
        samples = self._samples * steps if samples is None else samples
        return steps, given.whole("samples", samples, 0, given.MOST_AT_ONCE)

    def _telling(self) -> contextlib.AbstractContextManager[None]:
        """Have the worker's other processes raise an error of the body, too."""
        return (contextlib.nullcontext() if self._ranks is None else
                self._ranks.group.errors_reach_all())

    def epochs(self) -> Iterator[int]:
        """Iterate over the epochs, 0, 1 ..., until the run is stopped.

        Yields:
            Epochs of the run in which this worker has examples to train; without shared data, of
            this worker.
        """
        self._within("w.epochs()")
        if self._share is None:
            for epoch in range(self._epochs):
                if self._stops:
                    return
                yield epoch
            return
        while self._continues(self._share):
            epoch, steps = self._share.next_epoch, self._steps
            yield epoch
            if self._steps == steps and self._continues(self._share):
                raise _wrong(f"no example of epoch {epoch} was trained: iterate over w.indices() "
                             "or w.batches() in the loop over w.epochs()")

    def indices(self) -> Iterator[np.ndarray]:
        """Iterate over this worker's examples of one epoch of shared data.

        Yields:
            Indices of 0 ... n - 1, int64 [at most batch_size, unless the server sets the sizes]:
            one array for each step.

        Raises:
            ValueError: the data are not shared, or `step` was not called after a step.
        """
        share = self._of_shared("w.indices()")
        epoch = share.next_epoch
        while self._continues(share, epoch):
            yield self._enter(self._take(share))
        self._pause()

    def batches(self, *data: Any) -> Iterator[Any]:
        """Iterate over this worker's batches of one epoch.

        Args:
            data: arrays of n rows of shared data that accept an array of indices; or one loader,
                for shared data one with `sampler` as its batch_sampler.

        Yields:
            A batch for each step: the rows of an array, a tuple of them for several arrays, or the
            loader's batch.

        Raises:
            ValueError: the loader's data are not the run's, or `step` was not called after a step.
        """
        (loader, *others) = data
        if all(hasattr(one, "shape") for one in data):
            for indices in self.indices():
                rows = tuple(array[indices] for array in data)
                yield rows if others else rows[0]
        elif others:
            raise _wrong("w.batches() takes arrays, or one loader")
        elif self._share is None:
            self._within("w.batches()")
            for batch in () if self._stops else loader:
                yield self._enter(batch)
                if self._stops:
                    break
            self._pause()
        else:
            yield from self._loaded(self._share, loader)

    def _loaded(self, share: Share, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield a loader's batches.

        A loader requests indices before it returns a batch that is ready, and new indices may
        depend on that batch's step. So the loader ends when no indices are known, and restarts with
        the next ones.
        """
        epoch = share.next_epoch
        try:
            while self._continues(share, epoch):
                steps, self._loads = self._steps, True
                for batch in loader:
                    if not share.handed_out:
                        raise _wrong("the loader makes its own batches: create it with "
                                     "batch_sampler=w.sampler")
                    yield self._enter(batch)
                    if self._stops:
                        return
                if self._steps == steps:
                    raise _wrong("the loader returns no batch although examples are left: create "
                                 "it with batch_sampler=w.sampler")
        finally:
            self._loads = False
        self._pause()

    def _take(self, share: Share) -> np.ndarray:
        """Return the indices of the next batch, which must be ready."""
        if share.handed_out:
            raise _wrong(_AHEAD)
        return self._next(share)

    def _next(self, share: Share) -> np.ndarray:
        """Return the indices of the next batch; in a group of processes, this one's part of it."""
        batch = share.take()
        if batch.stop <= batch.start:
            self._member.connected()  # raises: the server was lost meanwhile
        indices = self._order.examples(batch.start, batch.stop, share.data.n, share.data.seed)
        own: np.ndarray = indices if self._ranks is None else self._ranks.part(batch, indices)
        return own

    def _of_shared(self, what: str) -> Share:
        if self._share is None:
            raise _wrong(f"{what} needs data that all workers share: {self._shares}")
        self._within(what)
        if self._trains:
            self._member.connected()
        return self._share

    def _within(self, what: str) -> None:
        """Raise ValueError outside of the block, and if this worker has left the run."""
        if self._member.loop is None:
            raise _wrong(f"call {what} inside the block: with wbsp.Worker(values) as w")

    def _check_shared(self, share: Share, steps: int) -> None:
        """Raise ValueError for a step that has not trained one batch of the shared data."""
        if steps != 1:
            raise ValueError(f"steps={steps}: on shared data call w.step after each batch")
        if not share.handed_out:
            raise ValueError("a step has trained no batch of the shared data: take them from "
                             "w.indices() or w.batches()")

    def _check_values(self) -> None:
        """Raise ValueError if the values are not those that entered the block.

        Large models take milliseconds, so that not each step is checked.
        """
        if not self._steps:
            self._values.check_first()
        elif HOST.clock.monotonic() < self._checked:
            return
        began = HOST.clock.monotonic()
        self._values.check()
        ended = HOST.clock.monotonic()
        self._checked = ended + (ended - began) / _CHECKS

    @property
    def _stops(self) -> bool:
        return self._member.loop is None or self.stop_reason is not None

    @property
    def _trains(self) -> bool:
        """True inside the block of a member of the run, unless that has ended before."""
        return self._member.loop is not None and self._passed is None and self._follower is None

    def _continues(self, share: Share, epoch: int | None = None) -> bool:
        """Return whether the next step's batch is ready, and of this epoch."""
        return self._together(share, lambda: not self._stops and share.ready
                              and epoch in (None, share.next_epoch))

    def _offers(self, share: Share, epoch: int) -> bool:
        """Return whether another batch of this epoch can be taken at once."""
        return self._together(share, lambda: share.untaken and share.untaken_epoch == epoch)

    def _together(self, share: Share, decide: Callable[[], bool]) -> bool:
        """Return whether the loop continues, which rank 0 decides in a group of processes."""
        return decide() if self._ranks is None else bool(self._ranks.goes_on(share, decide))

    def _step_begins(self) -> None:
        if self._trains:
            self._member.step_begins("data or compute")

    def _enter(self, batch: Any) -> Any:
        """Begin the computation of a step, and return its batch."""
        if self._trains:
            self._member.begun().enter("compute")
        return batch

    def _pause(self) -> None:
        """Note that the loop does other work, such as validating, until the next step begins."""
        if self._trains:
            self._member.begun().enter("validation")

    def _known(self, loss: Any) -> float:
        """Return the loss as a number.

        If it may still be computed, that of the step before, so that one step stays in flight.
        """
        if loss is None:
            return float("nan")
        loss = loss.detach() if hasattr(loss, "detach") else loss
        on = getattr(getattr(loss, "device", None), "type", "cpu")
        if not hasattr(loss, "block_until_ready") and on == "cpu":
            return given.loss(loss)
        known = loss if self._before is None else self._before
        self._before = loss
        return given.loss(known)


class _Sampler:
    """This worker's batches of one epoch.

    In `Worker.batches` an iteration has those that are known, and another one follows. Elsewhere it
    has all, each of which must be trained before the next is requested.
    """

    def __init__(self, worker: Worker):
        self._worker = worker

    def __len__(self) -> int:
        """Return more batches than one worker can have, because trainers end an epoch by it.

        A worker may train others' examples, too, that a lost worker leaves behind, and any batch
        may be short.
        """
        return int(self._worker._whole("w.sampler").total)

    def __iter__(self) -> Iterator[list[int]]:
        worker = self._worker
        share, restarted = worker._of_shared("w.sampler"), worker._loads
        if restarted and share.handed_out:
            raise _wrong(_AHEAD)
        epoch = share.next_epoch
        if restarted:
            while worker._offers(share, epoch):
                yield worker._next(share).tolist()
            return
        while worker._continues(share, epoch):
            yield worker._take(share).tolist()
        worker._pause()


def _wrong(text: str) -> Exception:
    return says_all(ValueError(text))


def _check_outside(loss: Any) -> None:
    """Raise ValueError inside a traced function, which calls Python only once."""
    tf, jax = sys.modules.get("tensorflow"), sys.modules.get("jax")
    if tf is not None and not tf.executing_eagerly():
        raise ValueError("w.step was called inside a tf.function, which calls it once, when it is "
                         "traced: call it after the function; w.step(loss, steps=k) for k steps "
                         "in the graph")
    if jax is not None and isinstance(loss, jax.core.Tracer):
        raise ValueError("w.step was called inside a function that JAX traces: call it after the "
                         "step, with what the step has returned")
