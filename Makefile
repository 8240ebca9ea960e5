# The two commands a newcomer needs are `make run` and `make test`.
# Each makes the virtual environment on first use; later calls do not install again.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
# One process per core, each with single-threaded linear algebra: small matrices gain nothing from
# threads, and threads of several processes would fight.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto --dist loadfile

.PHONY: help run test test-all examples lint format bench docs dist clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

run: $(VENV)/run.stamp ## Compile a ReLU DEQ on handwritten digits and write runs/relu/report.html
	$(BIN)/notsodeep compile --activation relu --sigma-a2 0.2 --data digits --out runs/relu

test: $(VENV)/dev.stamp ## Run the tests, without the slow ones
	$(PYTEST) -m "not slow"

test-all: $(VENV)/dev.stamp ## Run every test
	$(PYTEST)

examples: $(VENV)/dev.stamp ## Run every example, the slow ones too
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses auto tests/test_examples.py

lint: $(VENV)/dev.stamp ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/dev.stamp ## Put the code into the standard format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/dev.stamp ## Measure speed, as ratios in one run; results go to runs/bench.json
	$(BIN)/python benchmarks/bench.py --out runs/bench.json

docs: $(VENV)/docs.stamp ## Build the documentation into docs/_build/html
	$(BIN)/sphinx-build -W -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

dist: ## Build sdist and wheel into dist, and do the main job with the wheel alone
	PYTHON=$(PYTHON) .ci/dist

clean: ## Remove the virtual environment and everything built
	rm -rf $(VENV) dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[cli,plot]'
	touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp
	$(PIP) --editable '.[dev]'
	touch $@

$(VENV)/docs.stamp: $(VENV)/run.stamp
	$(PIP) --editable '.[all,docs]'
	touch $@
