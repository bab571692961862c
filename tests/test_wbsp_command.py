"""The command `wbsp`, and what a person without a checkout has of it."""

import os
import runpy
import subprocess
import sys

import pytest
from jobs import ROOT

from wbsp.__main__ import COMMANDS, COMPLETION


def wbsp(*arguments, **environment):
    return subprocess.run([sys.executable, "-m", "wbsp", *arguments], text=True, cwd=ROOT,
                          capture_output=True, env={**os.environ, **environment})


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"]])
def test_without_a_command_it_says_which_there_are(arguments):
    done = wbsp(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name, says", [
    ("run", "usage: wbsp run [FLAG ...] train.py"),
    ("ps", "--worker_num"), ("simulate", "--bandwidth"), ("advise", "--bandwidth"),
    ("watch", "usage: wbsp watch "), ("figures", "usage: wbsp figures "),
    ("ray", "usage: wbsp ray "), ("models", "| [pcc](wbsp.md) | pushes when the network is idle")])
def test_a_commands_help_has_its_flags_and_is_no_failure(name, says):
    done = wbsp(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert says in done.stdout


@pytest.mark.parametrize("arguments, without", [
    ([], {"numpy", "zmq", "absl"}), (["run"], {"wbsp.ps.server"}),
    (["ps"], {"wbsp.ps.server", "scipy"}),
    (["simulate"], {"zmq", "matplotlib"}), (["watch"], {"zmq", "plotly"}),
    (["figures"], {"zmq", "matplotlib"}), (["models"], {"zmq", "scipy"})])
def test_help_imports_no_framework(arguments, without):
    unwanted = without | {"tensorflow", "keras", "jax", "torch"}
    code = f"import sys, runpy; sys.argv = ['wbsp', *{arguments}, '--help']\n" \
        "try: runpy.run_module('wbsp', run_name='__main__')\n" \
        f"except SystemExit: print({unwanted} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], text=True, cwd=ROOT, capture_output=True)
    assert done.stdout.endswith("\nset()\n")


@pytest.mark.parametrize("arguments, code, says", [
    (["serve"], 2, "wbsp: no command 'serve'; the commands are run, ps, simulate, advise, watch, "),
    (["advise"], 2, "wbsp: name a cluster, a TOML file or one that wbsp has: wbsp advise wan"),
    (["advise", "moon"], 1, "simulate: cluster file moon does not exist; give one, or the name of"),
    (["ps", "--worker_num=two"], 1, "FATAL Flags parsing error: flag --worker_num=two: invalid l"),
    (["ps"], 1, "wbsp.ps: the number of workers is unknown: set --worker_num=2, or the env"),
])
def test_a_bad_command_gets_one_line(arguments, code, says):
    done = wbsp(*arguments, TF_CONFIG="", WBSP_WORKER_NUM="")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(says)


def test_without_ray_its_command_says_what_to_install(tmp_path):
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError('No module named ray', name='ray')")
    done = wbsp("ray", "--workers=1", "train.py", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("wbsp: this command needs Ray: pip install 'ray[default]' "
                           "(No module named ray)\n")


def test_completion_knows_every_flag():
    written = runpy.run_path(str(ROOT / "scripts/completion.py"))["script"]()
    assert COMPLETION.read_text() == written, "run scripts/completion.py"


@pytest.mark.parametrize("line, words", [
    (["wbsp", "si"], ["simulate"]), (["wbsp", "ps", "--worker"], ["--worker_num="]),
    (["wbsp", "advise", "--one"], [])])
def test_bash_completes(line, words):
    done = subprocess.run(["bash", "-c", f"source {COMPLETION}; COMP_WORDS=({' '.join(line)}); "
                           f"COMP_CWORD={len(line) - 1}; _wbsp; echo ${{COMPREPLY[@]}}"],
                          text=True, capture_output=True)
    assert (done.stdout.split(), done.stderr) == (words, "")
