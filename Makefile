# make demo: compares four methods on embedded data. make quick: the fast tests, under 90 seconds on 2 cores.
# make test: all checks and tests. make docs: the site, into site/. make docs-serve: the site on loopback.
# Each target first creates the environment if needed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE # without its bytecode every process compiles the package again

.PHONY: demo quick test types tests docs docs-serve dist clean

demo: .venv/.ready
	$(BIN)/ser run split-digits --method sgd,er,derpp,ser --memory 50 --seeds 5 --threads 1 --out demo

quick: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow'

test: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MAKE) --jobs 2 types tests

types: .venv/.ready
	$(BIN)/mypy

tests: .venv/.ready
	$(BIN)/python -m pytest -n 3 --dist worksteal

docs: .venv/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: .venv/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8001

dist: .venv/.ready
	rm -rf dist
	$(BIN)/python -m build --outdir dist

.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv demo site dist
