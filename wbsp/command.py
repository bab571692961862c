"""What all commands share: help in groups, and one line for a flag that is wrong.

A command has its flags by absl (`run`) or by argparse (`Parser`). Both print help for -h and
--help with exit code 0, and end with code 2 after one line for what they cannot parse.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from absl import app, flags

flags.disclaim_key_flags()  # they are flags of the module that calls `define_training_flags`
HELP = {"-h", "--h", "-help", "--help", "-helpshort", "--helpshort"}
WRONG = 2  # exit code, as of argparse
WIDEST = 100  # columns
INDENT = 26  # of what a flag means
SHORT = 24  # characters of an enumeration that stands in place of a value
GONE = {  # flags of earlier releases -> the way that stays
    "watch_port": "run 'wbsp watch FOLDER --http=8000' on the machine of the run's folder, and "
                  "'ssh -L 8000:127.0.0.1:8000 THAT_MACHINE' where you look",
}
VALUES = {"int": "N", "float": "X", "comma separated list of strings": "A,B"}


class Parser(argparse.ArgumentParser):
    """A parser whose error is one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG, f"{self.prog}: {message} ({self.prog} -h lists the flags)\n")


def run(main: Callable[[list[str]], int | None], name: str, about: str,
        groups: Mapping[str, Sequence[str]] | None = None, arguments: str = "") -> None:
    """Parse the flags of absl, call `main` with the other arguments, and exit with its code.

    Args:
        main: the command.
        name: of the command, such as "wbsp ps".
        about: what it does, for its help; of a docstring the first paragraph.
        groups: heading in the help -> names of flags. What no group names stands in a last one.
        arguments: what stands before the flags, such as " CLUSTER".
    """
    def parse(argv: list[str]) -> list[str]:
        own = argv[1:argv.index("--")] if "--" in argv else argv[1:]
        if HELP & set(own):
            _show(help_text(name, about, groups or {}, arguments))
        if "--helpfull" in own:  # with the flags of absl
            _show(flags.FLAGS.get_help())
        if "--helpxml" in own:
            flags.FLAGS.write_help_in_xml_format(sys.stdout)
            sys.exit(0)
        try:
            return flags.FLAGS(argv)
        except flags.Error as error:
            print(f"{name}: {said(str(error))} ({name} -h lists the flags)", file=sys.stderr)
            sys.exit(WRONG)

    app.run(main, flags_parser=parse)


def _show(text: str) -> NoReturn:
    """Print a help, and exit."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # of `wbsp ps -h | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(0)


def said(error: str) -> str:
    """Return absl's error as one line in the words of the other commands."""
    text = " ".join(error.split())
    if found := re.fullmatch(r"Unknown command line flag '(.*?)'\.?(?: Did you mean: (.*?) ?\?)?",
                             text):
        unknown, near = found.groups()
        if unknown in GONE:
            return f"--{unknown} is gone: {GONE[unknown]}"
        return f"unknown flag --{unknown}" + (
            f"; did you mean {' or '.join(f'--{one}' for one in re.split(', | or ', near))}?"
            if near else "")
    if "must have a value other than None" in text and (
            found := re.search(r"Flag --(\w+) must", text)):
        one = flags.FLAGS[found[1]]
        values = f", one of {', '.join(choices)}" if (choices := choices_of(one)) else ""
        return f"--{one.name} is missing: give --{one.name}=VALUE{values}"
    text = text.removeprefix("flag ").removeprefix("Flag ")
    text = re.sub(r"invalid literal for int\(\) with base 10: (.*)", r"\1 is no whole number", text)
    text = re.sub(r"could not convert string to float: (.*)", r"\1 is no number", text)
    return re.sub(r"<(\w[^<>]*)>", lambda one: one[1].replace("|", ", "), text)


def choices_of(flag: flags.Flag[Any]) -> list[str]:
    """Return the values that a flag may have; empty: any."""
    return list(getattr(flag.parser, "enum_values", None) or [])


