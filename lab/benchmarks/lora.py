"""What a worker's process takes of memory beside the same Hugging Face Trainer without a server.

    python -m lab.benchmarks.lora [--layers=4] [--hidden=512] [--tcp] [--json FILE]

LoRA (rank 8) on a BERT with random weights, of which the adapter and a classifier are trained. A
plain `Trainer.train()`, and two workers under a synchronization model with their server, each a
process of its own, all with the same batches and steps. Shown are megabytes that a process has for
itself: the most of all, with the joining, and the most of the steps' second half.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from multiprocessing.connection import Connection
from typing import Any

from lab.benchmarks.contenders.team import start_team
from lab.benchmarks.memory import Watch
from scripts.harness import print_table, server, write_json

WORDS, LENGTH, BATCH = 30_000, 32, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--sync", default="auto")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tcp", action="store_true", help="no shared memory")
    parser.add_argument("--json", metavar="FILE", help="write the figures")
    args = parser.parse_args()
    if not os.path.exists("/proc/self/status"):
        sys.exit("lab.benchmarks.lora: this system has no /proc/self/status")
    try:
        figures = measure(args)
    except (RuntimeError, OSError) as error:
        sys.exit(f"lab.benchmarks.lora: {error}")
    write_json(args.json, {"lora": figures})


def measure(args: argparse.Namespace) -> dict:
    """Measure, print a table, return its figures."""
    plan = args.layers, args.hidden, args.steps, "tcp" if args.tcp else "auto"
    with start_team(_trains, [(None, 0, *plan)]) as team:
        (plain,) = team.answers()
    with server(args.sync, 2) as address, start_team(_trains, [
            (address, worker, *plan) for worker in range(2)]) as team:
        workers = team.answers()
    print_table(("MB", "at most", "more than plain", "in steps", "more than plain"), [
        (name, *(f"{number / 1e6:.0f}" for number in (
            one["most"], one["most"] - plain["most"], one["steps"],
            one["steps"] - plain["steps"])))
        for name, one in (("plain", plain), ("worker 0", workers[0]), ("worker 1", workers[1]))])
    print(f"the model: {plain['floats'] / 1e6:.1f} million floats, {4 * plain['floats'] / 1e6:.0f} "
          f"MB, of which {4 * plain['trained'] / 1e6:.2f} MB are trained; {args.sync}, "
          f"{args.steps} steps")
    return {"plain": plain, "workers": workers}


def _trains(pipe: Connection, address: str | None, worker: int, layers: int, hidden: int,
            steps: int, transport: str) -> None:
    """Train, as a worker where there is an `address`; answer that it has begun, and then with what
    it took."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    import wbsp

    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": WORDS, "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": 8, "intermediate_size": 4 * hidden,
        "max_position_embeddings": LENGTH, "num_labels": 4}
    model = get_peft_model(
        BertForSequenceClassification(BertConfig(**shape)),
        LoraConfig(r=8, target_modules=["query", "value"], modules_to_save=["classifier"]))
    examples = [{"input_ids": torch.randint(WORDS, (LENGTH,)), "labels": k % 4}
                for k in range(steps * BATCH)]
    found: dict[str, Any] = {
        "floats": sum(p.numel() for p in model.parameters()), "steps": 0,
        "trained": sum(p.numel() for p in model.parameters() if p.requires_grad)}

    class Hook(TrainerCallback):
        """The steps are the worker's; the memory is noted at the end of each."""

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if member is not None:
                member.step()
            if state.global_step > steps // 2:
                found["steps"] = max(found["steps"], watch.now)

    member = None if address is None else wbsp.Worker(
        model, address=address, worker_index=worker, transport=transport, say=lambda text: None)
    trainer = Trainer(model, TrainingArguments(
        output_dir=os.environ["TMPDIR"], max_steps=steps, per_device_train_batch_size=BATCH,
        report_to="none", dataloader_pin_memory=False, logging_strategy="no", save_strategy="no",
        disable_tqdm=True), train_dataset=examples, callbacks=[Hook()])
    pipe.send(None)
    with Watch() as watch, member or contextlib.nullcontext():
        trainer.train()
    pipe.send({**found, "most": watch.own})


if __name__ == "__main__":
    main()
