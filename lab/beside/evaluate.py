"""`python -m beside.evaluate FOLDER`: print the loss of the final weights of a run, in nats a byte.

The weights are those of the first machine that gave any; the windows are the same for all runs.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from beside.plan import Plan
from data import stdlib
from models.gpt import shape
from models.gpt_torch import GPT

WINDOWS, AT_ONCE = 256, 32


@torch.no_grad()
def main(folder: Path) -> None:
    """Print the loss."""
    torch.set_num_threads(1)
    plan = Plan.read(folder)
    form = shape(plan.model)
    assert form is not None
    model = GPT(form, 0)
    model.load_state_dict(torch.load(min(folder.glob("final-*.pt"))))
    rows = stdlib.load(None, "test", stdlib.Look(form.context))
    chosen = np.random.default_rng(7).choice(len(rows[0]), WINDOWS, replace=False)
    seen, wanted = (torch.from_numpy(part[chosen].astype(np.int64)) for part in rows)
    losses = [model.loss(seen[at:at + AT_ONCE], wanted[at:at + AT_ONCE]).item()
              for at in range(0, WINDOWS, AT_ONCE)]
    print(f"{np.mean(losses):.6f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
