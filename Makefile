# Thin on purpose: each target is a command of the README, in an environment of its own.
CONFIG ?= configs/synthetic.yaml
LOGDIR ?= runs
PYTHON ?= python3
BIN := .venv/bin

.PHONY: fit tensorboard test lint pictures lock clean

fit: .venv/installed
	$(BIN)/python -m project fit --config $(CONFIG) $(ARGS)

tensorboard: .venv/installed
	$(BIN)/tensorboard --logdir $(LOGDIR) $(ARGS)

# Yours first, since they are the ones that a change of yours breaks.
test: .venv/installed
	$(BIN)/python -m pytest tests/models tests/data tests/callbacks $(ARGS)
	$(BIN)/python -m pytest tests/machinery tests/template $(ARGS)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

pictures: .venv/installed
	$(BIN)/python scripts/pictures.py $(ARGS)

# The newest versions of everything, with hashes, for Python 3.11 on Linux x86_64.
lock: .venv/installed
	CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --upgrade --generate-hashes \
		--allow-unsafe --strip-extras --extra dev --extra notebooks \
		--no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-emit-options \
		--output-file requirements.lock pyproject.toml

clean:
	rm -rf .venv

# The marker comes last: a failed install leaves none, or an older one than pyproject.toml.
.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	@echo "Installing into .venv: some minutes the first time"
	$(BIN)/python -m pip install --quiet --editable ".[dev,notebooks]"
	touch $@
