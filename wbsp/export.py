"""The command that writes a version of a run for other programs: `wbsp export RUN OUT.safetensors`.

The file has the variables by the names of the framework that trained them, without the numbers and
the server's state of a checkpoint: `model.load_state_dict(safetensors.torch.load_file(OUT))`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from wbsp.command import Parser
from wbsp.limits import one_line
from wbsp.ps.checkpoint.format import Checkpoint, load
from wbsp.runlog.files import shown, write_whole
from wbsp.saved import saved_at
from wbsp.tensors.frozen import FrozenValues
from wbsp.tensors.layout import subject

_SUFFIX = ".safetensors"
_LINE = 1 << 16  # characters of a line, which names variables


def export(run_folder: Path, file: Path, best: bool = False) -> list[str]:
    """Write a version that the run has saved into a file; return what the user should know.

    Raises:
        ValueError: the file's name is wrong, or the version is damaged; one line.
        OSError: the run has saved no such version, or the file cannot be written; one line.
    """
    if file.suffix != _SUFFIX:
        raise ValueError(f"{file} does not end in {_SUFFIX}: give the file to write, such as "
                         f"{file.name or 'model'}{_SUFFIX}")
    if file.resolve().parent == run_folder.resolve():
        raise ValueError(f"{file} is in the folder of the run, which holds the server's own files: "
                         "give a file elsewhere")
    saved = load(saved_at(run_folder, best))
    tensors = dict(_variables(saved))
    kept = []
    left_out = [f"{name} (local: each worker keeps its own)" for name in saved.state.local]
    for entry in saved.state.entries:
        if entry.of in tensors:
            tensors[entry.name] = tensors[entry.of]
        elif (values := entry.values) is not None and entry.name not in tensors:
            tensors[entry.name] = values
            kept.append(entry.name)
        else:
            left_out.append(f"{entry.name} ({entry.type or 'unknown'}: versions hold floats alone)")
    about = {"format": "pt", "wbsp_version": str(saved.state.version)}  # for transformers
    if "__metadata__" in tensors:
        raise ValueError(f"{shown(run_folder)}: a variable has the name '__metadata__', which a "
                         "safetensors file cannot hold")
    write_whole(file, save({name: np.ascontiguousarray(one) for name, one in tensors.items()},
                           about))
    lines = [f"{file}: version {saved.state.version:,} of {run_folder}, {len(tensors):,} tensors"]
    if kept:
        lines.append(f"{subject(kept)} as when training began: versions hold floats alone")
    if left_out:
        lines.append(f"left out: {', '.join(left_out)}; load the file with strict=False")
    return [one_line(line, _LINE) for line in lines]


def _variables(saved: Checkpoint) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and values of each variable; Keras's names may be equal, and then get a number."""
    seen: dict[str, int] = {}
    for values in (FrozenValues(saved.layout, saved.vector), saved.frozen):
        for spec, part in zip(values.layout, values.parts(), strict=True):
            seen[spec.name] = number = seen.get(spec.name, 0) + 1
            yield spec.name if number == 1 else f"{spec.name}#{number}", part.reshape(spec.shape)


def main(arguments: list[str] | None = None) -> int:
    """Write the file; return 0, or 1 after one line on the error."""
    parser = Parser(prog="wbsp export", description="Write a version of a run for other "
                    "programs.\n\n" + (__doc__ or "").partition("\n\n")[2],
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the run's folder, such as runs/pcc/run-001")
    parser.add_argument("out", type=Path, help="the file to write, OUT.safetensors")
    parser.add_argument("--best", action="store_true", help="the best version by the server's "
                        "--best or --target (default: the newest version)")
    flags = parser.parse_args(arguments)
    try:
        print(*export(flags.run, flags.out, flags.best), sep="\n")
    except OSError as error:
        said = f"cannot write {flags.out}: {error.strerror}" if error.strerror else str(error)
        print(f"export: {one_line(said, _LINE)}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"export: {one_line(str(error), _LINE)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
