# Needs Python >= 3.11 and make, nothing else. The first target that needs the environment makes it; PIP_CONSTRAINT is honoured.

VENV   := .venv
BIN    := $(VENV)/bin
RECIPE ?= recipes/v1_0.yaml
ARGS   ?=
PYTEST ?=

# The first interpreter that is new enough and able to make an environment (an executable of the right name may be neither).
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.PHONY: run test check clean help
.DEFAULT_GOAL := help

help:
	@echo 'make run     train the shipped recipe at the scale that fits this machine (RECIPE=…, ARGS=…)'
	@echo 'make test    run the tests (PYTEST=… for more flags)'
	@echo 'make check   ruff and mypy'
	@echo 'make clean   remove the environment'

run: $(VENV)/.installed
	$(BIN)/hymo run $(RECIPE) $(ARGS)

test: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST)

check: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV)

$(BIN)/python:
	@test -n '$(PYTHON)' || { echo 'hymo needs Python 3.11 or newer with venv; set PYTHON=/path/to/python' >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@ $(VENV)/.installed
