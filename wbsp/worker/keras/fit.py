"""One call of Keras's `fit`, which informs its callbacks neither of its end nor of each other.

If a `fit` is interrupted or fails, Keras calls no callback. In a process that continues, such as a
notebook's, the worker would continue to send heartbeats, and the other workers would wait for it.

Keras calls callbacks in the order of their list, and each may write to the model. A step begins
before the first callback's on_train_batch_begin, and ends after the last one's on_train_batch_end.
What a callback writes at another time is no training. None of this may depend on the list's order.

A callback may evaluate for minutes, in a loop of Keras that calls none of this fit's callbacks.
After a signal the worker leaves before the next line of such a loop.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import keras

from wbsp.replica.layers import calls, every_layer
from wbsp.worker.loop import Loop

Logs = dict[str, Any] | None  # of Keras, to its callbacks
PERIOD = 1.0  # seconds between two checks
_LOOPS = "evaluate", "fit", "predict"  # functions of Keras that call it for each batch
_ON_TRAIN_BEGIN = keras.callbacks.CallbackList.on_train_begin.__code__


class Edge(keras.callbacks.Callback):
    """The first or the last callback of a list; it has methods of these names only.

    Args:
        methods: name of a method of Callback -> function that Keras then calls with its arguments.
    """

    def __init__(self, **methods: Callable[..., None]):
        super().__init__()
        self.act(**methods)

    def act(self, **methods: Callable[..., None]) -> None:
        """Have Keras call other methods of these names."""
        for name, method in methods.items():
            setattr(self, name, method)


class Fit(Loop):
    """The innermost call of a function `fit` in which this object is created.

    The call is over when its frame has left its thread's stack. The frame may exist longer: a
    notebook, for example, keeps an exception, and with it the traceback.

    Args:
        on_over: called with this object, in a separate thread, if the call is over before `forget`.
    """

    failure = "its fit was interrupted or failed"
    not_begun_from = (
        "a callback set the weights before the first step: restoring the run's version, with which "
        "this worker begins. To start a run with such weights, load them on all workers before fit")
    undone = (
        "a callback, or a layer in a validation, changed the weights between two epochs: restoring "
        "them, now and each time, because a worker adds only its steps to the run's model. Changes "
        "in on_train_batch_begin and on_train_batch_end are part of the step")
    shares = (
        "data = hook.examples(function, n, batch_size), and fit(data, "
        "steps_per_epoch=hook.UNTIL_TOLD, ...)")
    replaced = (
        "a callback set the weights at the end of training: replacing them by the run's final "
        "version, which fit leaves on every worker. To keep them, save them to a file in a "
        "callback's on_epoch_end")
    no_best = (
        "EarlyStopping(restore_best_weights=True) ends this worker's training as always, but after "
        "fit the model holds the run's final version. To have the best one, start the server with "
        "--best={}{}, and then call wbsp.load(RUN, model, best=True)")
    of_own_steps = (
        "{} counts only this worker's steps, but {} workers share the data: compile the model "
        "with a number as learning rate, and give the schedule to wbsp.RunSchedule(schedule, hook) "
        "among the callbacks, which counts the steps of all")
    other_epoch = (
        "a callback, such as BackupAndRestore, set the first epoch to {}: beginning with {} of {}, "
        "because the run has the epochs that are left to train")

    def __init__(self, on_over: Callable[[Fit], None]):
        self._list: keras.callbacks.CallbackList | None = None
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_name != "fit":
            if frame.f_code is _ON_TRAIN_BEGIN:  # of nested lists, the last one is fit's
                self._list = frame.f_locals["self"]
            frame = frame.f_back
        self._frame = frame  # None: a user's own loop, not `fit`, calls the callback
        self._thread = threading.get_ident()
        self._forgotten = threading.Event()
        self._trace: Any = None  # of `leave_in`
        self.undo: list[Callable[[], None]] = []  # reverts changes of the fit's objects
        if frame is not None:
            threading.Thread(target=self._watch, args=(on_over,), name="wbsp-fit",
                             daemon=True).start()

    @property
    def running(self) -> bool:
        return (frame := self._frame) is not None and self._on_stack(frame)

    @property
    def over(self) -> bool:
        return (frame := self._frame) is not None and not self._on_stack(frame)

    def surround(self, first: Edge, last: Edge) -> list[keras.callbacks.Callback] | None:
        """Put `first` before and `last` after all callbacks in the list of this `fit`.

        Of the current on_train_begin, only that of `last` is still called.

        Returns the callbacks between the two; None if there is no list, because a user's own loop
        calls the callback.
        """
        if self._list is None:
            return None
        listed = self._list.callbacks
        callbacks = [one for one in listed if not isinstance(one, Edge)]
        self._list.callbacks = [first, *callbacks, last]  # new: Keras iterates over the old one
        listed.append(last)
        return callbacks

    def guard(self, on_error: Callable[[BaseException], None]) -> None:
        """Call `on_error` with an error that a callback raises, before it leaves this fit."""
        callbacks = self._list
        if callbacks is None:
            return

        def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **named: Any) -> Any:
                try:
                    return call(*args, **named)
                except BaseException as error:
                    on_error(error)
                    raise
            return called
        names = [name for name in dir(callbacks) if name.startswith("on_")]
        for name in names:
            setattr(callbacks, name, guarded(getattr(callbacks, name)))
        self.undo += [partial(delattr, callbacks, name) for name in names]

    def argument(self, name: str, default: Any) -> Any:
        """Return an argument of the call; the default if it is unknown."""
        return default if self._frame is None else self._frame.f_locals.get(name, default)

    def leave_in(self, frame: FrameType | None, leave: Callable[[], bool]) -> None:
        if self._frame is None or sys.gettrace() is not None:
            return  # a debugger traces this thread

        def trace(frame: FrameType, event: str, value: Any) -> Any:
            if event == "call":  # of any function, from now on
                return trace if _loops(frame) else None
            if leave():
                sys.settrace(None)
            return trace

        loops: list[FrameType] = []
        while frame is not None and frame is not self._frame:
            module = frame.f_globals.get("__name__", "")
            if module.startswith("wbsp.") and module != __name__:  # which only calls callbacks
                loops.clear()  # what it calls ends soon, and may hold locks
            elif _loops(frame):
                loops.append(frame)
            frame = frame.f_back
        if frame is not None:
            for loop in loops:
                loop.f_trace = trace
            self._trace = trace
            sys.settrace(trace)

    def build(self, model: keras.Model) -> None:
        """Create the variables that Keras creates in the first step, such as those of a subclassed
        model or of a Sequential without an Input: call the model on the beginning of its data.

        Nothing is taken from a generator, since training would miss it; the model stays unbuilt.
        One without `call`, such as a GAN, consists of models that are built.
        """
        build(model, self.argument("x", None))

    def forget(self) -> None:
        # Stop watching, and release the frame, which references the data of `fit`.
        while self.undo:
            self.undo.pop()()
        self._frame = self._list = None
        self._forgotten.set()
        if self._trace is not None and sys.gettrace() is self._trace:
            sys.settrace(None)

    def _watch(self, on_over: Callable[[Fit], None]) -> None:
        """Run the watching thread."""
        while not self._forgotten.wait(PERIOD):
            if self.over:
                on_over(self)
                return

    def _on_stack(self, wanted: FrameType) -> bool:
        frame = sys._current_frames().get(self._thread)
        while frame is not None and frame is not wanted:
            frame = frame.f_back
        return frame is wanted


def _loops(frame: FrameType) -> bool:
    """Return whether this is a call of a loop of Keras."""
    return (frame.f_code.co_name in _LOOPS
            and frame.f_globals.get("__name__", "").startswith("keras."))


def build(model: keras.Model, x: Any) -> None:
    """See `Fit.build`, on the data `x`."""
    if (all(layer.built for layer in every_layer(model)) or not calls(model)
            or (batch := _first(x)) is None):
        return
    try:
        model(batch)
    except Exception:
        if type(model).train_step is keras.Model.train_step:  # another may call only its parts
            raise


def _first(x: Any) -> Any:
    """Return inputs for a model; None if they are unknown."""
    tf = sys.modules.get("tensorflow")
    if isinstance(x, keras.utils.PyDataset):
        return keras.utils.unpack_x_y_sample_weight(x[0])[0]
    if tf is not None and isinstance(x, tf.data.Dataset):
        for batch in x.take(1):
            return keras.utils.unpack_x_y_sample_weight(batch)[0]
    arrays = keras.tree.flatten(x)
    if arrays and all(hasattr(one, "shape") and hasattr(one, "__getitem__") for one in arrays):
        return keras.tree.map_structure(lambda one: one[:1], x)
    return None
