"""A Hugging Face Trainer as one worker of a run: LoRA on a transformer, on shared data.

    wbsp ps --worker_num=2 --sync=auto
    python examples/train_huggingface.py
    python examples/train_huggingface.py --sleep=0.1

needs `pip install 'wbsp[huggingface]'`. The transformer is a small one with random
weights, and the sentences are drawn: nothing is downloaded.
"""

import argparse
import time

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import wbsp

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--epochs", type=int, default=3, help="of all workers together")
parser.add_argument("--sleep", type=float, default=0.0, help="seconds in each step: a slow worker")
flags = parser.parse_args()

BATCH, WORDS, LENGTH, CLASSES = 32, 1000, 32, 4


def sentences(count, seed):
    """Of random words, an eighth of them from the sentence's class."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(CLASSES, size=count)
    words = draw.integers(CLASSES * 10, WORDS, size=(count, LENGTH))
    hints = labels[:, None] * 10 + draw.integers(10, size=(count, LENGTH))
    words = np.where(draw.random((count, LENGTH)) < 1 / 8, hints, words)
    return [{"input_ids": torch.tensor(one), "labels": int(label)}
            for one, label in zip(words, labels, strict=True)]


train, test = sentences(8000, seed=1), sentences(1000, seed=2)
transformer = BertForSequenceClassification(BertConfig(
    vocab_size=WORDS, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=256, max_position_embeddings=LENGTH, num_labels=CLASSES))
model = get_peft_model(transformer, LoraConfig(
    r=8, target_modules=["query", "value"], modules_to_save=["classifier"]))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 5e-3)


class Shared(TrainerCallback):
    """The Trainer's steps are the worker's, and it ends when the run does."""

    def on_step_end(self, args, state, control, **others):
        time.sleep(flags.sleep)
        w.step(trainer.loss)
        control.should_training_stop = w.stop_reason is not None

    def on_epoch_end(self, args, state, control, **others):
        control.should_training_stop = True


class SharedTrainer(Trainer):
    def get_train_dataloader(self):
        return self  # of all epochs of the run, as many batches as this worker has time for

    def __iter__(self):
        loader = DataLoader(train, batch_sampler=w.sampler, collate_fn=self.data_collator)
        for _ in w.epochs():
            yield from w.batches(loader)

    def training_step(self, *args, **others):
        self.loss = super().training_step(*args, **others)
        return self.loss


w = wbsp.Worker(model, n=len(train), batch_size=BATCH, epochs=flags.epochs)
trainer = SharedTrainer(
    model, TrainingArguments(max_steps=len(w.sampler), per_device_train_batch_size=BATCH,
                             report_to="none", dataloader_pin_memory=False, logging_strategy="no",
                             save_strategy="no", disable_tqdm=True),
    train_dataset=train, callbacks=[Shared()],
    optimizers=(optimizer, LambdaLR(optimizer, lambda step: 1 - w.done)))
with w:
    begin = time.monotonic()
    trainer.train()
    seconds = time.monotonic() - begin

# behind the block the model is the run's final version, the same on all workers
right = trainer.predict(test).predictions.argmax(1) == [one["labels"] for one in test]
print(f"{w.stop_reason} in {seconds:.1f} s; accuracy {right.mean():.4f}")
