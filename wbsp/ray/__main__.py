"""`python -m wbsp.ray --workers=4 train.py`: a user's own script on a Ray cluster, unchanged."""

from __future__ import annotations

import argparse
import sys

from wbsp.command import Parser


def main(arguments: list[str] | None = None) -> int:
    """Run the script in each worker; return 0, or 1 after one line on the error."""
    parser = Parser(prog="wbsp ray", description="Train a script of your own on a Ray cluster, one "
                    "worker a placement. What follows the script's name is the script's.",
                    allow_abbrev=False)
    parser.add_argument("--workers", type=int, required=True, help="number of workers")
    parser.add_argument("--resources", default="CPU=1", metavar="NAME=AMOUNT,...",
                        help="what each worker needs (default: CPU=1), such as CPU=4,GPU=1")
    parser.add_argument("--sync", default="pcc", help="synchronization model (default: pcc)")
    parser.add_argument("--ps", action="append", default=[], metavar="FLAG", help="another flag of "
                        "python -m wbsp.ps, such as --ps=--sync_option=weight=work")
    parser.add_argument("--storage", default="~/ray_results", metavar="FOLDER", help="folder for "
                        "the files of runs, which all nodes can read (default: ~/ray_results)")
    parser.add_argument("--name", help="folder of this run there; the name of an earlier run "
                        "continues that run (default: a new one)")
    parser.add_argument("--standby", action="store_true", help="start a standby of the server")
    parser.add_argument("--strategy", default="SPREAD", help="of the placement group")
    parser.add_argument("--placement_timeout", type=float, default=60.0, metavar="SECONDS",
                        help="to wait for room on the cluster (default: 60)")
    parser.add_argument("--max_restarts", type=int, default=5, metavar="TIMES", help="restarts in "
                        "a row of a process (default: 5)")
    parser.add_argument("script", help="train.py; it has a wbsp.SyncCallback()")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")
    flags = parser.parse_args(arguments)
    return _train(flags)


def _train(flags: argparse.Namespace) -> int:
    import ray  # which --help does without

    from wbsp.ray import RunError, Script, run

    try:
        needs = _resources(flags.resources)
        result = run(Script.read(flags.script, tuple(flags.arguments)), [needs] * flags.workers,
                     sync=flags.sync, flags=flags.ps, storage=flags.storage, name=flags.name,
                     standby=flags.standby, strategy=flags.strategy,
                     placement_timeout=flags.placement_timeout, max_restarts=flags.max_restarts)
    except ray.exceptions.RayTaskError as error:
        print(f"wbsp.ray: {error}", file=sys.stderr)
        return 1
    except (ConnectionError, OSError, RunError, ValueError) as error:
        print(f"wbsp.ray: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    print(f"{result.summary.get('reason', 'the run has ended')}; the files are in {result.folder}")
    return 0


def _resources(text: str) -> dict[str, float]:
    """Return the amounts of "CPU=4,GPU=1". Raises ValueError."""
    try:
        pairs = (one.split("=") for one in text.split(","))
        return {name.strip(): float(amount) for name, amount in pairs}
    except ValueError:
        raise ValueError(f"--resources={text} is not NAME=AMOUNT,..., such as CPU=4,GPU=1"
                         ) from None


if __name__ == "__main__":
    sys.exit(main())
