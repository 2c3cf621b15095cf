"""The documentation site: `make docs`. It needs no internet connection."""

import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import typer  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402

from deepmatching import __version__
from deepmatching.cli import app as cli  # noqa: E402
from deepmatching.kernels import registry as kernels  # noqa: E402
from deepmatching.network import operators  # noqa: E402 - found by the path above

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

# Notebooks are kept without their results. `make docs NOTEBOOKS=force` runs them, so that the pages have their pictures.
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


def _with_link_to_colab(app: object, page: str, content: list[str]) -> None:
    """The site of a repository on GitHub, which Colab can open, says so above each notebook."""
    if page.startswith("notebooks/") and (repository := os.environ.get("GITHUB_REPOSITORY")):
        notebook, ref = json.loads(content[0]), os.environ.get("GITHUB_REF_NAME", "main")
        address = f"https://colab.research.google.com/github/{repository}/blob/{ref}/docs/{page}.ipynb"
        notebook["cells"][0]["source"] += ["\n\n", f"[Open this page as a notebook in Colab]({address})."]
        content[0] = json.dumps(notebook)


def _with_help(app: object, page: str, content: list[str]) -> None:
    """The page of the commands has their help."""
    if page == "commands":
        parts = []
        for name, command in typer.main.get_command(cli).commands.items():
            context = command.context_class(
                command, info_name=f"deepmatching {name}", max_content_width=100, terminal_width=100
            )
            parts.append(f"## {name}\n\n```text\n{command.get_help(context)}\n```\n")
        content[0] = content[0].replace("<!-- commands -->", "\n".join(parts))


def _with_bars(app: object, kind: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Formulas such as S(q|p) are not substitutions of reStructuredText."""
    lines[:] = [line if "``" in line else line.replace("|", r"\|") for line in lines]


def setup(app: Sphinx) -> None:
    app.connect("source-read", _without_links_to_source)
    app.connect("source-read", _with_link_to_colab)
    app.connect("source-read", _with_help)
    app.connect("autodoc-process-docstring", _with_bars)
