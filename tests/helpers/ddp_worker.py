"""`python ddp_worker.py ADDRESS INDEX RANK PORT HOW FILE`: run one of the two processes of a worker
that trains the network of `loop_worker.py` by PyTorch's DistributedDataParallel; write its final
values to FILE.

HOW: `indices` or `loader` of shared data; or `own`.
"""

import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from loop_worker import BATCH, EPOCHS, RATE, WIDTHS, N, data

import wbsp

SIZE = 2


def main(address, index, rank, port, how, file):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=SIZE)
    torch.manual_seed(10 * index + rank)
    still = torch.nn.Linear(WIDTHS[0], WIDTHS[0])
    still.requires_grad_(False)
    net = torch.nn.Sequential(
        still, torch.nn.Linear(*WIDTHS[:2]), torch.nn.ReLU(), torch.nn.BatchNorm1d(WIDTHS[1]),
        torch.nn.Linear(*WIDTHS[1:]))
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    x, y = map(torch.from_numpy, data())
    seen = set()

    def step(xs, ys):
        time.sleep(0.001 * (1 + 3 * index))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(xs), ys)
        loss.backward()
        optimizer.step()
        w.step(loss)

    shared = {"n": N, "batch_size": BATCH, "epochs": EPOCHS} if how != "own" else {
        "batch_size": BATCH, "epochs": 2}
    with wbsp.Worker(model, address=address, worker_index=index, **shared) as w:
        mine = slice(rank, None, SIZE) if how == "own" else slice(None)
        rows = torch.utils.data.TensorDataset(x[mine], y[mine])
        loader = torch.utils.data.DataLoader(rows, BATCH // SIZE) if how == "own" else (
            torch.utils.data.DataLoader(rows, batch_sampler=w.sampler))
        for _ in w.epochs():
            if how == "indices":
                for indices in w.indices():
                    seen.update(indices.tolist())
                    step(x[indices], y[indices])
            else:
                for xs, ys in w.batches(loader):
                    step(xs, ys)
    np.savez(file, *[tensor.numpy() for tensor in net.state_dict().values() if tensor.dim()])
    print("ended:", w.stop_reason)
    print("seen:", len(seen))
    print("steps of all:", w.run_steps)
    if how != "own":
        print("done:", w.done, w.total_steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    address, index, rank, port, how, file = sys.argv[1:]
    main(address, int(index), int(rank), int(port), how, file)
