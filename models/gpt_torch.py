"""The decoder of `models.gpt` as a module of PyTorch, with equal names and initial bytes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from models.gpt import BYTES, EPSILON, Shape, initial


class GPT(nn.Module):
    """The decoder: int64 [batch, context] bytes to [batch, context, 256] logits.

    Args:
        form: of the network.
        seed: of W_0.
    """

    def __init__(self, form: Shape, seed: int):
        super().__init__()
        self.form = form
        self.values = nn.ParameterDict({name: nn.Parameter(torch.from_numpy(value.copy()))
                                        for name, value in initial(form, seed).items()})

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        """Return the logits of each byte's successor."""
        form, values = self.form, self.values
        batch, context = seen.shape

        def norm(x: torch.Tensor, name: str) -> torch.Tensor:
            return functional.rms_norm(x, (form.width,), values[name], EPSILON)

        def split(x: torch.Tensor) -> torch.Tensor:
            return x.view(batch, context, form.heads, -1).transpose(1, 2)

        x = values["bytes"][seen] + values["positions"][:context]
        for n in range(form.layers):
            three = norm(x, f"norm{n}a") @ values[f"attend{n}"]
            q, k, v = (split(part) for part in three.chunk(3, -1))
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + mixed.transpose(1, 2).reshape(x.shape) @ values[f"project{n}"]
            wide = functional.gelu(norm(x, f"norm{n}b") @ values[f"widen{n}"], approximate="tanh")
            x = x + wide @ values[f"narrow{n}"]
        return norm(x, "norm") @ values["bytes"].T

    def loss(self, seen: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        """Return the mean loss in nats a byte; `wanted`: the byte after each."""
        return functional.cross_entropy(self(seen).view(-1, BYTES), wanted.reshape(-1))
