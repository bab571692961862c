"""A training loop in PyTorch as one worker of a run; without Keras and TensorFlow.

    wbsp ps --worker_num=2 --sync=pcc
    python examples/train_pytorch.py
    python examples/train_pytorch.py --sleep=0.1

trains drawn pictures; --data=FOLDER trains CIFAR-10 from its binary files.
"""

import argparse
import time

import torch
from pictures import pictures
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wbsp

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--data", help="folder of CIFAR-10's binary files; default: draw pictures")
parser.add_argument("--epochs", type=int, default=3, help="of all workers together")
parser.add_argument("--processes", type=int, default=0, help="that read ahead")
parser.add_argument("--sleep", type=float, default=0.0, help="seconds in each step: a slow worker")
flags = parser.parse_args()

train, test = (TensorDataset(torch.from_numpy(x).permute(0, 3, 1, 2), torch.from_numpy(y))
               for x, y in pictures(flags.data))
device = "cuda" if torch.cuda.is_available() else "cpu"


def block(inside, outside):
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside),
                         nn.ReLU(), nn.MaxPool2d(2))


model = nn.Sequential(block(3, 16), block(16, 32), block(32, 32), nn.Flatten(),
                      nn.Linear(32 * 4 * 4, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


@torch.no_grad()
def accuracy():
    model.eval()
    right = sum((model(x.to(device)).argmax(1).cpu() == y).sum().item()
                for x, y in DataLoader(test, batch_size=500))
    model.train()
    return right / len(test)


with wbsp.Worker(model, n=len(train), batch_size=64, epochs=flags.epochs) as w:
    loader = DataLoader(train, batch_sampler=w.sampler, num_workers=flags.processes,
                        persistent_workers=flags.processes > 0)
    for epoch in w.epochs():
        for x, y in w.batches(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            time.sleep(flags.sleep)
            w.step(loss)
        print(f"epoch {epoch + 1}: {w.progress()}", flush=True)

# behind the block the model is the run's final version, the same on all workers
print(f"{w.stop_reason}; accuracy {accuracy():.4f}")
