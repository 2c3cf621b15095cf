# Every target needs nothing but Python 3.10 or newer: the first one makes .venv and installs the package into it.

PYTHON ?= python3
BIN := .venv/bin
SOURCES := src tests benchmarks tools

.PHONY: demo test test-fast lint clean

demo: .venv/installed
	$(BIN)/deepmatching demo --out demo-output

test: .venv/installed lint
	$(BIN)/python -m pytest

# Two minutes on two cores: all tests except those that train, start many processes or need the largest inputs.
test-fast: .venv/installed
	$(BIN)/python -m pytest -m "not slow"

lint: .venv/installed
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
