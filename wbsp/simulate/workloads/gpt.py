"""The decoder of bytes as the task of simulated workers: by JAX, and not by Keras."""

from __future__ import annotations

import logging
import os

from wbsp.simulate.workloads.base import of_experiment
from wbsp.simulate.workloads.task import TaskExperiment

WINDOWS = 256  # of the validation split, in an evaluation: a run spends its time on training


def experiment(model: str, dataset: str, batch_size: int, lr: float | None = None,
               windows: int | None = None, optimizer: str | None = None) -> TaskExperiment:
    """Return the training of the named decoder on the text of Python's library.

    Args:
        model: `gpt`, with its options.
        dataset: that of the model.
        batch_size: windows of a mini-batch.
        lr: the highest learning rate; None: that of AdamW.
        windows: of the validation split, which an evaluation looks at; None: `WINDOWS`.
        optimizer: adamw with its options; None: without any.

    Raises:
        ValueError: an argument is bad, or JAX is not installed; one line.
    """
    adamw, stdlib = of_experiment("models.adamw"), of_experiment("data.stdlib")
    of_experiment("models").check(model, dataset)
    form = of_experiment("models.gpt").shape(model)
    options = adamw.checked(optimizer or adamw.NAME)
    if options is None:
        raise ValueError(f"--optimizer={optimizer}: {model} is trained by adamw in virtual time")
    look = stdlib.Look(form.context)
    least = stdlib.size(None, "test", look)
    if windows is not None and windows > least:
        raise ValueError(f"--test_images={windows}: the validation split of stdlib has {least} "
                         f"windows of {form.context} bytes")
    # One thread: the sums of several are in no fixed order, and small products gain nothing.
    os.environ["XLA_FLAGS"] = " ".join([
        os.environ.get("XLA_FLAGS", ""), "--xla_cpu_multi_thread_eigen=false",
        "intra_op_parallelism_threads=1", "--xla_gpu_deterministic_ops=true"])
    logging.getLogger("jax").setLevel(logging.WARNING)  # it tells of each device that it lacks
    try:
        gpt_jax = of_experiment("models.gpt_jax")
    except ModuleNotFoundError as error:
        if error.name != "jax":
            raise
        raise ValueError(f"--model={model} is trained by JAX in virtual time, which is not "
                         "installed: pip install jax") from None
    chosen = of_experiment("data.draws").subset(least, windows or min(WINDOWS, least))
    test = tuple(part[chosen] for part in stdlib.load(None, "test", look))
    task = gpt_jax.Training(form, options, stdlib.load(None, "train", look), test)
    return TaskExperiment(task, batch_size, adamw.RATE if lr is None else lr, options.factor)
