"""User-defined synchronization models, from a module outside this package."""

from __future__ import annotations

import importlib
import re
import sys
from copy import deepcopy
from pathlib import Path

from wbsp.sync.base import SyncModel, WorkerRule

_PATH = re.compile(r"\w+(\.\w+)*:\w+")
_FIT = re.compile(r"[A-Za-z0-9_-]+")  # names of files are made of a model's name


def import_model(path: str) -> type[SyncModel]:
    """Return the class that `module:Class` names; the current folder is searched for `module`.

    An error inside the module is not caught.

    Raises:
        ValueError: the path has another form, the module or the class does not exist, or the class
            is no subclass of SyncModel with a `name` of its own; one line.
    """
    if not _PATH.fullmatch(path):
        raise ValueError(f"synchronization model {path!r} is not of the form module:Class")
    module_name, _, class_name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # an import inside that module has failed
        raise ValueError(f"synchronization model {path!r}: no module {module_name!r} in {here}"
                         ) from None
    found = getattr(module, class_name, None)
    if found is None:
        source = getattr(module, "__file__", module_name)
        raise ValueError(f"synchronization model {path!r}: {source} has no class {class_name!r}")
    if not (isinstance(found, type) and issubclass(found, SyncModel)):
        raise ValueError(f"synchronization model {path!r}: {class_name} is not a subclass of "
                         "wbsp.sync.SyncModel")
    name = vars(found).get("name")
    if not (isinstance(name, str) and _FIT.fullmatch(name)):
        raise ValueError(f"synchronization model {path!r}: the class needs a `name` of its own, "
                         f"of letters, digits, '_' and '-', not {name!r}")
    return found


def check_own(path: str, model: SyncModel) -> None:
    """Check that a run can start with a user-defined model.

    Raises:
        ValueError: a run cannot; one line.
    """
    kind = type(model).__name__
    if not isinstance(getattr(model, "active", None), set):
        problem = f"{kind}.__init__ does not call super().__init__(**options)"
    elif not isinstance(getattr(model, "rule", None), WorkerRule):
        problem = f"{kind} has no `rule`, a WorkerRule"
    elif type(model).push is SyncModel.push:
        problem = f"{kind} has no method push"
    elif model.rule.push == "on_query" and type(model).query is SyncModel.query:
        problem = f"{kind} has no method query, and its rule has push='on_query'"
    else:
        try:
            deepcopy(model)
            return
        except Exception as error:
            problem = (f"{kind} cannot be copied, which a server needs that takes over from "
                       f"another: {error!r}; keep no lock, file or thread in it")
    raise ValueError(f"synchronization model {path!r}: {problem}")
