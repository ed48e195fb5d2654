# Two commands on a fresh machine: `make quickstart` runs the main job, `make test` passes the tests.
# Each sets up all it needs in .venv, from the pinned versions in constraints.txt.

PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
export HF_HUB_DISABLE_TELEMETRY := 1

.PHONY: quickstart test check slow evidence docs clean

quickstart: .venv/base
	$(BIN)/python examples/quickstart/quickstart.py $(ARGS)

test: .venv/dev
	$(BIN)/pytest -n 2 -m "not learning and not faults" $(ARGS)

slow: .venv/dev  ## the learning and fault tests that CI runs too
	$(BIN)/pytest -n 2 -m "learning or faults" $(ARGS)

check: .venv/dev  ## lint, types, layers, generated pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m strop.config.reference --check

evidence: .venv/bench  ## all that is too long for CI; refreshes the tables in docs/
	$(BIN)/python benchmarks/evidence.py $(ARGS)

docs: .venv/base  ## what is generated from the code
	$(BIN)/python -m strop.run.metrics > docs/metrics.md
	$(BIN)/python -m strop.config.reference

clean:
	rm -rf .venv build dist runs

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Strop needs Python 3.11 or newer; set PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv

.venv/base: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/dev: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@ .venv/base

.venv/bench: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,bench]'
	touch $@ .venv/dev .venv/base
