# setup   an environment in .venv, once per change of pyproject.toml
# demo    the main job, end to end, on the embedded model
# test    all tests; nightly: the longer ones and those of foreign worlds, with evidence in docs/evidence
# check   format, lint, types, tests
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup
WORLDS := $(VENV)/.worlds
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check

# One thread per test process: two processes of two threads each would only wait for each other.
TEST_ENV := OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
JOBS ?= 2

.PHONY: setup demo test nightly check clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Milepost needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@echo "setup: installing into $(VENV), several minutes the first time"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --constraint constraints.txt torch
	@$(PIP) install --constraint constraints.txt --editable '.[demo,dev]'
	@touch $@

demo: setup
	$(BIN)/milepost demo $(ARGS)

# Hypothesis' own profile "ci": the same examples every time, and no deadline that a busy machine could miss.
test: setup
	$(TEST_ENV) $(BIN)/python -m pytest -q -n $(JOBS) --hypothesis-profile=ci $(ARGS)

# Worlds of other packages that `setup` leaves out: textworld comes with jericho, which is under the GPL, and BFCL's wheel
# pins packages that its data does not need (docs/environments.md). Without them their tests are skipped.
$(WORLDS): $(STAMP)
	@$(PIP) install --constraint constraints.txt --editable '.[textworld]'
	@$(PIP) install --no-deps 'bfcl-eval>=2026.3.23'
	@touch $@

nightly: setup $(WORLDS)
	$(TEST_ENV) $(BIN)/python scripts/nightly.py -n $(JOBS) $(ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

clean:
	rm -rf build dist *.egg-info .pytest_cache .hypothesis .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
