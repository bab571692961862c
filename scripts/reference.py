"""Write the pages of docs/reference/ that the code dictates: flags, environment variables,
timeouts, models, and a page of the API for each public module.

    python scripts/reference.py

`scripts/build_site.py` adds a page that changes too often to be kept: every message.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import runpy
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import wbsp.environment
import wbsp.timeouts
from wbsp.__main__ import COMMANDS
from wbsp.sync import MODELS
from wbsp.sync.__main__ import page_of, rule_of, values_of

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs/reference"
WRITTEN = "<!-- written by scripts/reference.py -->"
PUBLIC = ["wbsp", "wbsp.sync", "wbsp.testing", "wbsp.simulate", "wbsp.ray", "wbsp.cluster",
          "wbsp.runlog.reader"]
RETURNED = {"wbsp": ["wbsp.reading.Version"]}  # what a public function returns, and none names
FRONT_ENDS = ["wbsp.SyncCallback", "wbsp.Worker"]  # which share the methods of a private class
INHERITED = "\n    options:\n      inherited_members: true"
LAUNCHER = "runcifar10gpu.py"
# Variables that the data sets of the networks and Keras read.
BESIDE = {"WBSP_DATA_DIR": "the folder with `cifar10` or `imagenet`, for the launcher and the "
                           "virtual cluster; the flag `--data_dir` overrides it",
          "KERAS_BACKEND": "tensorflow, jax or torch: the back end of a worker"}
WHO = {"ps": "server", "core": "server", "worker": "worker", "replica": "worker",
       "environment": "server, worker", "process": "server, worker", "wire": "server, worker",
       "tensors": "server, worker", "reading": "evaluator", "saved": "wbsp.load",
       "sync": "synchronization model", "runlog": "all", "limits": "all", "__main__": "wbsp"}


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *([one.replace("|", "\\|") for one in row]
                                              for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# Flags


def flags() -> str:
    """Return the flags of each command."""
    parts = ["# Flags", WRITTEN,
             "Every flag is written `--name=value`. `wbsp NAME` and `python -m wbsp.NAME` are the "
             "same command; `wbsp advise CLUSTER` is `wbsp simulate --advise=CLUSTER`, and "
             "`wbsp models pcc` shows a synchronization model. `-h` is the help of every command. "
             "A flag overrides [the environment](environment.md)."]
    for name, (module, what) in COMMANDS.items():
        if name not in ("advise", "models"):
            parts += [f"## wbsp {name}", f"Run it to {what}.", _flags_of(module)]
    parts += [f"## {LAUNCHER}", "Run it to train the published experiment, one process a job. "
              "`runalexgpu.py` and `runimagenetgpu.py` have the same flags with other defaults.",
              _flags_of(LAUNCHER)]
    return "\n\n".join(parts)


def _flags_of(command: str) -> str:
    """Return a table of the flags of a module or script, made by a separate process: several
    commands define flags with one name."""
    shown = subprocess.run([sys.executable, __file__, "--flags", command], cwd=ROOT, text=True,
                           stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})
    if not shown.stdout:
        raise RuntimeError(f"{command} has shown no flags")
    return _of_xml(shown.stdout) if shown.stdout.startswith("<?xml") else shown.stdout.strip()


def _print_flags(command: str) -> None:
    if command.endswith(".py"):
        sys.argv = [command, "--helpxml"]
        runpy.run_path(command, run_name="__main__")
        return
    argparse.ArgumentParser.parse_args = _print_arguments  # type: ignore[assignment]
    sys.argv = [command, "--helpxml"]
    runpy.run_module(command, run_name="__main__")


def _print_arguments(parser: argparse.ArgumentParser, *_: object) -> None:
    """In place of parsing them."""
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        name = action.option_strings[-1] if action.option_strings else action.dest.upper()
        value = f"={action.metavar or action.type.__name__}" if action.type else ""
        if action.metavar and action.option_strings:
            value = f"={action.metavar}"
        rows.append([f"`{name}{value}`", action.help or ""])
    print(table(["argument", "meaning"], rows))
    raise SystemExit


def _of_xml(text: str) -> str:
    rows = []
    for flag in ET.fromstring(text).iter("flag"):
        said = {one.tag: " ".join((one.text or "").split()) for one in flag}
        if not said["file"].startswith("absl"):
            default = said.get("default", "")
            meaning = re.sub(r"^<(.*?)>: ", lambda one: f"{one[1].replace('|', ', ')}: ",
                             said["meaning"])
            meaning = meaning.replace("repeat this option to specify a list of values",
                                      "may be repeated")
            rows.append([said["name"], f"`{default}`" if default not in ("", "[]") else "",
                         re.sub(r"([<*_])", r"\\\1", meaning)])
    return table(["flag", "default", "meaning"],
                 [[f"`--{name}`", *more] for name, *more in sorted(rows)])


# Environment variables


def environment() -> str:
    """Return the variables that wbsp reads, as the head of wbsp/environment.py describes them."""
    said = re.findall(r"^([A-Z_]{5,}(?:, [A-Z_]+)*)\s+(\S.*(?:\n {2,}\S.*)*)",
                      wbsp.environment.__doc__ or "", re.MULTILINE)
    rows = [[", ".join(f"`{one}`" for one in names.split(", ")), " ".join(text.split())]
            for names, text in said]
    rows += [[f"`{name}`", text] for name, text in BESIDE.items()]
    return "\n\n".join([
        "# Environment variables", WRITTEN,
        "A process reads from its environment whatever no argument or flag gives. If several "
        "variables give the same value, the first line of the table counts. An empty variable "
        "counts as unset. A bad value ends the process with one line that names the variable.",
        table(["variable", "meaning"], rows)])


def variables() -> set[str]:
    """Return the variables WBSP_... that code of this project names."""
    return {node.value for path in sources("wbsp", "launcher", "data")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            and re.fullmatch(r"WBSP_[A-Z_]+[A-Z]", node.value)}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in ROOT.glob(f"{folder}/**/*.py"))


# Timeouts, models, API


def timeouts() -> str:
    """Return the table of wbsp/timeouts.py: its values, and its comments."""
    lines = ["# Timeouts", "", WRITTEN, "",
             "How long one process of a run waits for another, and what it does then "
             "(`wbsp/timeouts.py`). Two of them have a flag, `--connect_timeout` and, on a worker, "
             "`--patience` (`SyncCallback(connect_timeout=, patience=)`). "
             "[Fault tolerance](../explanation/fault-tolerance.md) says what follows for a run."]
    for line in (ROOT / "wbsp/timeouts.py").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            lines += ["", f"## {line[2:]}", "", "| name | seconds | who waits for what |",
                      "|---|---|---|"]
        elif found := re.fullmatch(r"(\w+) = (.*?)  # (.*)", line):
            name, value, who = found.groups()
            seconds = eval(value, vars(wbsp.timeouts))
            lines.append(f"| `{name}` | {seconds:g} | {who} |")
    return "\n".join(lines)


def models() -> str:
    """Return tables of the models and their options below what is written by hand above them."""
    page = (REFERENCE / "models/README.md").read_text(encoding="utf-8")
    rows = [[f"[{name}]({page_of(name)})", rule_of(model), *model.about]
            for name, model in MODELS.items()]
    options = [[name, f"`{key}`", f"`{option.default}`", values_of(option), option.help]
               for name, model in MODELS.items() for key, option in model.OPTIONS.items()]
    return "\n".join([
        page.partition("\n| model")[0], table(["model", "worker's rule", "bound", "who waits",
                                               "traffic", "source", "certainty"], rows), "",
        table(["model", "option", "default", "values", "meaning"], options)])


def public(module: str) -> list[str]:
    """Return the names in a module's `__all__`, without importing it."""
    path = ROOT.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise ValueError(f"{module} has no __all__")


