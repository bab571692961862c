"""Each command of README and the pages: its program, files and flags exist.

Commands that need none of these, or other machines, are in `ELSEWHERE` with the reason.
"""

import ast
import os
import re
import shlex
import shutil
import sys

import pytest
from jobs import ROOT

import wbsp
from wbsp.__main__ import COMMANDS

if sys.version_info < (3, 11):
    import tomli as tomllib
else:
    import tomllib

LAB = ROOT / "lab"  # a checkout need not have it
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md")),
         *sorted(LAB.glob("*.md")), *sorted(LAB.glob("reports/*.md"))]
FLAGS = (ROOT / "docs/reference/flags.md").read_text()  # itself held against the code by a test
VARIABLES = (ROOT / "docs/reference/environment.md").read_text()
LAUNCHERS = "runcifar10gpu.py", "runalexgpu.py", "runimagenetgpu.py"
ELSEWHERE = {
    "git": "the address of the repository is the reader's",
    "ssh": "the machine is the reader's",
    "cd": "a folder of the reader's", "source": "the environment that the line before makes",
    "wait": "of the shell", "export": "a variable, which is looked up",
    "pre-commit": "its hooks call the tools of .venv, which CI runs",
    "curl": "a server that the reader runs", "openssl": "of the system; makes a random number",
    "mkdir": "another machine's folder, for its token; tests/test_two_machines.py copies one there",
    "kubectl": "a cluster; tests/deploy/test_kubernetes.py checks the files against its schema",
    "sbatch": "a cluster; tests/deploy/test_slurm.py runs the script, with Slurm where it is",
    "ray": "a cluster's head; tests/ray runs the program that it submits",
}


def commands():
    """Lines that a shell runs: of blocks in sh, of indented blocks, and of inline code."""
    for page in PAGES:
        text = page.read_text()
        plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        blocks = [*re.findall(r"```sh\n(.*?)```", text, re.DOTALL),
                  *re.findall(r"(?:\A|\n\n)((?:    [^\n]*(?:\n|\Z))+)", plain)]
        lines = [line.strip() for block in blocks for line in
                 block.replace("\\\n", " ").splitlines()]
        lines += re.findall(
            r"`((?:wbsp [a-z]|python -m |(?:python )?(?:lab|scripts)/\w+\.)[^`]*)`", plain)
        for line in dict.fromkeys(lines):
            if argv := argument_list(line):
                yield pytest.param(argv, id=f"{page.name}: {line[:70]}")


def argument_list(line):
    """The arguments of the first program that a line runs; None: it runs none."""
    line = re.sub(r"^(for .*?; do|nice -n \d+) ", "", line)
    if any(text in line for text in (" | ", "NAME", "...", "…", "=0:")):
        return None  # a form of commands, or a table
    try:
        argv = shlex.split(re.split(r"\s+(?:>|2>|&)|\s+&&\s|; done", line)[0], comments=True)
    except ValueError:
        return None
    while argv and (argv[0] == "nohup" or re.fullmatch(r"[A-Z_0-9]+=.*", argv[0])):
        argv = argv[1:]
    if not argv or not re.fullmatch(r"[\w./-]+", argv[0]):
        return None
    known = argv[0] in ("wbsp", "pip", "python") or argv[0].startswith(("lab/", "scripts/")) \
        or argv[0] in ELSEWHERE
    return argv if known or (len(argv) > 1 and shutil.which(argv[0])) else None


def flags_of(section):
    """Flags that docs/reference/flags.md has for a command."""
    _, _, below = FLAGS.partition(f"\n## {section}\n")
    assert below, f"docs/reference/flags.md has no section {section}"
    return set(re.findall(r"`--([\w-]+)", below.partition("\n## ")[0]))


def names(argv):
    return [re.match(r"--(?:no(?=[a-z]+$))?([\w-]+)", one)[1] for one in argv
            if one.startswith("--")]


def check_flags(argv, known):
    given = {re.match(r"--([\w-]+)", one)[1] for one in argv if one.startswith("--")}
    known = {*known, *(f"no{name}" for name in known), "help", "version", "completion"}
    assert given <= known, f"unknown flags: {given - known}"


