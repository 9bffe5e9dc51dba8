# Two commands do everything on a fresh machine: make demo, make test. make test-all runs the slow tests besides.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Hundreds of processes are started; none should compile the sources again, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

# tests/conftest.py says which tests share a process, and in which order they come.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 4 --no-loadscope-reorder

.PHONY: demo test test-all pytest lint types format docs figures tutorials package clean

demo: $(VENV)/.installed
	$(BIN)/fedacg compare quickstart --methods fedavg,fedprox,fedavgm,fedacg --out runs/demo --overwrite

test: lint types pytest

pytest: $(VENV)/.installed-dev
	$(PYTEST) -m "not slow"

# What takes longer: kill -9, damage, clusters, browsers, deployments, real data.
test-all: $(VENV)/.installed-dev
	$(PYTEST) -m slow $$(grep -rl --include='test_*.py' mark.slow tests)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs examples benchmarks src tests

types: $(VENV)/.installed-dev
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documents as a site in site/, without network; a broken link or an unknown name ends it.
docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

# Every figure of the documents, from committed numbers.
figures: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/figures.py

# What the tutorials' cells show, by running them.
tutorials: $(VENV)/.installed-dev
	$(BIN)/python docs/_tools/tutorials.py

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
	rm -rf $(VENV) runs dist build site .mypy_cache .pytest_cache .ruff_cache
