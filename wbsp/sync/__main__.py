"""`wbsp models`: the synchronization models, a line each; `wbsp models pcc`: all on one of them."""

from __future__ import annotations

import inspect
import shutil
import sys
import textwrap

from wbsp.sync import MODELS, find
from wbsp.sync.base import Option, SyncModel

WIDEST = 100  # columns
HELP = """\
usage: wbsp models [NAME ...]

List the synchronization models; with a NAME, or module:Class of your own, show what workers and
server do under that model, and its options."""


def main(arguments: list[str]) -> int:
    """Print the list, or the pages of the models that are named; return the exit code."""
    if {"-h", "--help"} & set(arguments):
        print(HELP)
        return 0
    try:
        if wrong := [one for one in arguments if one.startswith("-")]:
            raise ValueError(f"unknown flag {wrong[0]}; give names of models, such as: "
                             "wbsp models pcc")
        print("\n\n\n".join(map(page, arguments)) if arguments else listed())
    except ValueError as error:
        print(f"wbsp models: {error}", file=sys.stderr)
        return 2
    return 0


def listed() -> str:
    """Return a name and a sentence a line."""
    width = max(map(len, MODELS)) + 2
    return "\n".join([*(f"{name:<{width}}{sentence(model)}" for name, model in MODELS.items()), "",
                      "wbsp models NAME shows a model and its options; --sync=NAME selects it."])


def page(name: str) -> str:
    """Return all on one model, for a terminal.

    Raises:
        ValueError: the model does not exist; one line.
    """
    model = find(name)
    columns = min(WIDEST, shutil.get_terminal_size((WIDEST, 0)).columns)
    lines = [f"{model.name}: {sentence(model)}", "", *_entry("worker", rule_of(model), columns)]
    if (about := getattr(model, "about", None)) is not None:
        for key, text in about._asdict().items():
            lines += _entry(key, text, columns)
    if model.OPTIONS:
        lines += ["", f"options, as --sync_option=KEY=VALUE or, of wbsp simulate and advise, as "
                      f"--sync={name}:KEY=VALUE:"]
    for key, option in model.OPTIONS.items():
        lines += _entry(f"  {key}", f"{option.help}; {values_of(option)} (default: "
                        f"{_written(option.default)})", columns, 18)
    _, _, rest = inspect.cleandoc(model.__doc__ or "").partition("\n")
    lines += ["", rest.strip("\n")] if rest else []
    if name in MODELS:
        lines += ["", f"Its page: docs/reference/models/{page_of(name)}"]
    return "\n".join(lines)


def sentence(model: type[SyncModel]) -> str:
    """Return what a model does, as the first line of its docstring has it."""
    first, *_ = inspect.cleandoc(model.__doc__ or "").splitlines() or [""]
    return first.replace(" [ours]", "")


def _entry(key: str, text: str, columns: int, indent: int = 11) -> list[str]:
    first, *more = textwrap.wrap(text, columns - indent, break_on_hyphens=False)
    return [f"{key:<{indent - 1}} {first}", *(" " * indent + line for line in more)]


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def rule_of(model: type[SyncModel]) -> str:
    """Return what its workers do, in words."""
    rule = model().rule
    pushes = {"every_step": "every step" if rule.every == 1 else f"every {rule.every} steps",
              "when_idle": "when the network is idle", "on_adopt": "when a version arrives",
              "directed": "when directed", "on_query": "when directed, after asking"}[rule.push]
    waits = {"model": "waits for the model", "ack": "waits for the answer",
             "never": "never waits"}[rule.wait]
    own = "".join(f"; {part}" for part, usual in ((f"outer step {model.outer}", "identity"),
                                                  (model.wire, "float32")) if usual not in part)
    return f"pushes {pushes}; {waits}; {rule.adopt}s{own}"


def page_of(name: str) -> str:
    """Return the name of a model's page in docs/reference/models/."""
    return {"pcc": "wbsp"}.get(name, name) + ".md"


def values_of(option: Option) -> str:
    """Return the values that an option may have."""
    if option.choices:
        return ", ".join(option.choices)
    if isinstance(option.default, bool):
        return "true, false"
    limits = [f"{option.low:g} or more"] if option.low is not None else []
    limits += [f"{option.high:g} or less"] if option.high is not None else []
    return ", ".join(limits) or type(option.default).__name__


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
