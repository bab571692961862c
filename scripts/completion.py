"""Write wbsp/completion.bash: the commands and flags that bash completes, as the commands' own help
lists them.

    python scripts/completion.py
"""

import os
import re
import subprocess
import sys

from wbsp.__main__ import COMMANDS, COMPLETION

SCRIPT = """\
# Completion of the command `wbsp` in bash; written by scripts/completion.py.
_wbsp() {{
    local words
    case ${{COMP_WORDS[1]}} in
{cases}
        *) words='{commands}' ;;
    esac
    [ "$COMP_CWORD" -gt 1 ] || words='{commands} --help --version'
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -o nospace -F _wbsp wbsp
"""


def flags_of(command: str) -> list[str]:
    """Return the flags of a command, with an equals sign where they take a value."""
    shown = subprocess.run([sys.executable, "-m", "wbsp", command, "--help"], text=True,
                           capture_output=True, check=True, env={**os.environ, "COLUMNS": "200"})
    found = re.findall(r"^ +(?:-\w+, ?)*--(\[no\])?(\w+)(:)?( [A-Z{])?", shown.stdout, re.MULTILINE)
    return sorted({f"--{name}" + ("" if no or not (colon or value) else "=")
                   for no, name, colon, value in found} | {"--help"})


def script() -> str:
    cases = [f"        {name}) words='{' '.join(flags_of(name))}' ;;" for name in COMMANDS
             if name != "models"]
    return SCRIPT.format(cases="\n".join(cases), commands=" ".join(COMMANDS))


if __name__ == "__main__":
    COMPLETION.write_text(script())
