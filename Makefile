# Needs Python >= 3.10, make and pip. uv is used when it is on the PATH, because it is faster; nothing depends on it.
PYTHON ?= python3
VENV ?= .venv
# `make test VENV=.venv-lowest RESOLVE='--resolution lowest-direct'` (uv only): on the oldest versions allowed.
RESOLVE ?=
BIN := $(VENV)/bin
# Four workers at most: each may start a database server of its own.
PYTEST_ARGS ?= -n auto --maxprocesses 4
SOURCES := $(wildcard langgraph_idem tests examples benchmarks)
# Asked for its version, because a shim of that name may lead nowhere.
UV := $(shell uv --version 2>/dev/null)
# The real interpreter behind a shim.
python = $(shell $(PYTHON) -c 'import sys; print(sys.executable)')

ifdef UV
  create = uv venv --quiet --allow-existing --python "$(python)" $(VENV)
  install = uv pip install --quiet --python $(BIN)/python $(RESOLVE)
else
  create = "$(python)" -m venv $(VENV)
  install = $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif

.PHONY: test demo lint format types docs bench remotes clean
.DEFAULT_GOAL := test

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

demo: $(VENV)/.demo
	$(BIN)/python -m examples.order_agent

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.dev
	$(BIN)/mypy $(SOURCES)

docs: $(VENV)/.dev
	$(BIN)/mkdocs build --quiet

# `make bench BENCH="replay remote --quick"`: some figures, small; without BENCH: all, in a quarter of an hour.
bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks $(BENCH)

# The server programs behind the tests of remote effects, apart from the project's own environment.
remotes:
	PYTHON="$(python)" bash tests/support/remotes/install.sh

clean:
	rm -rf $(VENV) site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
	  || { echo "langgraph-idem needs Python >= 3.10; name one: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "creating $(VENV)"
	@$(create)

# Each stamp is younger than pyproject.toml, so a changed dependency is installed by the next command.
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing langgraph-idem with all its extras and the tools of its tests (a minute the first time)"
	@$(install) -e '.[all,dev]'
	@touch $@

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	@echo "installing langgraph-idem with SQLite (a minute the first time)"
	@$(install) -e '.[sqlite]'
	@touch $@
