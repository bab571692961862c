"""`python -m wbsp.sync`: all synchronization models and their options, as Markdown."""

from __future__ import annotations

from wbsp.sync import MODELS
from wbsp.sync.base import Option, SyncModel


def overview() -> str:
    """Return two tables in Markdown: the models with their bounds and costs, and their options."""
    rows = [[f"[{name}]({page_of(name)})", _rule(model), *model.about]
            for name, model in MODELS.items()]
    options = [[name, f"`{key}`", f"`{option.default}`", _range(option), option.help]
               for name, model in MODELS.items() for key, option in model.OPTIONS.items()]
    return "\n".join([
        *_table(["model", "worker's rule", "bound", "who waits", "traffic", "source",
                 "certainty"], rows), "",
        *_table(["model", "option", "default", "values", "meaning"], options)])


def _rule(model: type[SyncModel]) -> str:
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


def _range(option: Option) -> str:
    if option.choices:
        return ", ".join(option.choices)
    if isinstance(option.default, bool):
        return "true, false"
    limits = [f"{option.low:g} or more"] if option.low is not None else []
    limits += [f"{option.high:g} or less"] if option.high is not None else []
    return ", ".join(limits) or type(option.default).__name__


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]]


if __name__ == "__main__":
    print(overview())
