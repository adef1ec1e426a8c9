# `make help` lists the targets. The stamps lie inside .venv: a removed .venv is made again, and a second run installs
# nothing. PYTHON=python3.12 make ... picks the interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODES ?= ddp,wfbp,mgwfbp,crossover
EFFORT ?= --rounds 3
PIPFLAGS ?=
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --quiet $(PIPFLAGS) -c constraints.txt

GPU_PYTHON ?= $(shell [ -x $(BIN)/python ] && echo $(BIN)/python || echo $(PYTHON))

# Integration tests that judge no time and look only at what they started, the longest first: two of these files run at
# once. test_launch is not among them: it cleans up after dead runs of the whole machine.
BESIDE := $(foreach name,schedules compiled_modes failed_runs,tests/integration/test_$(name).py) tests/gpu \
	$(foreach name,given_ranks ray live_cluster training_steps,tests/integration/test_$(name).py) tests/browser \
	$(foreach name,killed_runs runs live_job sharded regress host \
	emulated own_models one_process converge gate wheel auto_on_ddp tune mode_package profilers \
	gpu_profile plan_snippets races warm,tests/integration/test_$(name).py)

# Files that `make rest` leaves to somebody else.
LATER ?=
ALONE = $(filter-out $(BESIDE) $(LATER),$(wildcard tests/integration/test_*.py))

# The share of expensive cases and files is that of the commit, so that every case runs over a few commits.
ifndef XBENCH_FAULTS_SEED
export XBENCH_FAULTS_SEED := $(shell printf %d 0x$$(git rev-parse --short=7 HEAD 2>/dev/null || echo 0))
endif

# Every third file of a list, from the first, the second or the third on; all for `make test-all`.
drawn = $(if $(XBENCH_TEST_ALL),$(1),$(shell printf '%s\n' $(1) | awk 'NR % 3 == $(XBENCH_FAULTS_SEED) % 3'))

.DEFAULT_GOAL := help
.PHONY: help compare check lint units test smoke rest test-all faults all-faults mutate gpu horovod docs clean

help:  ## List these targets
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' Makefile | expand -t 14
	@echo "MODES=ddp,auto EFFORT=--quick make compare compares other modes, for a shorter time."

compare: $(VENV)/.installed  ## Find the fastest schedule for resnet50 on this machine
	@$(BIN)/xbench compare --modes $(MODES) $(EFFORT)

check: lint units  ## Run the linters, the type checker, the import contracts and the unit tests

test: check smoke  ## Run make check, and one test of each flow on real ranks

test-all: export XBENCH_TEST_ALL = 1
test-all: test rest faults  ## Run every test (an hour on two cores)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

units: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 tests/unit

smoke: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile -m smoke tests/integration tests/browser

rest: $(VENV)/.installed-dev
	@echo "files and cases of XBENCH_FAULTS_SEED=$(XBENCH_FAULTS_SEED)"
	XBENCH_GPU_DEVICE=cpu $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations 20 \
		-m "not smoke" $(call drawn,$(BESIDE))
	$(BIN)/python -m pytest --durations 20 -m "not smoke" $(call drawn,$(ALONE))

faults: $(VENV)/.installed-dev  ## Run the security tests and a share of the fault cases
	@echo "cases and draws of XBENCH_FAULTS_SEED=$(XBENCH_FAULTS_SEED)"
	$(BIN)/python -m pytest -n 2 --durations 10 $(wildcard tests/security) tests/faults

# What has held in the file is not run again.
all-faults: $(VENV)/.installed-dev  ## Run every fault case and 200 draws (an hour, as root)
	XBENCH_FAULTS_SEED=0 XBENCH_FAULTS_OUTPUT=results/faults.json $(BIN)/python -m pytest -n 2 tests/faults/test_faults.py

mutate: $(VENV)/.installed-dev  ## Judge 300 mutants of planning, stats and cluster by the unit tests (an hour)
	$(BIN)/python -m tests.mutants --count 300 --jobs 2

# With the Python and the torch that are there: a machine with a GPU may have no registry to install from.
gpu:  ## Run what only a GPU can show, in half an hour, into results/gpu (installs nothing)
	$(GPU_PYTHON) -m pytest tests/gpu -s -p no:cacheprovider

# Needs g++ and make, and nvcc where Horovod is to average on GPUs; pip gets the rest.
horovod: | $(VENV)/.installed  ## Build Horovod against this torch (5 minutes, kept in ~/.cache)
	@PYTHON=$(BIN)/python tools/horovod/build.sh

docs: $(VENV)/.installed-docs  ## Build the documentation into site/ (installs no torch)
	$(BIN)/python docs/make_site.py

# What the system must have: a recent Python with venv; and ip (iproute2), which only shaped links need.
$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "xbench needs Python 3.11 or newer, and there is no $(PYTHON): PYTHON=/path/to/python make ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "xbench needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V): PYTHON=python3.12 make ..." >&2; exit 1; }
	@if ! $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing python3-venv, which Debian keeps apart from Python" >&2; \
	    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv; } >/dev/null; \
	  else \
	    echo "$(PYTHON) cannot make virtual environments: as root, run apt-get install python3-venv" >&2; exit 1; \
	  fi; fi
	@if ! command -v ip >/dev/null && ! [ -x /usr/sbin/ip ] && ! [ -x /sbin/ip ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing iproute2, for links of a chosen rate" >&2; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq iproute2; } >/dev/null \
	    || echo "iproute2 could not be installed: shaped links will be missing" >&2; \
	fi
	@echo "making $(VENV) with $$($(PYTHON) -V)" >&2
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing xbench and torch into $(VENV): about 2 minutes and 5 GB the first time" >&2
	@$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing xbench, torch and the test tools into $(VENV): about 2 minutes and 5 GB the first time" >&2
	@$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-docs

$(VENV)/.installed-docs: constraints.txt | $(BIN)/python
	@$(PIP) zensical
	@touch $@

clean:  ## Remove .venv and caches; results stay
	rm -rf $(VENV) build dist site mutants .cache *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find xbench tests -name __pycache__ -type d -prune -exec rm -rf {} +
