"""Write wbsp/completion.bash: what bash completes of the commands, their flags, and the values of
flags, as the commands themselves list them.

    python scripts/completion.py
"""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

from wbsp.__main__ import COMMANDS, COMPLETION
from wbsp.simulate.__main__ import STEP_SECONDS
from wbsp.simulate.study.cluster_file import CLUSTERS
from wbsp.sync import MODELS
from wbsp.tensors.codecs import CODECS

SCRIPT = """\
# Completion of the command `wbsp` in bash; written by scripts/completion.py.
_wbsp() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} flag= kept= words=
    if [ "$word" = = ]; then # bash has --sync=p as three words
        flag=$before word=
    elif [ "$before" = = ]; then
        flag=${{COMP_WORDS[COMP_CWORD - 2]}}
    elif [[ $word == --*=* ]]; then # zsh has it as one
        flag=${{word%%=*}} kept=${{word%%=*}}= word=${{word#*=}}
    fi
    if [ -n "$flag" ]; then
        [[ $word != *,* ]] || kept+=${{word%,*}}, word=${{word##*,}}
        case $flag in
{values}
        esac
    elif [ "$COMP_CWORD" -le 1 ]; then
        words='{commands} --help --version'
    else
        case ${{COMP_WORDS[1]}} in
{cases}
            *) words='{commands}' ;;
        esac
    fi
    COMPREPLY=($(compgen -P "$kept" -W "$words" -- "$word"))
}}
complete -o default -o nospace -F _wbsp wbsp
"""
CLUSTER_NAMES = sorted(path.stem for path in CLUSTERS.glob("*.toml"))
# Values of flags that take others, too, such as module:Class; and what stands without a flag.
VALUES = {"sync": list(MODELS), "wire": [*CODECS, "topk:0.01"], "model": list(STEP_SECONDS),
          "cluster": CLUSTER_NAMES, "advise": CLUSTER_NAMES}
WITHOUT_A_FLAG = {"models": list(MODELS), "advise": CLUSTER_NAMES}


def shown(command: str, flag: str) -> str:
    return subprocess.run([sys.executable, "-m", "wbsp", command, flag], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          env={**os.environ, "COLUMNS": "100"}).stdout


def flags_of(command: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the flags of a command, with an equals sign where they take a value, and the values of
    those that take no others."""
    values = {}
    text = shown(command, "--helpxml")
    if text.startswith("<?xml"):
        for flag in ET.fromstring(text).iter("flag"):
            if choices := [one.text or "" for one in flag.iter("enum_value")]:
                values[flag.findtext("name") or ""] = choices
    found = re.findall(r"^  (?:-\w+, ?)*--(?:\[no\])?(\w+)(=| [A-Z{])?", shown(command, "--help"),
                       re.MULTILINE)
    names = {f"--{name}" + ("=" if value else "") for name, value in found}
    return sorted(names | {"--help"}), values


def script() -> str:
    cases, values = [], dict(VALUES)
    for command in COMMANDS:
        names, choices = flags_of(command)
        values |= {name: some for name, some in choices.items() if name not in values}
        words = [*WITHOUT_A_FLAG.get(command, []), *names]
        cases.append(f"            {command}) words='{' '.join(words)}' ;;")
    return SCRIPT.format(cases="\n".join(cases), commands=" ".join(COMMANDS), values="\n".join(
        f"            --{name}) words='{' '.join(some)}' ;;" for name, some in values.items()))


if __name__ == "__main__":
    COMPLETION.write_text(script())
