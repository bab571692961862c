"""Layer state that is not in float variables: vocabularies, boundaries, constants.

Versions do not carry it, so workers must have equal state from the start: a joining worker sends a
digest for each layer or variable with such state.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import pathlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from wbsp.replica.layers import every_layer
from wbsp.tensors.layout import STATES, LayerState

# Layers of Keras that prepare examples; their configuration is part of what they compute.
_PREPARING = tuple(getattr(keras.layers, name) for name in (
    "CategoryEncoding", "Discretization", "HashedCrossing", "Hashing", "IntegerLookup",
    "MelSpectrogram", "Normalization", "Rescaling", "STFTSpectrogram", "StringLookup",
    "TextVectorization") if hasattr(keras.layers, name))
_LOOKUPS = "StringLookup", "IntegerLookup", "TextVectorization"
# Settings that do not change what a layer computes, or that have several forms: `get_vocabulary`
# and the boundaries count instead.
_APART = frozenset({"name", "dtype", "trainable", "vocabulary", "vocabulary_size", "idf_weights"})
_NAME = 200  # characters of a name


def states(model: keras.Model,
           compared: Callable[[keras.Variable], bool] = lambda variable: True) -> list[LayerState]:
    """Return the states of all layers and `compared` variables that have some, in the model's
    order."""
    found = [_state(f"layer {layer.name}", content) for layer in every_layer(model)
             if (content := _content(layer)) is not None]
    # A single integer is a count of what this worker has done.
    found += [_state(f"variable {v.path}", [v.dtype, _array(v)])
              for v in [*model.trainable_weights, *model.non_trainable_weights]
              if "float" not in v.dtype and len(v.shape) and compared(v)]
    if len(found) > STATES:
        rest = found[STATES - 1:]
        found[STATES - 1:] = [_state(rest[0].name, [[one.digest, *one.sums] for one in rest])]
    return found


def _content(layer: keras.layers.Layer) -> Any:
    """Return lists, dicts, arrays, numbers and texts; None if the layer has no state."""
    content: dict[str, Any] = {}
    if isinstance(layer, _PREPARING):
        with contextlib.suppress(NotImplementedError):  # a user's layer without a config
            config = {key: value for key, value in layer.get_config().items() if key not in _APART}
            if config.get("bin_boundaries") is not None:
                config.pop("num_bins", None)
            content["config"] = config
        if type(layer).__name__ in _LOOKUPS or hasattr(layer, "get_vocabulary"):
            content["vocabulary"] = [_plain(word) for word in layer.get_vocabulary()]
            content["idf"] = getattr(layer, "idf_weights_const", None)
    if _of_its_own(layer, "save_assets"):
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Exception):
            layer.save_assets(folder)
            content["assets"] = [[str(path.relative_to(folder)), path.read_bytes()]
                                 for path in sorted(pathlib.Path(folder).rglob("*"))
                                 if path.is_file()]
    if _of_its_own(layer, "save_own_variables"):
        with contextlib.suppress(Exception):
            store: dict[str, Any] = {}
            layer.save_own_variables(store)
            held = [_array(v) for v in layer.variables]
            content["saved"] = {key: value for key, value in store.items()
                                if not any(np.array_equal(_array(value), v) for v in held)}
    return content if any(value for value in content.values()) else None


def _of_its_own(layer: keras.layers.Layer, method: str) -> bool:
    """Return whether a class outside Keras defines the saved state."""
    defined = getattr(type(layer), method, None)
    return defined is not None and not defined.__module__.startswith("keras.")


def _state(name: str, content: Any) -> LayerState:
    """Digest a state; real numbers become sums, since workers may compute them in another order."""
    reals: list[np.ndarray] = []
    text = json.dumps(_exact(content, reals), sort_keys=True)
    values = np.concatenate([np.zeros(0), *reals])
    text += str(np.flatnonzero(~np.isfinite(values)).tolist())
    values = np.nan_to_num(values, nan=0, posinf=0, neginf=0)
    place = np.arange(1, values.size + 1)
    sums = [math.sqrt(values @ values), values @ np.cos(place), values @ np.cos(place * 1.618)]
    return LayerState(name[:_NAME], hashlib.sha256(text.encode()).hexdigest()[:32],
                      (float(sums[0]), float(sums[1]), float(sums[2])))


def _exact(content: Any, reals: list[np.ndarray]) -> Any:
    """Return the content for JSON without its real numbers, which are appended to `reals`."""
    content = _plain(content)
    if content is None or isinstance(content, bool | int | str):
        return content
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    if isinstance(content, float):
        reals.append(np.array([content]))
        return "a real number"
    if isinstance(content, Mapping):
        return {str(key): _exact(content[key], reals) for key in sorted(content, key=str)}
    if isinstance(content, Sequence):
        return [_exact(one, reals) for one in content]
    if callable(content):
        return getattr(content, "__name__", type(content).__name__)
    with contextlib.suppress(Exception):  # of a type that no back end turns into an array
        array = _array(content)
        if array.dtype.kind in "fc" or array.dtype.name.startswith(("bfloat", "float")):
            wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64).ravel()
            reals.extend([wide.real, wide.imag] if array.dtype.kind == "c" else [wide])
            return ["real numbers", list(array.shape)]
        if array.dtype.kind in "biuSU":
            # not the type: one back end has longer integers than another
            return [list(array.shape), hashlib.sha256(
                array.astype(np.int64).tobytes() if array.dtype.kind in "biu"
                else json.dumps(array.astype(str).tolist()).encode()).hexdigest()]
    return type(content).__name__


def _plain(value: Any) -> Any:
    """Return a scalar of numpy as Python's own type."""
    return value.item() if isinstance(value, np.generic) else value


def _array(value: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(value))
