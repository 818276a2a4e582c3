# Needs Python >= 3.11 and make, nothing else. The first target that needs the environment makes it; PIP_CONSTRAINT is honoured.

VENV   := .venv
BIN    := $(VENV)/bin
RECIPE ?= recipes/v1_0.yaml
ARGS   ?=
PYTEST ?=
KILLS   ?= 50
MINUTES ?= 60

# The first interpreter that is new enough and able to make an environment (an executable of the right name may be neither).
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.PHONY: run test check faults fuzz soak clean help
.DEFAULT_GOAL := help

help:
	@echo 'make run     train the shipped recipe at the scale that fits this machine (RECIPE=…, ARGS=…)'
	@echo 'make test    run the tests (PYTEST=… for more flags)'
	@echo 'make check   ruff and mypy'
	@echo 'make faults  kill and hinder real runs (KILLS=50)'
	@echo 'make fuzz    every property on thousands of cases'
	@echo 'make soak    back-to-back runs in one process (MINUTES=60)'
	@echo 'make clean   remove the environment'

run: $(VENV)/.installed
	$(BIN)/hymo run $(RECIPE) $(ARGS)

test: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST)

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy

# From minutes to an hour each, so no part of the tests; docs/reliability.md says what they found.
faults: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 HYMO_KILLS=$(KILLS) $(BIN)/python -m pytest -s -p no:xdist tests/faults $(PYTEST)

fuzz: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -p no:xdist -o timeout=0 --hypothesis-profile=fuzz -m hypothesis tests/fuzz tests $(PYTEST)

soak: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore tests/faults/soak.py $(MINUTES)

clean:
	rm -rf $(VENV)

$(BIN)/python:
	@test -n '$(PYTHON)' || { echo 'hymo needs Python 3.11 or newer with venv; set PYTHON=/path/to/python' >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@echo 'installing hymo and what it needs into $(VENV): some minutes, once'
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	@echo 'installing hymo, its tests and what they need into $(VENV): some minutes, once'
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@ $(VENV)/.installed
