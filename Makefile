# Two commands for a new machine: `make quickstart` trains a small model, `make test` runs the tests. A third one,
# `make real`, fetches and trains a real model.
# Each installs what it needs into .venv, in the versions of constraints.txt.

PYTHON ?= python3
BIN := .venv/bin
export HF_HUB_DISABLE_TELEMETRY := 1
# Empty: Python keeps compiled modules. The tests start hundreds of interpreters, which would compile the package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: quickstart real test ci nightly check package engines contract juicer verifiers environments quantization evidence docs editor house clean

# Tests compare runs bit for bit, and sums over another number of threads differ in their last bits.
test ci nightly engines contract juicer verifiers environments quantization evidence: export OMP_NUM_THREADS ?= 1

quickstart: .venv/base
	$(BIN)/strop quickstart $(ARGS)

real: .venv/real  ## fetches SmolLM2-135M-Instruct and trains it on sums in words, in minutes, on a CPU
	$(BIN)/python examples/real/real.py $(ARGS)

# Four processes on two cores, because a test waits for other processes half of its time.
PYTEST := -m pytest -n 4 --dist loadgroup --no-loadscope-reorder --durations=20

test: .venv/dev  ## the fast tests, in minutes
	$(BIN)/python $(PYTEST) -m "not (slow or nightly or engines or juicer)" $(ARGS)

ci: .venv/dev  ## what CI runs: the fast tests and the slow ones, in one session
	$(BIN)/python $(PYTEST) -m "not (nightly or engines or juicer)" $(ARGS)

# Every combination, kills at random moments and long learning runs, with line coverage and its minimum; then the
# environments of the serving engines, of Data-Juicer, verifiers, OpenEnv, smolagents, lm-eval and inspect-ai, the package, and the documentation site. Hours on two cores.
nightly: .venv/dev docs
	$(BIN)/python -m slipcover --source strop --json --out .coverage.json $(PYTEST) -m "not (engines or juicer)"
	$(BIN)/python tools/check_coverage.py .coverage.json
	$(MAKE) package engines juicer verifiers environments quantization

engines: .venv-vllm/ready .venv-sglang/ready  ## tests on vLLM's CPU build and on SGLang, in environments of their own
	.venv-vllm/bin/pytest -m engines tests/inference tests/run $(ARGS)
	.venv-sglang/bin/python -m pytest -m engines -k sglang tests/inference tests/run $(ARGS)

contract: .venv-vllm/ready  ## the quick cases of the contract of engines, on vLLM's CPU build; a minute
	.venv-vllm/bin/python -m pytest -q -m engines -k "quick and vllm and not parallel" tests/inference/test_contract.py $(ARGS)

juicer: .venv/dev .venv-datajuicer/ready  ## tests on Data-Juicer, whose service has an environment of its own
	STROP_DATA_JUICER_PYTHON=.venv-datajuicer/bin/python $(BIN)/pytest -m juicer tests/pipelines tests/cli $(ARGS)

verifiers: .venv-verifiers/ready  ## tests on verifiers, whose requirements exclude those of strop[mcp]
	.venv-verifiers/bin/python -m pytest tests/workflows/test_verifiers.py $(ARGS)

environments: .venv-environments/ready  ## tests on OpenEnv, verifiers 0.4, smolagents, lm-eval, inspect-ai and Trackio
	.venv-environments/bin/python -m pytest tests/cli/test_harness.py tests/workflows/test_openenv.py tests/workflows/test_agent.py tests/workflows/test_verifiers_episodes.py $(ARGS)
	.venv-environments/bin/python -m pytest tests/run/test_tracking.py -k trackio $(ARGS)

quantization: .venv-bitsandbytes/ready  ## tests on bitsandbytes and torchao, which PEFT would import in every process of the others
	.venv-bitsandbytes/bin/python -m pytest tests/models/test_quantization.py tests/training/test_optimizers.py $(ARGS)
	.venv-bitsandbytes/bin/python -m pytest tests/training/test_local_engine.py -k quantized $(ARGS)

check: .venv/dev  ## lint, types, layers, import cycles, names, words, generated pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_imports.py
	$(BIN)/python tools/check_names.py
	$(BIN)/python tools/check_words.py
	$(BIN)/codespell