def check_program(path, argv):
    """A script of the repository, whose text has each flag."""
    file = ROOT / path
    if file.is_relative_to(LAB) and not LAB.exists():
        pytest.skip("this checkout has no lab/")
    assert file.exists(), path
    if file.suffix == ".sh":
        assert os.access(file, os.X_OK), f"{path} cannot be run"
        return
    source = file.read_text() + (ROOT / "scripts/harness.py").read_text()
    source += "".join(one.read_text() for one in LAB.glob("reproduction/*.py"))
    for name in re.findall(r"(?<!\S)--([\w-]+)", " ".join(argv)):
        plain = name.replace("-", "_")
        assert f"--{name}" in source or f'"{plain}"' in source, f"{path} has no flag --{name}"


def check_wbsp(command, argv):
    if not command or command.startswith("-"):
        return
    assert command in COMMANDS, f"wbsp has no command {command}"
    if command == "models":
        return
    section = "wbsp simulate" if command == "advise" else f"wbsp {command}"
    if command in ("run", "ray"):  # flags behind the script are the script's
        argv = argv[:next((i for i, one in enumerate(argv)
                           if one == "-m" or one.endswith(".py")), len(argv))]
    check_flags(argv, flags_of(section))


def check_python(argv):
    argv = [one for one in argv if one != "-u"]
    if argv[:1] == ["-m"]:
        module, rest = argv[1], argv[2:]
        package, _, name = module.partition(".")
        if package == "wbsp" and name:
            check_wbsp({"sync": "models"}.get(name, name), rest)
        elif package == "lab":
            check_program(f"{module.replace('.', '/')}.py", rest)
        else:
            assert module in ("pytest", "http.server", "wbsp", "venv", "build",
                              "timeit"), module
    elif argv and argv[0] in LAUNCHERS:
        assert (ROOT / argv[0]).exists()
        check_flags(argv[1:], flags_of("runcifar10gpu.py"))
    elif argv and argv[0] == "tests/simulation":
        source = (ROOT / "tests/helpers/simulated/command.py").read_text()
        assert all(f"--{name}" in source for name in names(argv))
    elif argv and argv[0].startswith(("lab/", "scripts/", "examples/")):
        check_program(argv[0], argv[1:])
    else:
        assert argv in (["train.py"], ["evaluate.py"], []), f"python {argv}"


@pytest.mark.parametrize("argv", list(commands()))
def test_a_command_of_the_pages_can_be_given(argv):
    program, rest = argv[0], argv[1:]
    if program == "wbsp":
        check_wbsp(rest[0] if rest else "", rest[1:])
    elif program == "python":
        check_python(rest)
    elif program.startswith(("lab/", "scripts/")):
        check_program(program, rest)
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for one in re.findall(r"\[([\w,]+)\]", " ".join(rest)):
            assert set(one.split(",")) <= set(extras["optional-dependencies"]), one
        for one in re.findall(r"-r (\S+)", " ".join(rest)):
            assert (ROOT / one).exists(), one
    else:
        assert program in ELSEWHERE, f"{program} is neither tested here nor has it a reason"
        for name in re.findall(r"\b(WBSP_\w+)=", " ".join(rest)):
            assert f"`{name}`" in VARIABLES, name
        for path in re.findall(r"\bdeploy/\S+", " ".join(rest)):
            assert (ROOT / path).exists(), path


def python_blocks():
    for page in PAGES:
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(),
                                                  re.DOTALL), 1):
            yield pytest.param(block, id=f"{page.name}: {number}")


@pytest.mark.parametrize("block", list(python_blocks()))
def test_python_of_the_pages_compiles_and_its_names_exist(block):
    used = {node.attr for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name) and node.value.id == "wbsp"}
    assert {name for name in used if not hasattr(wbsp, name)} <= {"sync", "ray", "testing"}
    hooks = {node.attr for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Attribute)
             and isinstance(node.value, ast.Name) and node.value.id == "hook"}
    assert all(hasattr(wbsp.SyncCallback, name) for name in hooks), hooks
