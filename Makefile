# Two commands for a fresh machine with Python >= 3.11 and make: `make demo` and `make test`.
# PYTHON=/path/to/python3 chooses the interpreter, VENV=DIR the environment, ARGS=... is handed through.

VENV ?= .venv
PYTHON ?=
ARGS ?=
TEST_PROCESSES ?= auto
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test bench bench-load bench-peers lint format slow real-sglang test-real test-runners test-stack test-compose test-found docs tutorial coverage mutation package secrets sbom audit clean setup setup-dev

help: ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' Makefile

demo: setup ## soak the embedded simulator with a planted fault, about a minute
	@$(BIN)/soak demo $(ARGS)

test: lint ## everything that needs no real server, in a process for each core (TEST_PROCESSES=0: in one)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(ARGS)

bench: setup ## the detectors on a few probes of every known fault: all are found, clean servers alarm nowhere
	@records=$$(mktemp -d) && trap 'rm -rf "$$records"' EXIT && $(BIN)/soak bench detect --reduced --records "$$records" $(ARGS)

bench-load: setup ## the client beside a bare aiohttp client and the peers that are installed (minutes; ARGS=--short for CI's)
	$(BIN)/soak bench load $(if $(wildcard build/peers),--peers build/peers) $(ARGS)

bench-peers: ## other load generators, each in an environment of its own in build/peers (minutes, gigabytes)
	@PYTHON='$(PYTHON)' deploy/bench-peers.sh build/peers $(ARGS)

lint: setup-dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup-dev ## let ruff format and fix what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

slow: setup-dev real-sglang ## tests that take minutes to hours
	$(BIN)/python -m pytest -m slow $(ARGS)
	$(BIN)/python -m pytest -m real_sglang tests/sim $(ARGS)

real-sglang: ## build the environment a real SGLang server runs in, on the CPU (minutes)
	@tests/real_sglang/kit/setup.sh

test-found: setup-dev ## planted faults are found by the nightly workload, compressed in time (minutes)
	$(BIN)/python -m pytest -m 'found and not slow' $(ARGS)

test-real: setup-dev real-sglang ## soak real SGLang servers on the CPU
	$(BIN)/python -m pytest -m 'real_sglang and not slow' tests/real_sglang $(ARGS)

test-runners: setup-dev real-sglang ## check and mend SGLang's published wheels (downloads them)
	$(BIN)/python -m pytest -m wheels tests/runners tests/deploy $(ARGS)

test-stack: setup-dev ## soak the simulator under a real Prometheus and Alertmanager (fetches them)
	$(BIN)/python -m pytest -m stack tests/stack tests/report $(ARGS)

test-compose: setup-dev ## bring up the shipped compose file in a container engine of its own (root, Debian)
	@SETUP_PYTHON='$(BIN)/python' tests/compose/kit/setup.sh || { [ $$? = 3 ] && exit 0 || exit 1; } && \
	  $(BIN)/python -m pytest -m compose tests/compose $(ARGS)

docs: setup-dev ## the documentation as a site, in build/site; a broken link stops it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet && echo "built: build/site/index.html"

tutorial: setup-dev ## the commands of docs/tutorial.md, word for word, and what it says they print
	$(BIN)/python -m pytest -m tutorial tests/docs $(ARGS)

package: setup-dev ## wheel and sdist built, looked into, installed in a bare environment and run
	$(BIN)/python -m pytest -m package tests/packaging $(ARGS)

coverage: setup-dev ## the tests once more under coverage: which lines of soak/ they run
	@rm -f build/.coverage* && COVERAGE_CORE=$$($(BIN)/python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")') \
	  $(BIN)/python -m coverage run -m pytest $(ARGS)
	@$(BIN)/python -m coverage combine --quiet && $(BIN)/python -m coverage report --skip-covered --fail-under=90

mutation: setup-dev ## a sample of small faults in detect/ and oracle/, which the tests must notice (half an hour)
	$(BIN)/python -m tests.mutation $(ARGS)

secrets: ## the files that docker-compose.yml wants, those that are missing
	@deploy/make-secrets.sh

setup: ## the environment soak runs in
	@PYTHON='$(PYTHON)' deploy/setup-venv.sh '$(VENV)'

setup-dev: ## the same with what tests and lint need
	@PYTHON='$(PYTHON)' deploy/setup-venv.sh '$(VENV)' dev

sbom: setup ## what soak runs on, by version, as CycloneDX JSON (build/sbom.json)
	@mkdir -p build && $(BIN)/python deploy/sbom.py > build/sbom.json && echo "written: build/sbom.json"

audit: setup ## known vulnerabilities of what soak runs on; without the internet it fails, unless ARGS=--where-possible
	@$(BIN)/python -m venv build/audit
	@build/audit/bin/python -m pip install --quiet pip-audit || echo "audit: pip-audit cannot be had" >&2
	@$(BIN)/python -m pip freeze --exclude-editable --exclude soak > build/audit.txt
	@$(BIN)/python deploy/audit.py build/audit/bin/pip-audit build/audit.txt $(ARGS)

clean: ## remove the environment and what tools left behind
	rm -rf '$(VENV)' build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find soak tests -name __pycache__ -type d -prune -exec rm -rf {} +
