"""The command line of `wbsp run`: its own flags, the server's, and the script with what follows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from absl import flags

from wbsp import command

_HELP = command.HELP | {"--helpfull", "--helpxml"}


class Words(NamedTuple):
    """The parts of a command line.

    Attributes:
        help: the user asks for help; the rest is empty.
        flags: all flags before the script, as they were written.
        server: those that are the server's.
        script: the script and its arguments, as Python takes them: ["train.py", "--rate=0.1"], or
            ["-m", "package.train", "--rate=0.1"].
    """

    help: bool = False
    flags: Sequence[str] = ()
    server: Sequence[str] = ()
    script: Sequence[str] = ()


def split(words: list[str], known: flags.FlagValues, own: Collection[str]) -> Words:
    """Divide a command line: its script is the first word that is neither a flag nor its value.

    Args:
        words: the command line after `wbsp run`.
        known: all flags that may stand before the script.
        own: names of those that are not the server's.

    Raises:
        ValueError: a flag is unknown or lacks its value, or no script is named; one line.
    """
    taken: list[str] = []
    server: list[str] = []
    rest = list(words)
    if not rest:
        return Words(help=True)
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        word = rest.pop(0)
        if word in _HELP:
            return Words(help=True)
        if word == "--":
            break
        name, equals, _ = word.lstrip("-").partition("=")
        flag = _flag(name, known)
        if flag is None:
            raise ValueError(f"unknown flag {word.partition('=')[0]}{_like(name, known)}; the "
                             "script's own flags follow the script")
        these = [word]
        if not (equals or flag.boolean):
            if not rest:
                raise ValueError(f"--{name} lacks its value: --{name}=VALUE")
            these.append(rest.pop(0))
        taken += these
        if flag.name not in own:
            server += these
    if rest[:1] in ([], ["-m"]) and len(rest) < 2:
        raise ValueError("name the workers' script, or -m and a module: wbsp run --workers=2 "
                         "train.py")
    return Words(False, taken, server, rest)


def _flag(name: str, known: flags.FlagValues) -> flags.Flag[Any] | None:
    """Return the flag of that name; also of a boolean one after "no"."""
    if name in known:
        return known[name]
    positive = name.removeprefix("no")
    return known[positive] if positive in known and known[positive].boolean else None


def _like(name: str, known: flags.FlagValues) -> str:
    """Return a remark that names the known flags most like `name`, if there are any."""
    from difflib import get_close_matches

    found = get_close_matches(name.replace("-", "_"), list(known), n=1)
    return f" (did you mean --{found[0]}?)" if found else ""
