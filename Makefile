# Every target sets up what it needs first; a repeated call is cheap.
# ARGS goes to pytest or to the program: make test ARGS="-k recover".
.PHONY: setup run test check lint type faults agents bench
PYTHON ?= python3
BIN := .venv/bin

setup: .venv/stamp ; @:

.venv/stamp: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

run: setup
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
