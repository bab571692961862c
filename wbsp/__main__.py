"""The command `wbsp`: `wbsp ps --worker_num=2` is `python -m wbsp.ps --worker_num=2`.

Each command is a module with its own flags. Some flags share a name, so a process imports only one
of these modules. This one imports nothing of wbsp: `wbsp --help` takes as long as Python's start.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

COMMANDS = {  # name -> module, and what it does
    "run": ("wbsp.run", "train your script on this machine: a server and workers"),
    "ps": ("wbsp.ps", "serve the versions of a model to its workers"),
    "simulate": ("wbsp.simulate", "compare synchronization models on a cluster in virtual time"),
    "advise": ("wbsp.simulate", "rank all models for a cluster: wbsp advise wan"),
    "watch": ("wbsp.watch", "show runs in a browser, finished or live"),
    "figures": ("wbsp.figures", "draw figures of runs"),
    "export": ("wbsp.export", "write a version's variables for other programs"),
    "ray": ("wbsp.ray", "train your script on a Ray cluster"),
    "models": ("wbsp.sync", "list the synchronization models, or show one: wbsp models pcc"),
}
COMPLETION = Path(__file__).with_name("completion.bash")
HELP = "\n".join([
    "usage: wbsp COMMAND [FLAG ...]", "",
    *(f"  {name:<10} {what}" for name, (_, what) in COMMANDS.items()), "",
    "wbsp COMMAND --help lists the flags of a command. wbsp --version names the release.",
    'eval "$(wbsp --completion)" completes commands and flags in bash, and in zsh after',
    "autoload -U bashcompinit && bashcompinit."])


def main() -> int | str | None:
    """Run the named command; return the exit code."""
    try:
        return _main()
    except BrokenPipeError:  # of `wbsp models | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _main() -> int | str | None:
    name, *flags = sys.argv[1:] or ["--help"]
    match name:
        case "help" | "-h" | "--help":
            print(HELP)
        case "--version":
            print(f"wbsp {sys.modules['wbsp'].__version__}")
        case "--completion":
            print(COMPLETION.read_text(), end="")
        case _ if name in COMMANDS:
            return _run(name, flags)
        case _:
            print(f"wbsp: no command {name!r}; the commands are {', '.join(COMMANDS)}",
                  file=sys.stderr)
            return 2
    return 0


def _run(name: str, flags: list[str]) -> int | str | None:
    module, _ = COMMANDS[name]
    if name == "advise":
        asked = asks_for_help(flags)
        named = bool(flags) and not flags[0].startswith("-")
        recorded = any(one.startswith("--from") for one in flags)
        if not (asked or named or recorded):
            print("wbsp: name a cluster, a TOML file or one that wbsp has: wbsp advise wan; or a "
                  "run: wbsp advise --from=RUN", file=sys.stderr)
            return 2
        if asked:
            flags = ["--advise=CLUSTER", *flags]
        elif named:
            flags = [f"--advise={flags[0]}", *flags[1:]]
    sys.argv = [f"wbsp {name}", *flags]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        print(f"wbsp: this command needs Ray: pip install 'ray[default]' ({error})",
              file=sys.stderr)
        return 1
    return 0


def asks_for_help(flags: list[str]) -> bool:
    """Return whether help is among a command's flags, as absl and argparse spell it."""
    return bool({"-h", "-help", "--help", "--helpshort", "--helpfull", "--helpxml"} & set(flags))


if __name__ == "__main__":
    sys.exit(main())
