# Every target sets up what it needs first; a repeated call is cheap.
# ARGS goes to pytest or to the program: make test ARGS="-k recover".
.PHONY: setup run test check lint type faults agents bench
PYTHON ?= python3
BIN := .venv/bin

setup: .venv/stamp ; @:

.venv/stamp: pyproject.toml
	@echo "setting up .venv for development; once, and it may take a minute or two"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]' && touch $@ .venv/run-stamp

.venv/run-stamp: pyproject.toml
	@echo "setting up .venv; once, and it may take half a minute"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e . && touch $@

run: .venv/run-stamp
	@$(BIN)/python examples/document-revision/run.py $(ARGS)

test: setup
	@$(BIN)/pytest $(ARGS)

check: lint type test

lint: setup
	@$(BIN)/ruff format --check . && $(BIN)/ruff check .
	@$(BIN)/lint-imports

type: setup
	@$(BIN)/mypy -p workspace_guard
	@$(BIN)/pyright

faults: setup
	@$(BIN)/pytest tests/faults $(ARGS)

agents: setup
	@$(BIN)/pytest tests/agents $(ARGS)

bench: setup
	@$(BIN)/python bench/bench_start.py $(ARGS)
