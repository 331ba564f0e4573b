# make demo    a private federated training on scikit-learn's digits, in an environment of its own
# make test    the whole test suite, in the same environment
# make check   what must be clean before a commit: format, lint, types, layers

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check clean

demo: $(READY)
	$(BIN)/dpfed run fed-smp-randk-digits

test: $(READY)
	$(BIN)/python -m pytest

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[train,dev]"
	touch $(READY)

clean:
	rm -rf $(VENV) runs
