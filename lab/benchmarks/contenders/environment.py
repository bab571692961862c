"""Pythons of their own for peers whose packages do not go with wbsp's."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

INSTALLS = 900.0  # seconds that pip may take


class Missing(RuntimeError):
    """A peer that cannot be had here; says in one line why."""


def python_with(name: str, *requirements: str) -> str:
    """The interpreter of a virtual environment with these packages, made where there is none.

    name: its folder in the user's cache; requirements: arguments of pip install
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wbsp"
    python = cache / name / "bin" / "python"
    if not python.exists():
        print(f"installs {' '.join(requirements)} into {cache / name}", file=sys.stderr)
        try:
            _make(cache / name, requirements)
        except subprocess.CalledProcessError as error:
            raise _missing(requirements, error.stderr.strip() or str(error)) from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _missing(requirements, str(error)) from None
    return str(python)


def _missing(requirements: tuple[str, ...], said: str) -> Missing:
    return Missing(f"cannot install {' '.join(requirements)}: {said.splitlines()[-1]}")


def _make(folder: Path, requirements: tuple[str, ...]) -> None:
    """Make an environment, under another name until it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as making:
        made = Path(making) / folder.name
        venv.create(made, with_pip=True)
        subprocess.run([made / "bin" / "python", "-m", "pip", "install", "--quiet",
                        "--disable-pip-version-check", *requirements],
                       check=True, timeout=INSTALLS, capture_output=True, text=True)
        made.rename(folder)
