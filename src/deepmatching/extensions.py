"""Descriptors, losses, poolings and data sets of other packages, by import path: ``package.module:Name``.

A path in a file imports nothing. It stands for code that the user has imported: by ``import`` in Python, or by naming
the module in ``deepmatching --plugin package.module`` or in the environment variable ``DEEPMATCHING_PLUGINS``.
"""

import importlib
import os
import re
import sys
from typing import Any

from deepmatching.errors import DeepMatchingError

#: Modules to import, with commas between them. Processes that a command starts inherit it.
VARIABLE = "DEEPMATCHING_PLUGINS"


def is_import_path(name: str) -> bool:
    """Tell whether a name has the form ``package.module:Name``."""
    return re.fullmatch(r"[^\W\d][\w.]*:[^\W\d]\w*", name) is not None


def import_plugins() -> None:
    """Import the modules that the user has named."""
    for module in filter(None, os.environ.get(VARIABLE, "").split(",")):
        try:
            importlib.import_module(module)
        except (ImportError, ValueError, TypeError) as error:
            problem = f"The plugin '{module}' cannot be imported ({error})"
            raise DeepMatchingError(f"{problem}: install its package, or correct the name.") from error


def find_extension(path: str) -> Any:
    """Return what an import path names, if the user has imported its module."""
    import_plugins()
    module, _, name = path.partition(":")
    if module not in sys.modules:
        how = f"name its module with `deepmatching --plugin {module}`, or import it in Python"
        raise DeepMatchingError(f"'{path}' is code that has not been imported: if you trust it, {how}.")
    try:
        return getattr(sys.modules[module], name)
    except AttributeError:
        raise DeepMatchingError(f"The module {module} has no '{name}': correct the path '{path}'.") from None


def import_path_of(kind: type) -> str | None:
    """Return the import path of a class; None if it has none, as in a script or a function."""
    is_found = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind
    return f"{kind.__module__}:{kind.__qualname__}" if is_found and kind.__module__ != "__main__" else None