package: .venv/dev  ## sdist and wheel in dist/, and their use in a clean environment; `ARGS=--release` for a release
	$(BIN)/python tools/check_package.py $(ARGS)

ifneq (,$(filter fake-cuda,$(ARGS)))
evidence: .venv-cuda/ready
endif
evidence: .venv/bench  ## measurements that take too long for CI; updates the tables in docs/
	$(BIN)/python benchmarks/evidence.py $(ARGS)

docs: .venv/dev  ## pages that are generated from the code, and the documentation site in site/
	$(BIN)/python -m strop.compat.reference
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --fresh-env --quiet docs site
	@echo "The documentation is in site/index.html."

editor:  ## the bundle of Studio's editor, which is committed; needs npm
	cd tools/editor && npm ci --ignore-scripts --no-audit --no-fund && npm run build

house: .venv/dev  ## size and grain of the package
	$(BIN)/python tools/house.py

clean:
	rm -rf .venv .venv-vllm .venv-sglang .venv-datajuicer .venv-verifiers .venv-environments .venv-bitsandbytes .venv-cuda build dist runs site

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("Strop needs Python 3.11 or newer; set PYTHON=python3.11") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv

# pip compiles modules on one core, for half of its time. Some packages have files of other versions of Python, which do
# not compile: they are no error.
INSTALL := install --quiet --disable-pip-version-check --no-compile -c constraints.txt
COMPILE := -W ignore -m compileall -qq -j 0 .venv/lib || true

.venv/base: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip $(INSTALL) -e .
	$(BIN)/python $(COMPILE)
	touch $@

.venv/real: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip $(INSTALL) -e '.[gguf]'
	$(BIN)/python $(COMPILE)
	touch $@ .venv/base

.venv/dev: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip $(INSTALL) -e '.[dev]'
	$(BIN)/python $(COMPILE)
	touch $@ .venv/base

.venv-vllm/ready: constraints-vllm.txt | .venv/bin/python
	$(BIN)/python -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check --no-deps -r constraints-vllm.txt
	.venv-vllm/bin/python tools/layer_environment.py tests/inference/vllm_stubs
	.venv-vllm/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

.venv-sglang/ready: constraints-sglang.txt .venv-vllm/ready | .venv/bin/python
	$(BIN)/python -m venv .venv-sglang
	.venv-sglang/bin/python tools/layer_environment.py .venv-vllm tests/inference/sglang_stubs
	.venv-sglang/bin/pip install --quiet --disable-pip-version-check --no-deps -r constraints-sglang.txt
	.venv-sglang/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

.venv-cuda/ready: constraints-cuda.txt | .venv/dev
	$(BIN)/python -m venv .venv-cuda
	.venv-cuda/bin/pip install --quiet --disable-pip-version-check -r constraints-cuda.txt
	.venv-cuda/bin/python tools/layer_environment.py .venv
	touch $@

.venv-datajuicer/ready: constraints-datajuicer.txt | .venv/base
	$(BIN)/python -m venv .venv-datajuicer
	.venv-datajuicer/bin/python tools/layer_environment.py .venv
	.venv-datajuicer/bin/pip install --quiet --disable-pip-version-check --no-deps -r constraints-datajuicer.txt
	touch $@

.venv-verifiers/ready: constraints-verifiers.txt | .venv/dev
	$(BIN)/python -m venv .venv-verifiers
	.venv-verifiers/bin/python tools/layer_environment.py .venv
	.venv-verifiers/bin/pip install --quiet --disable-pip-version-check --no-deps -r constraints-verifiers.txt
	touch $@

.venv-environments/ready: constraints-environments.txt | .venv/dev
	$(BIN)/python -m venv .venv-environments
	.venv-environments/bin/python tools/layer_environment.py .venv
	.venv-environments/bin/pip install --quiet --disable-pip-version-check --no-deps -r constraints-environments.txt
	touch $@

.venv-bitsandbytes/ready: constraints.txt | .venv/dev
	$(BIN)/python -m venv .venv-bitsandbytes
	.venv-bitsandbytes/bin/python tools/layer_environment.py .venv
	.venv-bitsandbytes/bin/pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt bitsandbytes torchao
	touch $@

.venv/bench: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/pip $(INSTALL) -e '.[dev,bench]'
	$(BIN)/python $(COMPILE)
	touch $@ .venv/dev .venv/base
