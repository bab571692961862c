"""Which back end of Keras sees a GPU, and processes that compute there or on the CPU.

A process has one back end, and what fails on a GPU often takes its process along. So each part of
the check computes in processes of its own, and the one that started them imports no back end.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import time
import traceback
from multiprocessing import get_context
from typing import Any, NamedTuple

from wbsp.process.imports import heavy_imports

BACK_ENDS = "tensorflow", "jax", "torch"  # in the order in which they are tried


class Place(NamedTuple):
    """What a process computes with."""

    back_end: str
    device: str  # "gpu" or "cpu"


class PartError(RuntimeError):
    """A part of the check failed; `details` is the traceback, where there is one."""

    def __init__(self, reason: str, details: str = ""):
        super().__init__(reason)
        self.details = details


def use(place: Place) -> None:
    """Let Keras run on `place` in this process. To be called before anything imports Keras.

    Memory of a GPU is taken as it is needed: other processes of the check need some, too.
    """
    os.environ["KERAS_BACKEND"] = place.back_end
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if place.device == "cpu":
        os.environ["JAX_PLATFORMS"] = os.environ["KERAS_TORCH_DEVICE"] = "cpu"
    if place.back_end == "tensorflow":
        with heavy_imports():
            import tensorflow as tf
            tf.config.list_physical_devices("GPU")
        if place.device == "cpu":
            tf.config.set_visible_devices([], "GPU")
        for gpu in tf.config.get_visible_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)


def devices(back_end: str) -> list[str]:
    """Names of the GPUs that the back end sees in this process."""
    module = importlib.import_module(back_end)
    if back_end == "tensorflow":
        details = module.config.experimental.get_device_details
        return [details(gpu).get("device_name", gpu.name)
                for gpu in module.config.list_physical_devices("GPU")]
    if back_end == "jax":
        return [one.device_kind for one in module.devices() if one.platform != "cpu"]
    return [module.cuda.get_device_name(n) for n in range(module.cuda.device_count())]


def full_precision(back_end: str) -> None:
    """Disable TensorFloat-32 in this process: products of float32 are as exact as on a CPU."""
    module = importlib.import_module(back_end)
    if back_end == "tensorflow":
        module.config.experimental.enable_tensor_float_32_execution(False)
    elif back_end == "jax":
        module.config.update("jax_default_matmul_precision", "highest")
    else:
        module.backends.cuda.matmul.allow_tf32 = module.backends.cudnn.allow_tf32 = False


def find(wanted: str | None, end: float) -> tuple[Place, list[str]]:
    """Return the first back end that sees a GPU, and the names of its GPUs.

    wanted: the only one to try; end: when to give up, of time.monotonic
    Raises LookupError, in one line, if none does.
    """
    seen = []
    for back_end in (wanted,) if wanted else BACK_ENDS:
        if back_end not in BACK_ENDS:
            raise LookupError(f"KERAS_BACKEND={back_end}: choose one of {', '.join(BACK_ENDS)}")
        if importlib.util.find_spec(back_end) is None:
            seen.append(f"{back_end} is not installed")
            continue
        place = Place(back_end, "gpu")
        try:
            with Process(place) as process:
                names = process.call("device.devices", back_end, end=end)
        except PartError as error:
            seen.append(f"{back_end} fails ({error})")
            continue
        if names:
            return place, names
        seen.append(f"{back_end} sees none")
    raise LookupError(
        f"no GPU: {'; '.join(seen)}. Look at `nvidia-smi` and CUDA_VISIBLE_DEVICES, and install a "
        "back end with CUDA (pip install 'tensorflow[and-cuda]', 'jax[cuda12]' or torch), or "
        "rehearse without a GPU: --device=cpu")


class Process:
    """Calls functions in a process at a place, one at a time; it is killed at the block's end."""

    def __init__(self, place: Place):
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, place), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def call(self, function: str, *args: Any, end: float) -> Any:
        """Call `function`, "module.name" of this folder, with `args` in that process.

        Raises PartError if it fails, or has not returned at `end` of time.monotonic.
        """
        self.send(function, *args)
        return self.result(end)

    def send(self, function: str, *args: Any) -> None:
        """Begin a call; read its `result` afterwards."""
        with contextlib.suppress(OSError):  # `result` reports the end of the process
            self._pipe.send((function, args))

    def result(self, end: float) -> Any:
        """Return the result of `send`: see `call`."""
        if not self._pipe.poll(max(0.0, end - time.monotonic())):
            raise PartError("it was not done in time: --limit=SECONDS allows more")
        try:
            value, error, details = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            raise PartError(f"its process ended with exit code {self._process.exitcode}") from None
        if error is not None:
            raise PartError(error, details)
        return value


def _serve(pipe: Any, place: Place) -> None:
    """Serve the calls of `Process` until it ends."""
    used = False
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        answer: tuple[Any, str | None, str]
        try:
            if not used:
                use(place)
                used = True
            module, _, name = function.partition(".")
            found = getattr(importlib.import_module(f"scripts.gpu.{module}"), name)
            answer = found(*args), None, ""
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            told = f"{type(error).__name__}: {lines[0][:300] if lines else ''}"
            answer = None, told, traceback.format_exc()
        pipe.send(answer)
