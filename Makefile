# Thin on purpose: each target is a command of the README, in an environment of its own.
CONFIG ?= configs/synthetic.yaml
PYTHON ?= python3
BIN := .venv/bin

.PHONY: fit test lint clean

fit: .venv/installed
	$(BIN)/python -m project fit --config $(CONFIG) $(ARGS)

test: .venv/installed
	$(BIN)/python -m pytest $(ARGS)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable ".[dev,notebooks]"
	touch $@
