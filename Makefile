# Two commands do everything on a fresh machine: make demo, make test. make test-all runs the slow tests besides.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Hundreds of processes are started; none should compile the sources again, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

# Whole files go to one process each, as starts are shared within a file; the longest come first.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all pytest lint types format package clean

demo: $(VENV)/.installed
	$(BIN)/fedacg compare quickstart --methods fedavg,fedprox,fedavgm,fedacg --out runs/demo --overwrite

test: lint types pytest

pytest: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow"

# What takes longer: kill -9, damage, clusters, browsers, deployments, real data.
test-all: $(VENV)/.installed-dev
	$(PYTEST) -m slow

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The wheel and the sdist, in dist/.
package: $(VENV)/.installed-dev
	rm -rf dist
	$(BIN)/python -m build

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) runs dist build .mypy_cache .pytest_cache .ruff_cache
