#!/usr/bin/env python
"""Draw the states of a worker's agent, under each rule, into docs/reference/states.md.

    scripts/agent_states.py

The diagrams come from the code: an agent is driven through every order of events up to DEPTH of
them, and each change of its state becomes an arrow.
"""

from __future__ import annotations

import copy
import pathlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from wbsp.core.agent import Adopt, Agent, Command, Cut, Expect, Leave
from wbsp.core.messages import CutQuery, Fetch
from wbsp.sync import MODELS, Direct, WorkerRule

PAGE = pathlib.Path(__file__).parents[1] / "docs/reference/states.md"
BEGIN, END = "<!-- states -->\n", "<!-- end of states -->\n"
DEPTH = 8  # events; more of them add no arrow
WORDS = {Cut: "cut", Adopt: "adopt", Fetch: "fetch", Expect: "fetch", CutQuery: "ask",
         Leave: "leave"}
START = "waits for a grant"

Arrow = tuple[str, str, str]  # from, event and commands, to


@dataclass
class Worker:
    """An agent, and the part of its surroundings that decides which events may follow."""

    agent: Agent
    newest: int = 0  # version of the server
    ready: bool = False  # a version has been fetched and not adopted
    asked: int = 0  # number of the newest cut query
    end: Literal["", "finishing", "left", "final"] = ""

    def state(self) -> str:
        """Return the activity of the compute thread and, beside it, of the network."""
        agent = self.agent
        network = "" if agent.idle else "fetches" if agent.fetching else "pushes"
        if agent.finished and agent.waiting is None:
            return "has the final version" if self.end == "final" else "has left"
        if agent.waiting == "model":
            return "waits for the version" if network == "fetches" else START
        if agent.waiting == "ack":
            last = "last " if self.end == "finishing" else ""
            return f"waits for the {last}{'answer' if network == 'pushes' else 'version'}"
        if agent.waiting == "decision":
            return "waits for the decision"
        return ", ".join(filter(None, [
            "computes", network, "a version is there" if self.ready else ""]))

    def follows(self, commands: list[Command]) -> str:
        """Carry out the agent's commands; return them in words."""
        for command in commands:
            match command:
                case Adopt():
                    self.ready = False
                case CutQuery():
                    self.asked = command.number
                case Leave():
                    self.end = "left"
        return ", ".join(WORDS[type(command)] for command in commands)


Event = tuple[str, Callable[[Worker], list[Command]]]


def training(worker: Worker) -> Iterator[Event]:
    """Events that may come next during a run: label, and what happens."""
    agent = worker.agent
    pushing = not agent.idle and not agent.fetching
    if agent.waiting is None:
        yield "step ends", lambda w: w.agent.step_done(1, 1.0)
        if agent.rule.push == "directed":
            yield "directed to cut", lambda w: w.agent.directed(Direct(0, cut=True))
    if agent.waiting == "decision":
        yield "directed to continue", lambda w: w.agent.decided(w.asked, False)
        yield "directed to cut", lambda w: w.agent.decided(w.asked, True)
    if pushing:
        behind = worker.newest > (agent.version or 0)
        yield ("answered, granted before" if behind else "answered",
               lambda w: w.agent.acked(None))
        yield "answered with a grant", lambda w: w.agent.acked(_new_version(w))
        if agent.rule.wait == "ack":
            yield "answered with hold", lambda w: w.agent.acked(None, hold=True)
    if agent.fetching:
        yield "version arrives", _arrives
    # with on_adopt no version is made without a first push of every worker
    early = agent.rule.push == "on_adopt" and agent.seq == 0
    if agent.version is None or (worker.newest <= agent.version and not early):
        yield "granted", lambda w: w.agent.granted(_new_version(w))


def ending(worker: Worker) -> Iterator[Event]:
    """Events that may come next for a worker at the end of its run."""
    agent = worker.agent
    if worker.end == "left":
        yield "the run is over", _final
    if not agent.idle:
        yield ("version arrives", _arrives) if agent.fetching else (
            "answered", lambda w: w.agent.acked(None))
    if agent.waiting is None and not worker.end:
        yield "no step follows", _finish
        if agent.idle:
            yield "step ends", lambda w: w.agent.step_done(1, 1.0)


def _new_version(worker: Worker) -> int:
    worker.newest += 1
    return worker.newest


def _arrives(worker: Worker) -> list[Command]:
    commands = worker.agent.fetched(worker.newest)
    worker.ready = not worker.end
    return commands


def _finish(worker: Worker) -> list[Command]:
    worker.end = "finishing"
    return worker.agent.finish()


def _final(worker: Worker) -> list[Command]:
    worker.end = "final"
    return worker.agent.final(_new_version(worker))


def arrows(worker: Worker, events: Callable[[Worker], Iterator[Event]], depth: int) -> set[Arrow]:
    """Return all changes of state within `depth` events."""
    if not depth:
        return set()
    found: set[Arrow] = set()
    for label, act in events(worker):
        later = replace(worker, agent=copy.deepcopy(worker.agent))
        done = later.follows(act(later))
        found.add((worker.state(), f"{label} / {done}" if done else label, later.state()))
        found |= arrows(later, events, depth - 1)
    return found


def diagram(found: set[Arrow]) -> str:
    """Return the arrows in Mermaid's language; one arrow joins its parallels."""
    joined = defaultdict(list)
    for source, label, target in sorted(found):
        if source != target or "/" in label:
            joined[source, target].append(label)
    names = {name: name.replace(",", "").replace(" ", "_") for arrow in joined for name in arrow}
    return "\n".join([
        "```mermaid", "stateDiagram-v2",
        *(f"    state \"{name}\" as {key}" for name, key in sorted(names.items())),
        *([f"    [*] --> {names[START]}"] if START in names else []),
        *(f"    {names[source]} --> {names[target]}: {'<br>'.join(labels)}"
          for (source, target), labels in joined.items()), "```"])


def started(rule: WorkerRule) -> Worker:
    """Return a worker that has adopted W_0."""
    worker = Worker(Agent(0, rule))
    worker.agent.granted(0)
    worker.agent.fetched(0)
    return worker


def text(depth: int = DEPTH) -> str:
    """Return the section of the page: a diagram for each rule, and one for the end of a run."""
    rules: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, model in MODELS.items():
        rule = model().rule
        rules[rule.push, rule.wait].append(name)
    parts = []
    for (push, wait), models in rules.items():
        rule = replace(MODELS[models[0]]().rule, every=1)
        parts += [f"### {', '.join(models)} (push={push}, wait={wait})",
                  diagram(arrows(Worker(Agent(0, rule)), training, depth))]
    end = {arrow for model in ("wbsp", "pcc")
           for arrow in arrows(started(MODELS[model]().rule), ending, depth)}
    return "\n\n".join([*parts, "### The end of a run, under every rule", diagram(end)]) + "\n"


def main() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{text()}\n{END}{after}")


if __name__ == "__main__":
    main()
