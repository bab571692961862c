"""The command that draws figures from run folders: `python -m wbsp.figures runs/ --target=0.85`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from wbsp.command import Parser
from wbsp.figures import draw, find_runs
from wbsp.figures.load import readable
from wbsp.limits import one_line


def _window(text: str) -> tuple[float, float]:
    try:
        start, end = map(float, text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a window; give START:END in seconds, "
                                         "such as 10:20") from None
    return start, end


def _target(text: str) -> float | str:
    if ":" in text:
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no target; give an accuracy, such as 0.85, "
                                         "or METRIC:VALUE, such as loss:2.0") from None


def _say(line: str) -> None:
    print(f"figures: {line}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Draw the figures and print their files; return 0, or 1 after one line on the error."""
    parser = Parser(prog="wbsp figures", description="Draw figures and tables of runs from their "
                    "folders.")
    parser.add_argument("run_dir", nargs="+", help="a run's folder, or one that holds runs")
    parser.add_argument("--out", type=Path, help="folder of the figures (default: a folder "
                        "`figures` in the first run_dir)")
    parser.add_argument("--target", type=_target, help="accuracy, 0..1, or METRIC:VALUE, such as "
                        "loss:2.0, for the time-to-target bars (default: they are not drawn)")
    parser.add_argument("--window", type=_window, metavar="START:END", help="seconds shown in the "
                        "timelines (default: a dozen steps of the slowest worker)")
    flags = parser.parse_args(arguments)
    try:
        runs = readable(find_runs(flags.run_dir, _say), _say)
        files = draw(runs, flags.out or Path(flags.run_dir[0], "figures"), flags.target,
                     flags.window)
    except (OSError, ValueError, ModuleNotFoundError) as error:
        _say(one_line(str(error), 2000))
        return 1
    print(*files, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
