"""What docs/reference/compatibility.md promises, against what the last release had of it.

`public.json` holds that: names and arguments, flags and their defaults, variables, files, keys.
What is new is free. What is gone, or has changed, must be named by a file of `changelog.d/` of the
kind `changed` or `removed`. A release writes the file again:

    python tests/test_compatibility.py
"""

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "tests/public.json"
MODULES = ["wbsp", "wbsp.sync", "wbsp.testing", "wbsp.simulate", "wbsp.ray", "wbsp.cluster",
           "wbsp.runlog.reader"]
KINDS = "changed", "removed"  # of a file that announces
# A run in virtual time writes the files of a real one, without what only processes have.
RUN = ["--model=small", "--dataset=shapes10", "--sync=bsp", "--max_steps=8", "--test_images=100",
       "--nofigures"]


def arguments(function):
    """[name, kind, default] of each argument; no default: None. A function's address says nothing.
    """
    return [[one.name, one.kind.name, None if one.default is one.empty else
             re.sub(r" at 0x\w+", "", repr(one.default))]
            for one in inspect.signature(function).parameters.values()]


def members(kind):
    """The public members of a class that are wbsp's own: name -> arguments, or None."""
    found = {}
    for name in dir(kind):
        owner = next((one for one in kind.__mro__ if name in vars(one)), None)
        if name[0] == "_" or owner is None or not owner.__module__.startswith("wbsp"):
            continue
        member = inspect.getattr_static(kind, name)
        member = getattr(member, "__func__", member)
        found[name] = arguments(member) if inspect.isfunction(member) else None
    return found


def names(module):
    """The public names of a module: name -> arguments, or None."""
    found = {}
    loaded = importlib.import_module(module)
    for name in loaded.__all__:
        one = getattr(loaded, name)
        found[f"{module}.{name}"] = None
        if inspect.isfunction(one):
            found[f"{module}.{name}"] = arguments(one)
        elif (inspect.isclass(one) and one.__module__.startswith("wbsp")
              and not issubclass(one, Exception)):
            if not issubclass(one, dict):  # which has no signature of its own
                found[f"{module}.{name}"] = arguments(one)
            found |= {f"{module}.{name}.{member}": args for member, args in members(one).items()}
    return found


def flags():
    """"command --flag" -> its default, of the page that another test holds against the code."""
    found, command, default = {}, "", False
    for line in (ROOT / "docs/reference/flags.md").read_text().splitlines():
        if line.startswith("## "):
            command = line[3:]
        elif line.startswith(("| flag", "| argument")):
            default = line.startswith("| flag | default")
        elif row := re.match(r"\| `(\S+?)` \| (.*?) ?\|", line):
            found[f"{command} {row[1]}"] = row[2] if default else None
    return found


def variables():
    """The variables of the environment, of a page that is held against the code as well."""
    text = (ROOT / "docs/reference/environment.md").read_text()
    return sorted({name for row in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
                   for name in re.findall(r"`(\w+)`", row)})


def files(folder):
    """What the files of a run have: their names, keys, and numbers of columns."""
    [run] = Path(folder).glob("runs/simulate/*/run-001")
    events = {}
    for line in (run / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        events.setdefault(event["kind"], set()).update(event)
    found = {f"events.jsonl {kind} {key}": None for kind, keys in events.items() for key in keys}
    for path in run.iterdir():
        found[re.sub(r"\d{6,}.*", "", path.name)] = None
        if path.suffix == ".json":
            found |= {f"{path.name} {key}": None for key in json.loads(path.read_text())}
        elif path.suffix == ".txt" and path.name != "summary.txt":
            found[f"{path.name} columns"] = path.read_text().partition("\n")[0].count(",") + 1
    return found


def simulated():
    """What a small run in virtual time leaves."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "wbsp", "simulate", *RUN], cwd=folder, check=True,
                       capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        return files(folder)


def differs(before, now):
    """What is gone, or has another value than the record says."""
    return [name for name, value in before.items()
            if name not in now or not keeps(value, now[name])]


def keeps(before, now):
    """Whether every call that was good with the arguments before is good now, and the same."""
    if not isinstance(before, list) or not isinstance(now, list):
        return before == now
    stands, left = now[:len(before)], [one for one in now if one not in before]
    by_place = [one for one in before if not one[1].startswith("KEYWORD")]
    return (all(one in now for one in before) and stands[:len(by_place)] == by_place
            and all(one[2] is not None or one[1].startswith("VAR") for one in left))


def unannounced(changes, folder=ROOT / "changelog.d"):
    """Those of them that no file of the changelog names."""
    said = "".join(path.read_text() for kind in KINDS for path in folder.glob(f"*.{kind}.md"))
    words = set(re.findall(r"[\w-]+", said))
    return [name for name in changes
            if re.split(r"[ .]", name)[-1].partition("=")[0].strip("`") not in words]


def write(record):
    """Write the record, a line for each of its names."""
    parts = (f"{json.dumps(part)}: {{\n" + ",\n".join(
        f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(named.items()))
        + "\n}" for part, named in record.items())
    RECORD.write_text("{" + ",\n".join(parts) + "}\n")


def recorded(part):
    return json.loads(RECORD.read_text())[part]


def fails_on(changes):
    assert unannounced(changes) == [], (
        "docs/reference/compatibility.md promises these: keep them, or announce them by a file "
        "changelog.d/+NAME.changed.md or .removed.md")


@pytest.mark.parametrize("module", MODULES)
def test_public_names_and_their_arguments_stay(module):
    if module == "wbsp":
        pytest.importorskip("keras")
    elif module == "wbsp.ray":
        pytest.importorskip("ray")
    fails_on(differs(recorded(module), names(module)))


def test_flags_and_their_defaults_stay():
    fails_on(differs(recorded("flags"), flags()))


def test_variables_of_the_environment_stay():
    fails_on(set(recorded("variables")) - set(variables()))


@pytest.mark.slow
def test_files_of_a_run_and_their_keys_stay():
    fails_on(differs(recorded("files"), simulated()))


ONE, MORE = ["a", "POSITIONAL_OR_KEYWORD", None], ["b", "KEYWORD_ONLY", "0"]


@pytest.mark.parametrize("now, same", [
    ([ONE, MORE], True), ([ONE], False), ([ONE, ["b", "KEYWORD_ONLY", "1"]], False),
    ([ONE, MORE, ["c", "KEYWORD_ONLY", "2"]], True),
    ([ONE, ["c", "KEYWORD_ONLY", None], MORE], False),
    ([["c", "POSITIONAL_OR_KEYWORD", "1"], ONE, MORE], False), (None, False)])
def test_an_argument_may_be_added_and_none_may_change(now, same):
    assert (differs({"x": [ONE, MORE]}, {"x": now}) == []) == same


def test_a_change_is_announced_by_its_name(tmp_path):
    changes = ["wbsp.sync.BSP.join", "wbsp ps --watch_port"]
    assert unannounced(changes, tmp_path) == changes
    (tmp_path / "+x.removed.md").write_text("`--watch_port` is gone: see the page.")
    (tmp_path / "+y.added.md").write_text("`BSP.join`")
    assert unannounced(changes, tmp_path) == ["wbsp.sync.BSP.join"]


if __name__ == "__main__":
    write({**{module: names(module) for module in MODULES}, "flags": flags(),
           "variables": dict.fromkeys(variables()), "files": simulated()})
