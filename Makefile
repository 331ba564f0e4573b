# make demo         a private federated training on handwritten digits, in an environment of its own
# make test         the quick tests, in the same environment: every promise once
# make test-slow    the slow ones: more seeds, more settings, longer trials
# make test-all     both
# make test-flower  the tests of the Flower engine, in .venv-flower: its versions are not those of the rest
# make test-adapters  the tests of examples/adapters and of others' data sets and networks, in .venv-adapters (transformers, peft, datasets, timm)
# make test-nvflare   the tests of the NVFlare engine, in .venv-nvflare
# make golden       store anew what the golden net's settings give, and print what differs (tests/golden); with
#                   BESIDE=COMMIT compare them with that commit's, bit by bit, and store nothing
# make bench-gpu    what is to be measured on a CUDA GPU, in benchmarks/gpu.md; installs nothing: with .venv, or else PYTHON
# make docs         the documentation site, in docs/_build/html; tutorials run while it is built (minutes; needs test-flower's environment)
# make test-docs    that site in a browser: links, overflow, contrast, search; skipped where there is no site or no chromium
# make dist         wheel and source archive, tested with the sources removed: PYTHONS="python3.11 python3.12" (tests/installed.py)
# make check        what must be clean before a commit: format, lint, types, layers, claims of the docs (docs/claims.yaml)

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FLOWER := .venv-flower
ADAPTERS := .venv-adapters
NVFLARE := .venv-nvflare
GPU_PYTHON ?= $(if $(wildcard $(READY)),$(BIN)/python,$(PYTHON))
SHELL := bash
.SHELLFLAGS := -o pipefail -c
unexport PYTHONDONTWRITEBYTECODE # each process that a test starts would compile all modules again
PROGRESS := awk '/^(Collecting|Obtaining)/ { printf "\r%d packages found", ++n; fflush() } \
	/^Installing collected/ { printf "\rinstalling %d packages ...\n", n; fflush() }'

.PHONY: demo test golden test-slow test-all test-flower test-adapters test-nvflare bench-gpu docs test-docs dist check clean

demo: $(READY)
	$(BIN)/dpfed run fed-smp-randk-digits

test: $(READY)
	$(BIN)/python -m pytest -m "not slow"

golden: $(READY)
	PYTHONPATH=tests $(BIN)/python -m golden.$(if $(BESIDE),beside $(BESIDE),record) $(WORDS)

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow

test-all: test test-slow

test-flower: $(FLOWER)/.ready
	$(FLOWER)/bin/python -m pytest --dist loadscope tests/dpfed/engines

test-adapters: $(ADAPTERS)/.ready
	$(ADAPTERS)/bin/python -m pytest -n 0 -rs tests/examples/test_adapters.py tests/dpfed/data/test_real_libraries.py

test-nvflare: $(NVFLARE)/.ready
	$(NVFLARE)/bin/python -m pytest -n 0 tests/dpfed/engines/test_nvflare.py

bench-gpu:
	PYTHONPATH=$(CURDIR) $(GPU_PYTHON) benchmarks/on_gpu.py --out benchmarks/gpu.md

docs: $(VENV)/.docs $(FLOWER)/.ready
	$(BIN)/python -m sphinx --fresh-env --fail-on-warning --keep-going -q -b html docs docs/_build/html

test-docs: $(READY)
	$(BIN)/python -m pytest -n 0 -rs tests/docs/test_site.py

dist: $(READY)
	$(BIN)/python tests/installed.py --lowest --pythons $(or $(PYTHONS),$(PYTHON))

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/claims.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	@echo "Installing torch and others into $(VENV): about a minute"
	@$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt --editable ".[train,dev]" | $(PROGRESS)
	@touch $(READY)

$(VENV)/.docs: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	touch $(VENV)/.docs

$(FLOWER)/.ready: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/pip install --quiet --disable-pip-version-check --constraint constraints-flower.txt --editable ".[dev,flower]"
	touch $(FLOWER)/.ready

$(ADAPTERS)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(ADAPTERS)
	$(ADAPTERS)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[adapters,dev]"
	$(ADAPTERS)/bin/pip install --quiet --disable-pip-version-check datasets flwr-datasets # they hold fsspec below constraints.txt
	$(ADAPTERS)/bin/pip install --quiet --disable-pip-version-check --no-deps torchvision==0.28.0 timm==1.0.31 # of torch 2.13
	$(ADAPTERS)/bin/python -c "import torchvision" 2>/dev/null || $(ADAPTERS)/bin/pip uninstall --quiet --yes torchvision # built for another build of torch; its tests are skipped
	touch $(ADAPTERS)/.ready

$(NVFLARE)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(NVFLARE)
	$(NVFLARE)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev,nvflare]"
	touch $(NVFLARE)/.ready

clean:
	rm -rf $(VENV) $(FLOWER) $(ADAPTERS) $(NVFLARE) runs
