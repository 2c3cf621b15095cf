"""The documentation site: `make docs`. It needs no internet connection."""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from sphinx.application import Sphinx  # noqa: E402

from deepmatching import __version__
from deepmatching.network import operators  # noqa: E402 - found by the path above
from deepmatching.kernels import registry as kernels  # noqa: E402

# An operator chooses between its definition and a kernel. The reference shows the definition, which has the docstring.
for _name, _operator in kernels.OPERATORS.items():
    for _module in (operators, sys.modules[_operator.definition.__module__]):
        if getattr(_module, _name, None) is _operator:
            setattr(_module, _name, _operator.definition)

project = "deepmatching"
author = "the deepmatching authors"
copyright = "2026, the deepmatching authors; Apache-2.0"
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "jupyter_execute"]

# Pages are Markdown, as on a code host; headings can be linked to.
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["myst.header"]  # a page may begin its sections at any depth

# Notebooks are kept as text. `make docs NOTEBOOKS=force` runs them, so that the pages have their pictures.
nb_custom_formats = {".nb.py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode = os.environ.get("NOTEBOOKS", "off")
nb_execution_timeout = 600
nb_execution_raise_on_error = True

# The reference comes from the docstrings.
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
autodoc_mock_imports = ["gluefactory", "hloc", "ptlflow", "vismatch"]  # of plugins, which need not be installed
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = f"deepmatching {version}"
html_show_sourcelink = False
html_copy_source = False


def _without_links_to_source(app: object, page: str, content: list[str]) -> None:
    """Links to files that are not on the site become their names: ``[weights](../src/…)`` → weights (``src/…``)."""
    content[0] = re.sub(r"\[([^\]]+)\]\(\.\./((?!CONTRIBUTING)[^)]+)\)", r"\1 (`\2`)", content[0])


def _with_bars(app: object, kind: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Formulas such as S(q|p) are not substitutions of reStructuredText."""
    lines[:] = [line if "``" in line else line.replace("|", r"\|") for line in lines]


def setup(app: Sphinx) -> None:
    app.connect("source-read", _without_links_to_source)
    app.connect("autodoc-process-docstring", _with_bars)
