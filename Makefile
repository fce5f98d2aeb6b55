# make setup   a ready .venv with pinned versions
# make evolve  set up, then evolve FlashAttention-4 for the B200 (no GPU needed)
# make test    set up, then lint, types and tests

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ATTEMPTS ?= 8
JOBS ?= $(shell nproc)

.PHONY: setup evolve test lint clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --editable . --group dev
	@touch $@

evolve: setup
	$(BIN)/avo-cute evolve --operator search --target b200 --attempts $(ATTEMPTS) --jobs $(JOBS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n $(JOBS) --dist loadfile

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
