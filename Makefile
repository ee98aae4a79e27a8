# `make demo` and `make test` set everything up by themselves; `make help` lists the rest.
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow check format lint types bench clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "dctps needs Python 3.11 or newer; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[demo]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo  ## install, then train and compare on the digits: about two and a half minutes in all
	$(BIN)/dctps demo

test: $(VENV)/.dev  ## all tests but the slow ones
	$(BIN)/python -m pytest --quiet

test-slow: $(VENV)/.dev  ## the property tests with ten times as many examples, newly drawn each time: minutes
	HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest --quiet -m hypothesis

check: format lint types  ## format, lint, types and the fast tests
	$(BIN)/python -m pytest --quiet -m 'not process'

format: $(VENV)/.dev
	$(BIN)/ruff format --quiet .
	$(BIN)/ruff check --quiet --fix .

lint: $(VENV)/.dev  ## format and lint, without changing anything
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .

types: $(VENV)/.dev  ## mypy, strict
	$(BIN)/mypy

bench: $(VENV)/.dev  ## benchmarks; writes results/bench-*.csv
	$(BIN)/python benchmarks/linear_step.py
	$(BIN)/python benchmarks/input_pipeline.py --step

clean:  ## the environment and everything that tools leave behind
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
