"""Variants: synchronization models with options, from the flags `--sync` and `--sync_option`.

    pcc                                a model
    pcc:weight=work:late=true          ... with options of this variant only
    module:Class, module:Class:key=1   your own
    pcc:wire=int8:outer=nesterov       ... with a format and an outer step of its own
    auto:outer.rate=8                  ... with an option of the outer step of its own
    pcc/localsgd:tau=20                a server at each site: pcc within the sites, localsgd between
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from wbsp.core.site.worker import objection
from wbsp.sync import MODELS, SyncModel, find, parse_options
from wbsp.tensors.codecs import parse

# What a variant may have in addition to its model's options:
_OWN = "outer", "wire"
_OUTER = "outer."  # before an option of the outer step


@dataclass(frozen=True)
class Variant:
    """A model's class with the given options.

    Attributes:
        folder: of its runs; variants of one model have different ones.
        shards: of its server, if numbers of them are compared.
        outer: name of its outer step; None: that of the comparison.
        outer_options: of its outer step, by name; they override those of the comparison.
        wire: its format; None: that of the comparison.
        inside: the model within each site; this one is then between them. None: one star.
    """

    sync: type[SyncModel]
    options: dict[str, str]
    folder: str
    shards: int | None = None
    outer: str | None = None
    outer_options: dict[str, str] = field(default_factory=dict)
    wire: str | None = None
    inside: Variant | None = None

    @property
    def label(self) -> str:
        """The model with its options, such as "pcc weight=work", behind that within the sites."""
        own = [f"{name}={value}" for name in _OWN if (value := getattr(self, name)) is not None]
        own += [f"{_OUTER}{name}={value}" for name, value in self.outer_options.items()]
        return " ".join([*([] if self.inside is None else [self.inside.label, "/"]),
                         self.sync.name, *_written(self.sync, self.options), *own,
                         *([] if self.shards is None else [f"shards={self.shards}"])])

    @property
    def flags(self) -> str:
        """The flags of its server; with servers at sites, of the one between them and of those."""
        own = [f"--sync={self.sync.name}",
               *(f"--sync_option={pair}" for pair in _written(self.sync, self.options)),
               *(f"--{name}={value}" for name in _OWN
                 if (value := getattr(self, name)) is not None),
               *(f"--outer_option={name}={value}" for name, value in self.outer_options.items())]
        said = " ".join(own)
        return said if self.inside is None else f"{said}, at each site {self.inside.flags}"

    @property
    def levels(self) -> Iterator[Variant]:
        """This variant, and the one inside."""
        yield self
        if self.inside is not None:
            yield self.inside

    def sharded(self, count: int) -> Variant:
        """Return this variant on a server with `count` shards."""
        return replace(self, shards=count, folder=f"{self.folder}-shards={count}")


def variants(names: Sequence[str], pairs: Sequence[str]) -> list[Variant]:
    """Return the variants that `names` lists, each once. Values of options are not checked, nor
    outer steps.

    Args:
        names: models with options.
        pairs: "key=value", an option of the models that have it; "model.key=value", of that model
            only, which overrides the former; a variant's own options override both.

    Raises:
        ValueError: a name is unknown or given to two models, an option is unknown, a format is
            bad, or no site can follow a model between sites; one line.
    """
    given = parse_options(list(pairs))
    if not names:
        raise ValueError(f"--sync names no model; known: {', '.join(MODELS)}")
    found = [_parsed(name) for name in names]
    named = [one.sync for variant in found for one in variant.levels]
    models = {sync.name: sync for sync in named}
    if any(models[sync.name] is not sync for sync in named):
        raise ValueError(f"--sync={','.join(names)}: two of these models have the same name")
    options: dict[str, dict[str, str]] = {name: {} for name in models}
    for name in sorted(given, key=lambda name: "." in name):  # a model's own goes over the others
        model, _, key = name.rpartition(".")
        if model and model not in models:
            raise ValueError(f"--sync_option {name}={given[name]}: {model} is not among the models "
                             f"of --sync: {', '.join(models)}")
        of = [model] if model else list(models)
        # If no model has the option, the error of the first lists the known ones.
        for one in [one for one in of if key in models[one].OPTIONS] or of[:1]:
            options[one][key] = given[name]

    def whole(variant: Variant) -> Variant:
        return replace(variant, options=options[variant.sync.name] | variant.options,
                       inside=variant.inside and whole(variant.inside))
    made = [whole(variant) for variant in found]
    return list({variant.label: variant for variant in made}.values())


def _parsed(text: str) -> Variant:
    """Parse a variant: "pcc:weight=work" -> of the class, with {"weight": "work"}.

    Raises:
        ValueError: as `variants`.
    """
    within, between, name = text.rpartition("/")
    inside = _parsed(within) if between else None
    if inside is not None and inside.inside is not None:
        raise ValueError(f"--sync={text}: sites have one server above; give MODEL/MODEL")
    name, *pairs = re.split(":(?=[^:=]*=)", name)  # wire=topk:0.01 is one pair
    sync, options = find(name), parse_options(pairs)
    own = {key: options.pop(key) for key in _OWN if key not in sync.OPTIONS and key in options}
    outer = {key.removeprefix(_OUTER): options.pop(key) for key in sorted(options)
             if key.startswith(_OUTER)}
    if "wire" in own:
        parse(own["wire"])
    if inside is not None and (reason := objection(sync(**options).rule, sync.name)):
        raise ValueError(f"--sync={text}: {reason}")
    variant = Variant(sync, options, "", None, own.get("outer"), outer, own.get("wire"), inside)
    return replace(variant, folder=re.sub(r"[^\w.=-]", "_", variant.label.replace(
        " / ", "_").replace(" ", "-")))


def _written(sync: type[SyncModel], options: dict[str, str]) -> list[str]:
    """Return "key=value" of each option, in the model's order; unknown ones last."""
    order = list(sync.OPTIONS)
    return [f"{key}={options[key]}" for key in sorted(
        options, key=lambda key: order.index(key) if key in order else len(order))]
