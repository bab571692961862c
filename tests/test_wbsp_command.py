"""The command `wbsp`, and what a person without a checkout has of it."""

import os
import re
import subprocess
import sys

import pytest
from jobs import ROOT

from wbsp.__main__ import COMMANDS, COMPLETION
from wbsp.sync import MODELS
from wbsp.sync.__main__ import page


def wbsp(*arguments, **environment):
    return subprocess.run([sys.executable, "-m", "wbsp", *arguments], text=True, cwd=ROOT,
                          capture_output=True, env={**os.environ, **environment})


@pytest.mark.parametrize("arguments", [[], ["help"], ["--help"]])
def test_without_a_command_all_commands_are_listed(arguments):
    done = wbsp(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"\n  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name, says", [
    ("run", "usage: wbsp run [FLAG ...] train.py"),
    ("ps", "--worker_num"), ("simulate", "--bandwidth"), ("advise", "--bandwidth"),
    ("watch", "usage: wbsp watch "), ("figures", "usage: wbsp figures "),
    ("ray", "usage: wbsp ray "), ("models", "usage: wbsp models [NAME ...]")])
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
    (["advise", "moon"], 1, "advise: cluster file moon does not exist; give one, or the name of"),
    (["advise", "pair", "--modle=x"], 2, "wbsp advise: unknown flag --modle; did you mean --model"),
    (["ps", "--worker_num=two"], 2, "wbsp ps: --worker_num=two: 'two' is no whole number (wbsp ps"),
    (["ps", "--worker_nun=2"], 2, "wbsp ps: unknown flag --worker_nun; did you mean --worker_num?"),
    (["ps", "--outer=x"], 2, "wbsp ps: --outer=x: value should be one of identity, nesterov, qhm"),
    (["figures", "--bad", "x"], 2, "wbsp figures: unrecognized arguments: --bad (wbsp figures -h"),
    (["export", "x"], 2, "wbsp export: the following arguments are required: out"),
    (["run", "--workers=two", "x.py"], 2, "wbsp run: --workers=two: 'two' is no whole number"),
    (["watch"], 2, "wbsp watch: the following arguments are required: run"),
    (["watch", "x", "--token_file=t"], 1, "watch: --token_file=t has no effect: a page reads the "),
    (["watch", "far.example:2606,other:2606"], 1, "watch: far.example:2606,other:2606 is an "
     "address, and a page reads the folder of a run: start it on the machine of that folder (wbsp "
     "watch FOLDER --http=8000), run 'ssh -L 8000:127.0.0.1:8000 far.example' here, and open "),
    (["ps", "--watch_port=2607"], 2, "wbsp ps: --watch_port is gone: run 'wbsp watch FOLDER "),
    (["ps", "--shard", "--sync=asp"], 1, "wbsp.ps: --sync has no effect on a shard, which has its"),
    (["ps"], 1, "wbsp.ps: the number of workers is unknown: set --worker_num=2, or the env"),
])
def test_a_bad_command_ends_in_one_line(arguments, code, says):
    done = wbsp(*arguments, TF_CONFIG="", WBSP_WORKER_NUM="")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(says) and done.stderr.count("\n") == 1


@pytest.mark.parametrize("flag", ["-h", "--help", "--helpfull"])
@pytest.mark.parametrize("command", [["-m", "wbsp", "ps"], ["-m", "wbsp", "advise"],
                                     ["runcifar10gpu.py"]], ids=str)
def test_help_is_no_failure_and_has_no_flag_of_absl(command, flag):
    done = subprocess.run([sys.executable, *command, flag], text=True, cwd=ROOT,
                          capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("only_check_args" in done.stdout) == (flag == "--helpfull")
    assert flag == "--helpfull" or max(map(len, done.stdout.splitlines())) <= 100


def test_the_help_of_ray_needs_no_ray(tmp_path):
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError('No module named ray', name='ray')")
    done = wbsp("ray", "-h", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "") and "--max_restarts" in done.stdout


def test_without_ray_its_command_names_the_installation(tmp_path):
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError('No module named ray', name='ray')")
    done = wbsp("ray", "--workers=1", "train.py", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == ("wbsp: this command needs Ray: pip install 'ray[default]' "
                           "(No module named ray)\n")


def test_the_models_are_a_line_each_for_a_terminal():
    lines = wbsp("models").stdout.splitlines()
    assert [line.split()[0] for line in lines[:len(MODELS)]] == list(MODELS)
    assert max(map(len, lines)) <= 100 and not any("|" in line or "](" in line for line in lines)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_a_page_for_a_terminal(name):
    said = page(name)
    assert said.startswith(f"{name}: ") and "|" not in said.splitlines()[0]
    assert max(map(len, said.splitlines())) <= 100
    assert all(f"\n  {option} " in said for option in MODELS[name].OPTIONS)
    [path] = re.findall(r"docs/reference/models/\S+", said)
    assert (ROOT / path).exists()


@pytest.mark.parametrize("name, says", [
    ("pc", "wbsp models: unknown synchronization model 'pc'; did you mean pcc? known: bsp"),
    ("xyz", "wbsp models: unknown synchronization model 'xyz'; known: bsp"),
    ("--all", "wbsp models: unknown flag --all; give names of models")])
def test_a_model_that_does_not_exist_is_one_line(name, says):
    done = wbsp("models", name)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(says) and done.stderr.count("\n") == 1


def test_completion_knows_every_flag():
    # In a process of its own: flags of two programs with one name cannot be defined in one.
    tell = "import runpy, sys; print(runpy.run_path(sys.argv[1])['script'](), end='')"
    written = subprocess.run([sys.executable, "-c", tell, ROOT / "scripts/completion.py"],
                             cwd=ROOT, text=True, capture_output=True, check=True).stdout
    assert COMPLETION.read_text() == written, "run scripts/completion.py"


@pytest.mark.parametrize("line, words", [
    (["wbsp", "si"], ["simulate"]), (["wbsp", "ps", "--worker"], ["--worker_num="]),
    (["wbsp", "advise", "--one"], []),
    (["wbsp", "ps", "--sync", "=", "p"], ["pcc"]), (["wbsp", "ps", "--outer", "="],
     ["identity", "nesterov", "qhm", "delayed-nesterov"]),  # as bash divides it
    (["wbsp", "ps", "--sync=p"], ["--sync=pcc"]), (["wbsp", "ps", "--wire=b"], ["--wire=bfloat16"]),
    (["wbsp", "simulate", "--sync=bsp,adsp,au"], ["--sync=bsp,adsp,auto"]),
    (["wbsp", "simulate", "--sync", "=", "bsp,au"], ["bsp,auto"]),
    (["wbsp", "simulate", "--model", "=", "al"], ["alexnet"]),
    (["wbsp", "simulate", "--dataset=s"], ["--dataset=shapes10", "--dataset=stdlib"]),
    (["wbsp", "run", "--transport", "=", "t"], ["tcp"]),
    (["wbsp", "simulate", "--cluster", "=", "wa"], ["wan"]), (["wbsp", "advise", "wa"], ["wan"]),
    (["wbsp", "models", "ring"], ["ringmaster"]), (["wbsp", "ps", "--token_file", "=", "x"], [])])
def test_bash_completes(line, words):
    done = subprocess.run(["bash", "-c", f"source {COMPLETION}; COMP_WORDS=({' '.join(line)}); "
                           f"COMP_CWORD={len(line) - 1}; _wbsp; echo ${{COMPREPLY[@]}}"],
                          text=True, capture_output=True)
    assert (done.stdout.split(), done.stderr) == (words, "")
