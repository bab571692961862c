"""Variants: synchronization models with options, from the flags `--sync` and `--sync_option`.

    pcc                                a model
    pcc:weight=work:late=true          ... with options of this variant only
    module:Class, module:Class:key=1   your own
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from wbsp.sync import MODELS, SyncModel, find, parse_options


@dataclass(frozen=True)
class Variant:
    """A model's class with the given options.

    Attributes:
        folder: of its runs; variants of one model have different ones.
        shards: of its server, if numbers of them are compared.
    """

    sync: type[SyncModel]
    options: dict[str, str]
    folder: str
    shards: int | None = None

    @property
    def label(self) -> str:
        """The model with its options, such as "pcc weight=work"."""
        return " ".join([self.sync.name, *_written(self.sync, self.options),
                         *([] if self.shards is None else [f"shards={self.shards}"])])

    def sharded(self, count: int) -> Variant:
        """Return this variant on a server with `count` shards."""
        return replace(self, shards=count, folder=f"{self.folder}-shards={count}")


def variants(names: Sequence[str], pairs: Sequence[str]) -> list[Variant]:
    """Return the variants that `names` lists, each once. Values of options are not checked.

    Args:
        names: models with options.
        pairs: "key=value", an option of the models that have it; "model.key=value", of that model
            only, which overrides the former; a variant's own options override both.

    Raises:
        ValueError: a name is unknown or given to two models, or an option is unknown; one line.
    """
    given = parse_options(list(pairs))
    if not names:
        raise ValueError(f"--sync names no model; known: {', '.join(MODELS)}")
    found = [_parsed(name) for name in names]
    models = {sync.name: sync for sync, _ in found}
    if any(models[sync.name] is not sync for sync, _ in found):
        raise ValueError(f"--sync={','.join(names)}: two of these models have the same name")
    options: dict[str, dict[str, str]] = {name: {} for name in models}
    for name in sorted(given, key=lambda name: "." in name):  # a model's own goes over the others
        model, _, key = name.rpartition(".")
        if model and model not in models:
            raise ValueError(f"--sync_option {name}={given[name]}: {model} is not among the models "
                             f"of --sync: {', '.join(models)}")
        named = [model] if model else list(models)
        # If no model has the option, the error of the first lists the known ones.
        for one in [one for one in named if key in models[one].OPTIONS] or named[:1]:
            options[one][key] = given[name]
    made = [Variant(sync, options[sync.name] | own, _folder(sync, own)) for sync, own in found]
    return list({variant.label: variant for variant in made}.values())


def _parsed(text: str) -> tuple[type[SyncModel], dict[str, str]]:
    """Parse a variant: "pcc:weight=work" -> the class, {"weight": "work"}."""
    parts = text.split(":")
    name = [part for part in parts if "=" not in part]
    return find(":".join(name)), parse_options(parts[len(name):])


def _folder(sync: type[SyncModel], own: dict[str, str]) -> str:
    return re.sub(r"[^\w.=-]", "_", "-".join([sync.name, *_written(sync, own)]))


def _written(sync: type[SyncModel], options: dict[str, str]) -> list[str]:
    """Return "key=value" of each option, in the model's order; unknown ones last."""
    order = list(sync.OPTIONS)
    return [f"{key}={options[key]}" for key in sorted(
        options, key=lambda key: order.index(key) if key in order else len(order))]
