"""Run a Python command to its end; fork it if starting Python is not what is tested."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import forked
from jobs import PATIENCE, surroundings


def finished(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess:
    """Run Python with these arguments in `folder`; return the exit code and both outputs."""
    words = [str(word) for word in arguments]
    env = {**os.environ, **surroundings(), **environment}
    if not forked.AVAILABLE:
        return subprocess.run([sys.executable, *words], cwd=folder, env=env, text=True,
                              capture_output=True)
    with tempfile.TemporaryDirectory() as outputs:
        output, errors = (Path(outputs) / name for name in ("output", "errors"))
        for path in (output, errors):
            path.touch()
        process = forked.Forked(forked.WBSP, words, output, folder, env, errors=errors)
        try:
            code = process.wait(PATIENCE)
        finally:
            process.kill()
        return subprocess.CompletedProcess(words, code, output.read_text(), errors.read_text())


def simulate(folder: Path, *flags: str) -> subprocess.CompletedProcess:
    """Run `python -m wbsp.simulate` with these flags."""
    return finished(folder, "-m", "wbsp.simulate", *flags)
