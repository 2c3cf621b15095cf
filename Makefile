# `make demo` and `make test` need nothing but Python 3.10 or newer: both make .venv and install into it.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean

demo: .venv/installed
	$(BIN)/deepmatching demo --out demo-output

test: .venv/installed lint
	$(BIN)/python -m pytest

lint: .venv/installed
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/mypy

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis
