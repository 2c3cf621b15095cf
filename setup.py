"""Build outside the tree, so that ``pip install .`` leaves nothing in it. Everything else is in pyproject.toml."""

import atexit
import shutil
import tempfile

from setuptools import setup

base = tempfile.mkdtemp(prefix="deepmatching-build-")
atexit.register(shutil.rmtree, base, ignore_errors=True)
setup(options={"build": {"build_base": base}, "egg_info": {"egg_base": base}})