def define_training_flags() -> None:
    """Define the flags on how each worker steps, of the launcher and of the simulator."""
    flags.DEFINE_string(
        "optimizer", None, "optimizer of each worker, whose state is never sent: sgd, nesterov "
        "(SGD with Nesterov's momentum of 0.9), adam, or adamw with any of "
        ":decay=0.1:clip=1:beta1=0.9:beta2=0.95:warmup=0.05, whose rate rises for the warm-up, a "
        "part of the run's examples, and falls by half a cosine; default: sgd, as published, of "
        "gpt adamw")
    flags.DEFINE_float(
        "lr", None, "initial learning rate, of adamw the highest one; default: the model's "
        "published one, a tenth of it for nesterov, 0.001 for adam, 0.003 for adamw",
        lower_bound=0)
    flags.DEFINE_string(
        "lr_decays", None, "its decays: 1562:0.1,2734:0.01 is a tenth of it from a worker's step "
        "1562 on, a hundredth from 2734 on; default: as published")
    flags.DEFINE_enum(
        "lr_steps", "own", ["own", "mean"], "steps that the rate's schedule counts: each worker's "
        "own, as published, or the mean worker's, as each worker knows them")


def refuse_decays() -> None:
    """Raise ValueError if a flag sets the schedule of a rate, and the optimizer is adamw."""
    for name in ("lr_decays", "lr_steps"):
        if flags.FLAGS[name].present:
            raise ValueError(f"--{name}={flags.FLAGS[name].value} has no effect on adamw, whose "
                             "rate follows the run's examples: adamw:warmup=0.05 is its option")


def own_flags() -> list[str]:
    """Return the names of all flags but absl's own, sorted."""
    return sorted(flag.name for module, some in flags.FLAGS.flags_by_module_dict().items()
                  for flag in some if module.partition(".")[0] != "absl")


def help_text(name: str, about: str, groups: Mapping[str, Sequence[str]],
              arguments: str = "") -> str:
    """Return the help of a command; arguments as of `run`."""
    named = {one for some in groups.values() for one in some}
    others = [one for one in own_flags() if one not in named]
    return "\n".join([f"usage: {name}{arguments} [--FLAG=VALUE ...]", "",
                      *textwrap.wrap(about.partition("\n\n")[0], _columns()),
                      *grouped({**groups, **({"other" if groups else "flags": others} if others
                                            else {})})])


def grouped(groups: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Return the lines of the help on flags: heading -> their names."""
    columns = _columns()
    for heading, names in groups.items():
        yield from ("", f"{heading}:")
        for name in names:
            yield from _entry(flags.FLAGS[name], columns)


def _columns() -> int:
    return min(WIDEST, shutil.get_terminal_size((WIDEST, 0)).columns)


def _entry(flag: flags.Flag[Any], columns: int) -> Iterator[str]:
    shown = f"  --{flag.name}"
    choices = choices_of(flag)
    listed = ",".join(choices)
    if not flag.boolean:
        shown += f"={{{listed}}}" if choices and len(listed) < SHORT else (
            f"={VALUES.get(flag.flag_type(), 'VALUE')}")
    elif flag.default is True:
        shown = f"  --[no]{flag.name}"
    text = meaning(flag)
    if choices and len(listed) >= SHORT:
        text += f"; one of {', '.join(choices)}"
    if flag.default not in (None, False, [], "") and "default" not in text:
        text += f" (default: {default_of(flag.default)})"
    wrapped = textwrap.wrap(text, columns - INDENT, break_on_hyphens=False)
    if len(shown) > INDENT - 2:
        yield shown
    else:
        yield f"{shown:<{INDENT}}{wrapped.pop(0)}"
    yield from (" " * INDENT + line for line in wrapped)


def meaning(flag: flags.Flag[Any]) -> str:
    """Return what a flag means, without what absl adds."""
    text = re.sub(r"^<.*?>: ", "", " ".join(str(flag.help).split()))
    return re.sub(r";? ?repeat this option to specify a list of values", "; may be repeated", text)


def default_of(value: Any) -> str:
    """Return a default as it is written on a command line."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    if value is True:
        return "yes"
    return f"{value:g}" if isinstance(value, float) else str(value)
