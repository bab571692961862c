"""The actor that trains: one worker of a run, in its own process."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray import cloudpickle

from wbsp.process.private import kept_in_file
from wbsp.wire.errors import TransportError
from wbsp.worker.next_run import close_all


class Outcome(NamedTuple):
    """The result of a worker: what its `train` returned, or why it has lost the server."""

    value: Any
    lost: str | None = None


@dataclass(frozen=True)
class Script:
    """A user's own script in place of a function, run as `python train.py` would run it.

    Attributes:
        path: of the file, for messages.
        text: content of the file, so that other nodes need not read it.
        folder: in which the command was typed; the script runs there if the node has it.
        arguments: that follow the script on the command line.
    """

    path: str
    text: str
    folder: str
    arguments: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: str | os.PathLike[str], arguments: tuple[str, ...] = ()) -> Script:
        """Read the script from a file.

        Args:
            path: of the file.
            arguments: of the script.

        Raises:
            OSError: the file cannot be read.
        """
        return cls(os.path.abspath(path), Path(path).read_text(encoding="utf-8"), os.getcwd(),
                   arguments)

    def __call__(self) -> None:
        """Run the script. Raises RuntimeError if its exit code is not 0."""
        own, arguments, places = sys.modules["__main__"], sys.argv, sys.path[:]
        main = types.ModuleType("__main__")
        main.__file__ = self.path
        sys.modules["__main__"], sys.argv = main, [self.path, *self.arguments]
        sys.path.insert(0, os.path.dirname(self.path))
        with contextlib.suppress(OSError):
            os.chdir(self.folder)
        try:
            exec(compile(self.text, self.path, "exec"), main.__dict__)
        except SystemExit as end:
            if _of_ray(end):
                raise
            if end.code not in (None, 0):
                raise RuntimeError(f"{self.path} ended with {end.code!r}") from None
        finally:
            sys.modules["__main__"], sys.argv, sys.path[:] = own, arguments, places


def travels(error: BaseException) -> bool:
    """Return whether an exception survives serialization unchanged.

    If Ray cannot deserialize one, it takes the actor for dead; one that is no Exception it takes
    for the actor's end.
    """
    try:
        made = cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        return False
    return isinstance(error, Exception) and type(made) is type(error)


def _of_ray(end: SystemExit) -> bool:
    """Return whether Ray ends this process, for example by a signal: that is its death."""
    return hasattr(end, "ray_terminate_msg")


class Worker:
    """Worker `index` of a run. An actor; its methods run in the process's main thread."""

    def __init__(self, index: int):
        self._index = index

    def __repr__(self) -> str:
        return f"worker {self._index}"

    def ready(self) -> None:
        """Return once this process runs."""

    def train(self, task: tuple[Callable[..., Any], tuple[Any, ...]], token: str,
              environment: Mapping[str, str]) -> Outcome:
        """Train to the end. Raises what `train` raises, except for the loss of the server.

        Args:
            task: the function and its arguments.
        """
        train, arguments = task
        os.environ.update(environment, WBSP_WORKER_INDEX=str(self._index))
        if not ray.get_runtime_context().get_accelerator_ids().get("GPU"):
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the node's GPUs belong to other workers
        with kept_in_file(token) as token_file:
            os.environ["WBSP_TOKEN_FILE"] = token_file
            try:
                return Outcome(train(*arguments))
            except TransportError as error:
                return Outcome(None, str(error))
            except SystemExit as end:
                if _of_ray(end):
                    raise
                if end.code in (None, 0):
                    return Outcome(None)
                raise RuntimeError(f"train ended with {end.code!r}") from None
            except BaseException as error:
                if travels(error):
                    raise
                raise RuntimeError(f"{type(error).__name__}: {error}") from error
            finally:
                close_all()  # the actor's process stays, and the server must not wait for it
