# Every target sets up what it needs: a virtual environment in .venv with this checkout and the
# versions of constraints.txt. `make help` lists the targets.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DEMO_INSTALLED := $(VENV)/.installed-for-demo
# The first file of the package has its version, which an installation keeps.
BUILD_INPUTS := pyproject.toml constraints.txt CMakeLists.txt \
  $(wildcard src/fast_lapsum/__init__.py src/fast_lapsum/backends/cpu/*.?pp)

# Constrains the isolated build environment too (newer pip reads the second name for that).
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Python keeps what it has compiled: where that is forbidden, every process compiles torch anew.
unexport PYTHONDONTWRITEBYTECODE

# The first Python on the path that is new enough and can make virtual environments.
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11 python3.10 python,\
  $(shell $(name) -c 'import sys, venv, ensurepip; print("$(name)" * (sys.version_info >= (3, 10)))' 2>/dev/null)))

.DEFAULT_GOAL := help
.NOTPARALLEL: # targets share one virtual environment
.PHONY: help install demo lint test test-slow test-gpu test-gpu-sanitizer hunt hunt-gpu hostile \
  bench-cpu bench-gpu bench-all report examples docs costs pictures dist clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## the virtual environment, with this checkout installed in place

# $(call set_up,EXTRA): until it has ended neither stamp is there, so that no target takes half of it.
# Python compiles what it imports; pip would compile all that is installed, which takes longer.
define set_up
	@test -n "$(PYTHON)" || { echo "error: no Python >= 3.10 with venv and ensurepip on PATH;" \
	  "install one (Debian: python3 python3-venv) or say make PYTHON=/path/to/python" >&2; exit 1; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $(INSTALLED) $(DEMO_INSTALLED)
	@rm -rf src/fast_lapsum/cpu # where it was before
	@rm -f src/fast_lapsum/backends/cpu/_lapsum.* # if it cannot be built, none is better than an old one
	@echo "Installing into $(VENV), which takes a minute or more."
	$(BIN)/python -m pip install --quiet --editable ".[$(1)]" --no-compile
	@$(BIN)/python -c 'from fast_lapsum.backends.cpu import loader; print("CPU calls take:", loader.status().description)'
endef

$(INSTALLED): $(BUILD_INPUTS)
	$(call set_up,dev)
	@touch $(DEMO_INSTALLED) $@

$(DEMO_INSTALLED): $(BUILD_INPUTS)
	$(call set_up,bench)
	@touch $@

# The demo needs few packages. Where all of them were installed, all are kept up to date.
demo: $(or $(wildcard $(INSTALLED)),$(DEMO_INSTALLED)) ## an exact soft top-k over a million scores, timed, with a picture
	$(BIN)/fast-lapsum demo

lint: $(INSTALLED) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Triton decides on import whether it interprets kernels, and the compiled ones want no interpreter
# beside them: hence three runs, each on both cores. Where there is no Triton nothing is collected,
# which pytest reports by 5.
WORKERS = 2
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
KERNEL_TESTS := tests/backends/triton
COMPILED := $(wildcard $(KERNEL_TESTS)/test_triton_*compiles.py)
INTERPRETED := $(filter-out $(COMPILED),$(wildcard $(KERNEL_TESTS)/test_triton_*.py))
INTERPRET := TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(PYTEST) $(INTERPRETED)
COMPILE := $(PYTEST) $(COMPILED)
OTHERS := $(PYTEST) $(INTERPRETED:%=--ignore=%) $(COMPILED:%=--ignore=%)

test: lint ## lint, doctests and every test not marked slow
	$(OTHERS)
	$(INTERPRET) || test $$? -eq 5
	$(COMPILE) || test $$? -eq 5

test-slow: lint ## lint, doctests and every test
	$(OTHERS) -m ""
	$(INTERPRET) -m "" || test $$? -eq 5
	$(COMPILE) -m "" || test $$? -eq 5

# On a machine with a GPU, which has its own torch: no virtual environment, nothing is installed.
GPU_PYTHON = $(or $(PYTHON),python3)

# So many processes share the GPU and its tests: make test-gpu GPU_JOBS=8
GPU_JOBS = 1
WORKLOAD := $(GPU_PYTHON) tests/gpu/sanitizer_workload.py
PARTS := seq 0 $$(($(GPU_JOBS) - 1)) | xargs -P $(GPU_JOBS) -I PART

test-gpu: ## the tests that need a GPU, with the python3 and torch of this machine
	PYTHONPATH=src $(GPU_PYTHON) tests/gpu/side_by_side.py $(GPU_JOBS)

# The first run compiles, which takes longer under a tool that watches.
test-gpu-sanitizer: export PYTHONPATH = src
test-gpu-sanitizer: ## every GPU kernel under compute-sanitizer
	@command -v compute-sanitizer >/dev/null || { echo "error: no compute-sanitizer on PATH;" \
	  "it comes with the CUDA toolkit, in its bin or compute-sanitizer folder" >&2; exit 1; }
	$(PARTS) $(WORKLOAD) PART $(GPU_JOBS)
	for tool in memcheck racecheck initcheck; do echo "$$tool:"; \
	  $(PARTS) env PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool $$tool \
	  --error-exitcode 1 $(WORKLOAD) PART $(GPU_JOBS) || exit 1; done

# Rows, seed and all else that `python -m hunting --help` lists: make hunt ROWS=10000000 SEED=1
# HUNT="--solver bisect --record results/hunt/bisect.json"
ROWS = 1000000
LONG_ROWS = 1000
SEED = 0
HUNT =
HOSTILE =
HUNTING = -m hunting --rows $(ROWS) --long-rows $(LONG_ROWS) --seed $(SEED) $(HUNT)

hunt: $(INSTALLED) ## look for wrong rows, with the CPU kernel or HUNT="--solver NAME"
	PYTHONPATH=tests $(BIN)/python $(HUNTING)

hunt-gpu: ## the same on a GPU, with the python3 and torch of this machine
	PYTHONPATH=src:tests $(GPU_PYTHON) $(HUNTING) --device cuda

hostile: $(INSTALLED) ## decode 10,000 files made by hand, under the coder's limits; HOSTILE="--help"
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m hostile $(HOSTILE)

bench-cpu: $(INSTALLED) ## the CPU benchmark, into results/cpu.json
	$(BIN)/fast-lapsum bench cpu

bench-gpu: $(INSTALLED) ## the GPU benchmark, into results/gpu.json
	$(BIN)/fast-lapsum bench gpu

bench-all: $(INSTALLED) ## the paper's tables and figures on this machine, into results/
	$(BIN)/fast-lapsum bench all

report: $(INSTALLED) ## figures and a page from results/, into report/
	$(BIN)/fast-lapsum report

examples: $(INSTALLED) ## every example in short form, into build/examples
	OMP_NUM_THREADS=1 $(BIN)/python examples --short --anew

docs: $(INSTALLED) ## the site, into build/site; open build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

costs: $(INSTALLED) ## docs/costs.md, and the numbers of all other pages, from results/
	$(BIN)/python docs/tools/costs.py

pictures: $(INSTALLED) ## the pictures of the README and of pages that explain, into docs/figures
	$(BIN)/python docs/tools/pictures.py

dist: $(INSTALLED) ## an sdist and wheels for a package index, in dist/, installed and tried
	$(BIN)/python -m pip install --quiet --editable ".[dist]"
	$(BIN)/python packaging/build_wheels.py dist
	$(BIN)/python packaging/try_wheels.py dist

clean: ## remove everything made here, the virtual environment included
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis fast-lapsum-demo.png \
	  results-quick report
	rm -f src/fast_lapsum/backends/cpu/_lapsum.*
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
