"""What pyproject.toml cannot say.

The package is built outside the tree, so that ``pip install .`` leaves nothing in it. The README of a release has links
that also work on PyPI: the workflow that publishes it knows the repository's address, which stands nowhere else.
"""

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path

from setuptools import setup


def with_addresses(text, repository, ref):
    """Return Markdown whose links to files of the repository are web addresses."""
    link = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)]+)\)")
    places = {"": "blob", "!": "raw"}  # a page; a picture itself
    return link.sub(lambda found: f"{found[1]}{found[2]}({repository}/{places[found[1]]}/{ref}/{found[3]})", text)


readme, urls = Path("README.md").read_text(encoding="utf-8"), {}
if {"GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_REF_NAME"} <= set(os.environ):
    repository = f"{os.environ['GITHUB_SERVER_URL']}/{os.environ['GITHUB_REPOSITORY']}"
    ref = os.environ["GITHUB_REF_NAME"]
    readme = with_addresses(readme, repository, ref)
    urls = {
        "Source": repository,
        "Documentation": f"{repository}/blob/{ref}/docs/index.md",
        "Changelog": f"{repository}/blob/{ref}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }

base = tempfile.mkdtemp(prefix="deepmatching-build-")
atexit.register(shutil.rmtree, base, ignore_errors=True)
setup(
    long_description=readme,
    long_description_content_type="text/markdown",
    project_urls=urls,
    options={"build": {"build_base": base}, "egg_info": {"egg_base": base}},
)