def api(module: str) -> str:
    """Return a page of the API, whose text the site takes from docstrings (`mkdocstrings`)."""
    parts = [f"# {module}", WRITTEN]
    names = [f"{module}.{name}" for name in public(module)] + RETURNED.get(module, [])
    parts += [f"::: {name}{INHERITED if name in FRONT_ENDS else ''}" for name in names]
    return "\n\n".join(parts)


# Messages


def messages() -> str:
    """Return a page of all lines that a process prints, and all errors with a text."""
    found = sorted({(text, _who(path), kind, path.relative_to(ROOT).as_posix())
                    for path in sources("wbsp", "launcher")
                    for kind, text in _texts(ast.parse(path.read_text(encoding="utf-8")))},
                   key=lambda one: (one[0].strip("…").casefold(), one))
    rows = [[text, who, kind, path.removeprefix("wbsp/")] for text, who, kind, path in found]
    return "\n\n".join([
        "# Messages and errors",
        "The lines that processes print, and the texts of their errors. … stands for a part that "
        "differs. Search this page, or the site, for the other words. "
        "[When something fails](../how-to/when-something-fails.md) describes the consequences.",
        table(["text", "process", "kind", "file"], rows)])


def _who(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return WHO.get(parts[1].removesuffix(".py"), parts[1].removesuffix(".py")) \
        if parts[0] == "wbsp" else "launcher"


def _texts(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        call, kind = None, ""
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            call, kind = node.exc, "error"
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2].strip("_")
            if name in ("say", "say_once", "fail"):
                call, kind = node, "line"
        if call is not None and call.args:
            text = _text(call.args[0])
            if len(re.sub(r"[\W\d_]", "", text)) > 12:  # more than what is put into it
                yield kind, " ".join(text.split())


def _text(node: ast.expr) -> str:
    """Return the constant parts of a text, as Markdown, with … for the others."""
    if isinstance(node, ast.Constant):
        return re.sub(r"([*_`<>\[\]])", r"\\\1", node.value) if isinstance(node.value, str) else "…"
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(one) for one in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) \
            and node.func.attr == "format":
        return re.sub(r"\\{.*?\\}|{.*?}", "…", _text(node.func.value))
    return "…"


def pages() -> dict[Path, str]:
    """Return the pages that are kept: path -> text."""
    written = {"flags.md": flags(), "environment.md": environment(), "timeouts.md": timeouts(),
               "models/README.md": models(), **{f"api/{name}.md": api(name) for name in PUBLIC}}
    return {REFERENCE / name: f"{text}\n" for name, text in written.items()}


def main() -> None:
    if sys.argv[1:2] == ["--flags"]:
        _print_flags(sys.argv[2])
        return
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
