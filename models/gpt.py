"""A decoder of bytes: a small GPT, of 168,384 parameters by default.

Its blocks of causal attention and of a GELU layer four times as wide have no biases, and normalize
before (root mean square, Zhang and Sennrich 2019, arXiv 1910.07467). Positions are learned, and the
embedding is also the last layer's kernel (Press and Wolf 2017, arXiv 1608.05859).

`initial` draws W_0 with numpy, so that the network begins with equal bytes in Keras (`build`), in
JAX (`models.gpt_jax`) and in PyTorch (`models.gpt_torch`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import keras
    import numpy as np

DATASET = "stdlib"
BYTES = 256
EPSILON = 1e-6  # of the normalization
_MOST = 50_000_000  # parameters; a wrong digit would fill the memory


class Shape(NamedTuple):
    """The size of the network.

    Attributes:
        width: of a byte's vector.
        layers: blocks of attention and of a GELU layer.
        heads: of the attention.
        context: bytes that the network sees at once.
    """

    width: int = 64
    layers: int = 3
    heads: int = 4
    context: int = 64

    @property
    def parameters(self) -> int:
        """Their number."""
        return (BYTES + self.context + 1 + self.layers * (2 + 12 * self.width)) * self.width


def shape(name: str) -> Shape | None:
    """Return the shape that a model's name has: `gpt`, or `gpt:width=128:layers=4`; None: it names
    another model.

    Raises:
        ValueError: an option is bad; one line.
    """
    first, *options = name.split(":")
    if first != "gpt" or (options and "=" not in options[0]):  # gpt:build is a user's function
        return None
    given: dict[str, int] = {}
    for option in options:
        key, _, value = option.partition("=")
        if key not in Shape._fields or not value.isdecimal() or int(value) < 1:
            raise ValueError(f"model {name!r}: {option!r} is no option of gpt; give "
                             f"{', '.join(f'{field}=' for field in Shape._fields)} with a number, "
                             f"such as gpt:width=128:layers=4")
        given[key] = int(value)
    chosen = Shape(**given)
    if chosen.width % chosen.heads:
        raise ValueError(f"model {name!r}: a width of {chosen.width} does not divide into "
                         f"{chosen.heads} heads")
    if chosen.parameters > _MOST:
        raise ValueError(f"model {name!r} has {chosen.parameters:,} parameters; give it at most "
                         f"{_MOST:,}")
    return chosen


def initial(form: Shape, seed: int) -> dict[str, np.ndarray]:
    """Draw W_0: name -> float32, in the order of the Keras model's variables."""
    import numpy as np

    draw, width = np.random.default_rng(seed), form.width

    def normal(rows: int, columns: int, deviation: float = 0.02) -> np.ndarray:
        return deviation * draw.standard_normal((rows, columns), np.float32)

    within = 0.02 / math.sqrt(2 * form.layers)  # of what is added to the residual (GPT-2)
    values = {"bytes": normal(BYTES, width), "positions": normal(form.context, width)}
    ones = np.ones(width, np.float32)
    for n in range(form.layers):
        values |= {f"norm{n}a": ones, f"attend{n}": normal(width, 3 * width),
                   f"project{n}": normal(width, width, within),
                   f"norm{n}b": ones, f"widen{n}": normal(width, 4 * width),
                   f"narrow{n}": normal(4 * width, width, within)}
    return values | {"norm": ones}


def build(form: Shape, seed: int) -> keras.Model:
    """Build it: int32 [batch, context] bytes to [batch, context, 256] logits.

    It consists of Keras's own layers and operations, so that plain Keras loads a saved model.
    """
    import keras
    import numpy as np
    from keras import layers, ops

    if not hasattr(layers, "RMSNormalization"):
        raise ValueError(f"model gpt needs Keras 3.9 or a newer one, not {keras.__version__}: "
                         "pip install --upgrade keras")
    width, heads = form.width, form.heads

    def dense(units: int, name: str) -> keras.layers.Layer:
        return layers.Dense(units, use_bias=False, name=name)

    def norm(name: str) -> keras.layers.Layer:
        return layers.RMSNormalization(epsilon=EPSILON, name=name)

    def split(x):  # [batch, context, width] to [batch, context, heads, width of a head]
        return ops.reshape(x, (-1, form.context, heads, width // heads))

    seen = keras.Input((form.context,), dtype="int32", name="seen")

    def table(rows: int, name: str) -> Any:
        """Return a whole embedding, [rows, width]. No row comes twice, because TensorFlow takes the
        norm of a gradient with repeated rows for too large."""
        each = ops.zeros_like(seen[:1, :1]) + np.arange(rows, dtype=np.int32)
        return layers.Embedding(rows, width, name=name)(each)[0]

    kernel = table(BYTES, "bytes")
    x = ops.take(kernel, seen, axis=0) + table(form.context, "positions")
    for n in range(form.layers):
        three = dense(3 * width, f"attend{n}")(norm(f"norm{n}a")(x))
        q, k, v = (split(part) for part in ops.split(three, 3, axis=-1))
        mixed = ops.dot_product_attention(q, k, v, is_causal=True)
        x = x + dense(width, f"project{n}")(ops.reshape(mixed, (-1, form.context, width)))
        wide = ops.gelu(dense(4 * width, f"widen{n}")(norm(f"norm{n}b")(x)), approximate=True)
        x = x + dense(width, f"narrow{n}")(wide)
    logits = ops.matmul(norm("norm")(x), ops.transpose(kernel))
    model = keras.Model(seen, logits, name="gpt")
    begin = initial(form, seed)
    for variable in model.variables:
        variable.assign(begin[variable.path.split("/")[0]])
    return model
