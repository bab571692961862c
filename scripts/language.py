#!/usr/bin/env python
"""Count phrases that docs/style.md replaces, in code, pages and tests.

    python scripts/language.py              # a table: phrases and places
    python scripts/language.py "on its way" # every line with this phrase

Python is searched in its comments, docstrings, other texts and names of tests; pages outside of
their blocks of code. A count is a hint where to look, and no test.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
AREAS = {"wbsp": ["wbsp/**/*.py"], "docs": ["README.md", "CONTRIBUTING.md", "docs/**/*.md"],
         "tests": ["tests/**/*.py"], "lab": ["lab/**/*.py"], "reports": ["lab/reports/*.md"]}
APPENDIX = re.compile(r"-\d{4}-\d\d-\d\d\.md$")  # notes of a day, which stay as they were written
PHRASES = {
    "as of `X`, as in `X`": r"\bas (of|in) `",
    "so many, so long": r"\bso (many|much|long|often)\b(?! (as|that))",
    "of these, of those": r"\bof (these|those)\b",
    "on its way": r"\bon (its|their|the) way\b",
    "at rest": r"\bat rest\b",
    "beside": r"\bbeside\b",
    "of its own": r"\b(its|their|your|a|one's) own\b",
    "the above": r"\bthe above\b|\babove (is|has|holds)\b|\bas above\b",
    "says, tells, hears": r"\b(says?|said|tells?|told|hears?|heard)\b",
    "goes on": r"\b(go|goes|went|going) on\b",
    "in the mean": r"\bin the mean\b",
    "a look": r"\b(a|each|every|of|three) looks?\b",
    "what is, what has": r"\bwhat (is|are|has|have|was|were)\b",
    "likewise, as there": r"\blikewise\b|\bas there\b",
    "nobody, there is none": r"\bnobody\b|\bthere (is|are) none\b",
    "comes back": r"\b(come|comes|came) (back|again|there)\b",
    "name:  columns": r"^ +\w+:  +\S",
}


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number and the text of each line of a file that a person reads as a sentence."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        fenced = False
        for number, line in enumerate(text.splitlines(), 1):
            if line.startswith("```"):
                fenced = not fenced
            elif not fenced and not line.startswith("    "):
                yield number, re.sub(r"\]\([^)]*\)", "]", line)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING, *_TEXTS):
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line
        elif token.type == tokenize.NAME and token.string.startswith("test_"):
            yield token.start[0], token.string.replace("_", " ")


# From Python 3.12 on, the text of an f-string is a token of its own.
_TEXTS = [tokenize.FSTRING_MIDDLE] if sys.version_info >= (3, 12) else []


def lines(area: str) -> Iterator[tuple[Path, int, str]]:
    """Yield the file, the number and the text of each line of an area's prose."""
    for path in sorted({path for pattern in AREAS[area] for path in ROOT.glob(pattern)}):
        if not APPENDIX.search(path.name) and path != ROOT / "docs/style.md":
            for number, line in prose(path):
                yield path, number, line


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] not in PHRASES:
        print(f"{arguments[0]!r} is not counted; these are: {'; '.join(PHRASES)}", file=sys.stderr)
        return 1
    wanted = [re.compile(PHRASES[name], re.IGNORECASE) for name in arguments or PHRASES]
    counts = {area: [0] * len(wanted) for area in AREAS}
    for area in AREAS:
        for path, number, line in lines(area):
            for index, phrase in enumerate(wanted):
                counts[area][index] += (times := len(phrase.findall(line)))
                if times and arguments:
                    print(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    if not arguments:
        print(f"{'':24}" + "".join(f"{area:>9}" for area in AREAS))
        for index, name in enumerate(PHRASES):
            print(f"{name:24}" + "".join(f"{counts[area][index]:9}" for area in AREAS))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
