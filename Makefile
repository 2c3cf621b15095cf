# Every target needs nothing but Python 3.11 or newer: the first one makes .venv and installs the package into it.

PYTHON ?= python3
BIN := .venv/bin
SOURCES := src tests benchmarks tools hubconf.py setup.py

OLDEST := .venv-oldest

# The tests run in as many processes as there are cores, but in no more than four, as some take gigabytes. A process that
# has none left takes over tests of another. PARALLEL= runs them one after another.
PARALLEL ?= -n logical --maxprocesses 4 --dist worksteal

.PHONY: demo test test-fast test-order test-browser test-oldest lint docs clean

demo: .venv/package
	$(BIN)/deepmatching demo --out demo-output

test: .venv/installed lint
	$(BIN)/python -m pytest $(PARALLEL)

# Two minutes on two cores: all tests except those that train, start many processes or need the largest inputs.
test-fast: .venv/installed
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow"

# All tests RUNS times, each time in another random order, which a run prints for `pytest --order-seed`.
RUNS ?= 10
test-order: .venv/installed
	for run in $$(seq $(RUNS)); do $(BIN)/python -m pytest $(PARALLEL) || exit 1; done

# The explorer in a real browser. Needs Chromium; the tests skip with a word without it.
test-browser: .venv/installed-browser
	$(BIN)/python -m pytest $(PARALLEL) tests/browser -rs

# The same tests with the oldest versions of everything that pyproject.toml allows.
test-oldest: $(OLDEST)/installed
	$(OLDEST)/bin/python -m pytest $(PARALLEL) -m "not slow"

lint: .venv/installed
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documentation site, in docs/_build/index.html. NOTEBOOKS=force runs the notebooks, for their pictures.
docs: .venv/installed
	$(BIN)/python docs/network_figure.py
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -b html docs docs/_build

# What the package needs, and no tools of developers.
.venv/package: pyproject.toml constraints.txt
	@echo "installing the package and PyTorch into .venv; PyTorch with CUDA is a download of gigabytes, without it of 200 MB:"
	@echo "    make demo PIP='--extra-index-url https://download.pytorch.org/whl/cpu'"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(PIP) --constraint constraints.txt --editable .
	touch $@

.venv/installed: .venv/package
	@echo "adding the tools of developers"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@# Once more, and last: the other package of OpenCV may just have replaced its files.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --force-reinstall --no-deps opencv-contrib-python-headless
	touch $@

.venv/installed-browser: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[browser]'
	touch $@

# The variables, unlike --constraint, also hold for setuptools, which builds the package.
$(OLDEST)/installed: pyproject.toml constraints-oldest.txt
	rm -rf $(OLDEST)
	$(PYTHON) -m venv $(OLDEST)
	PIP_CONSTRAINT=constraints-oldest.txt PIP_BUILD_CONSTRAINT=constraints-oldest.txt \
		$(OLDEST)/bin/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv $(OLDEST) demo-output docs/_build docs/jupyter_execute .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
