# Each target does its own set-up: a virtual environment in the checkout, pinned packages, an editable install.
# Nothing is needed but Python 3.11 to 3.13 and, to compile kernels, a C++ compiler.

SHELL := /bin/bash
.DELETE_ON_ERROR:

PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	2>/dev/null && { echo $$python; break; }; done)

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements/pins.txt
JOBS ?= 2
# Else each of the hundreds of processes that tests start would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(JOBS) --dist worksteal

.PHONY: help demo doctor test test-full lint bench clients test-clients sanitizers clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

demo: .venv/ready ## compile three models, check them against eager and print one table
	@$(BIN)/lamina demo

doctor: .venv/ready ## say what this machine has and what is missing
	@$(BIN)/lamina doctor

test: lint ## all checks and the tests
	$(PYTEST)

test-full: lint ## also the tests that take minutes, and all cases of those that `make test` takes samples of
	$(PYTEST) -m "slow or not slow"

lint: .venv/ready-dev ## ruff, mypy and the import contracts
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

bench: .venv/ready-dev ## take the measurements of benchmarks/ again, into benchmarks/results
	$(BIN)/python -m benchmarks.cpu_patterns
	$(BIN)/python -m benchmarks.compile_time
	$(BIN)/python -m benchmarks.call_overhead
	$(BIN)/python -m benchmarks.rule_time

clients: .venv/clients/ready ## install the libraries of docs/clients.md for their tests, beside the virtual environment

test-clients: clients ## run the programs of docs/clients.md
	$(PYTEST) -m "slow or not slow" tests/clients

sanitizers: .venv/ready-dev ## run kernels for CPUs under AddressSanitizer and UndefinedBehaviorSanitizer (long)
	$(BIN)/python -m benchmarks.sanitizers --workers $(JOBS)

clean: ## remove the virtual environment and everything made by the checks
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Lamina needs Python 3.11, 3.12 or 3.13 with venv; name one with PYTHON=..."; exit 1; }
	@echo "set-up: creating .venv with $(PYTHON)"
	@$(PYTHON) -m venv .venv

# torch goes first and alone, so that no other package can pull in another build of it.
.venv/torch: requirements/torch.txt | .venv/bin/python
	@echo "set-up: installing $$(cat requirements/torch.txt) (the longest step)"
	@$(PIP) -r requirements/torch.txt
	@touch $@

.venv/ready: requirements/run.txt requirements/pins.txt pyproject.toml .venv/torch
	@echo "set-up: installing Lamina"
	@$(PIP) -r requirements/run.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Triton comes with torch's GPU builds; elsewhere it is installed for its interpreter, which the tests use.
.venv/ready-dev: requirements/dev.txt requirements/gpu.txt .venv/ready
	@echo "set-up: installing what the checks need"
	@$(PIP) -r requirements/dev.txt
	@$(BIN)/python -c "import triton" 2>/dev/null || $(PIP) -r requirements/gpu.txt
	@touch $@

# An environment that sees the first one's packages and adds its own, so that these change no other test.
.venv/clients/ready: requirements/clients.txt requirements/timm.txt requirements/pins.txt | .venv/ready-dev
	@$(BIN)/python -m venv .venv/clients
	@$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" > \
		"$$(.venv/clients/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/checkout.pth"
	@.venv/clients/bin/python -m pip install --quiet --disable-pip-version-check -c requirements/pins.txt -r requirements/clients.txt
	@.venv/clients/bin/python -m pip install --quiet --disable-pip-version-check -c requirements/pins.txt --no-deps \
		--upgrade --target .venv/clients/timm -r requirements/timm.txt
	@touch $@
