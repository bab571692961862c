"""The command line of `wbsp run`: which words are its own, the server's, the script's."""

import subprocess
import sys

import pytest
from absl import flags

from wbsp.run.arguments import Words, split


@pytest.fixture
def known():
    values = flags.FlagValues()
    flags.DEFINE_integer("workers", None, "", flag_values=values)
    flags.DEFINE_string("sync", "pcc", "", flag_values=values)
    flags.DEFINE_bool("one_run", False, "", flag_values=values)
    return values


@pytest.mark.parametrize("line, taken, server, script", [
    ("--workers=2 train.py", "--workers=2", "", "train.py"),
    ("--workers 2 train.py", "--workers 2", "", "train.py"),
    ("-workers=2 --sync=bsp train.py", "-workers=2 --sync=bsp", "--sync=bsp", "train.py"),
    ("--sync bsp --workers=2 train.py --sync=asp", "--sync bsp --workers=2", "--sync bsp",
     "train.py --sync=asp"),
    ("--one_run train.py", "--one_run", "--one_run", "train.py"),
    ("--noone_run train.py", "--noone_run", "--noone_run", "train.py"),
    ("train.py --workers=2 -h", "", "", "train.py --workers=2 -h"),
    ("--workers=2 -m my.train --help", "--workers=2", "", "-m my.train --help"),
    ("--workers=2 -- -odd.py -- x", "--workers=2", "", "-odd.py -- x"),
])
def test_the_script_and_all_that_follows_are_the_scripts(known, line, taken, server, script):
    assert split(line.split(), known, ["workers"]) == Words(
        False, taken.split(), server.split(), script.split())


@pytest.mark.parametrize("line", ["", "-h", "--help", "--workers=2 --help train.py"])
def test_help_is_asked_for_before_the_script(known, line):
    assert split(line.split(), known, ["workers"]).help


@pytest.mark.parametrize("line, says", [
    ("--worker=2 train.py", "unknown flag --worker (did you mean --workers?); the script's own"),
    ("--rate=0.1 train.py", "unknown flag --rate; the script's own flags follow the script"),
    ("--workers", "--workers lacks its value: --workers=VALUE"),
    ("--workers=2", "name the workers' script, or -m and a module"),
    ("--workers=2 -m", "name the workers' script, or -m and a module"),
])
def test_a_command_line_without_sense_is_refused(known, line, says):
    with pytest.raises(ValueError) as error:
        split(line.split(), known, ["workers"])
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("line, code, says", [
    ("--workers=0 {}", 2, "wbsp run: --workers=0: 0 is not a posit"),
    ("--worker_nums=2 {}", 2, "wbsp run: unknown flag --worker_nums (did you mean --worker_num?)"),
    ("--workers=2 missing.py", 1, "wbsp run: the script missing.py does not exist"),
    ("--workers=2 python train.py", 1, "wbsp run: the script python does not exist: give the scri"),
    ("{} --workers=2", 1, "wbsp run: --workers stands behind the script, and so is the script's: "),
    ("{}", 1, "wbsp run: --workers is missing, and this machine shows no GPU"),
    ("--workers=2 --shard {}", 1, "wbsp run: --shard starts a shard: use wbsp ps for that"),
    ("--workers=2 --worker_num=1 {}", 1, "wbsp run: --worker_num=1 counts all workers of the run"),
    ("--workers=2 --server=there {}", 1, "wbsp run: --server: address 'there' is not host:port"),
    ("--workers=2 --server=there:1 --sync=bsp {}", 1, "wbsp run: --sync is a flag of the server"),
])
def test_a_wrong_flag_ends_in_one_line_and_starts_nothing(line, code, says):
    done = subprocess.run([sys.executable, "-m", "wbsp", "run", *line.format(__file__).split()],
                          text=True, capture_output=True, env={"CUDA_VISIBLE_DEVICES": ""})
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(says) and done.stderr.count("\n") == 1
