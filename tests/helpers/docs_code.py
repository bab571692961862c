"""Extract code from the documentation, for tests that run it as it stands."""

from __future__ import annotations

import re
import textwrap

from jobs import ROOT


def python_of(page: str) -> str:
    """Return the first block of Python on a page of docs/, such as tutorial/your-model.md."""
    return re.search(r"```python\n(.*?)```", _text(page), re.DOTALL)[1]


def python_below(page: str, heading: str) -> str:
    """Return the first block of Python below a heading of a page of docs/."""
    _, _, below = _text(page).partition(f"\n## {heading}\n")
    return re.search(r"```python\n(.*?)```", below, re.DOTALL)[1]


def commands_of(page: str, heading: str) -> str:
    """Return the first indented block of commands below a heading of a page of docs/."""
    _, _, below = _text(page).partition(f"\n## {heading}\n")
    return textwrap.dedent(re.search(r"(^    .*\n)+", below, re.MULTILINE)[0])


def _text(page: str) -> str:
    return (ROOT / "docs" / page).read_text()
