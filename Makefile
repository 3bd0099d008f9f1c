# Every target sets up what it needs: a virtual environment in .venv with this checkout and the
# versions of constraints.txt. `make help` lists the targets.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
BUILD_INPUTS := pyproject.toml constraints.txt CMakeLists.txt $(wildcard src/fast_lapsum/backends/cpu/*.?pp)

# Constrains the isolated build environment too (newer pip reads the second name for that).
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# The first Python on the path that is new enough and can make virtual environments.
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11 python3.10 python,\
  $(shell $(name) -c 'import sys, venv, ensurepip; print("$(name)" * (sys.version_info >= (3, 10)))' 2>/dev/null)))

.DEFAULT_GOAL := help
.PHONY: help install demo lint test test-slow test-gpu test-gpu-sanitizer hunt hunt-gpu hostile \
  bench-cpu bench-gpu bench-all report docs costs pictures dist clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) ## the virtual environment, with this checkout installed in place

$(INSTALLED): $(BUILD_INPUTS)
	@test -n "$(PYTHON)" || { echo "error: no Python >= 3.10 with venv and ensurepip on PATH;" \
	  "install one (Debian: python3 python3-venv) or say make PYTHON=/path/to/python" >&2; exit 1; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@rm -rf src/fast_lapsum/cpu # where it was before
	@rm -f src/fast_lapsum/backends/cpu/_lapsum.* # if it cannot be built, none is better than an old one
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	@$(BIN)/python -c 'from fast_lapsum.backends.cpu import loader; print("CPU calls take:", loader.status().description)'
	@touch $@

demo: $(INSTALLED) ## an exact soft top-k over a million scores, timed, with a picture
	$(BIN)/fast-lapsum demo

lint: $(INSTALLED) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Triton decides on import whether it interprets kernels, hence a process of its own, and another one
# for compiling them. Where there is no Triton nothing is collected, which pytest reports by 5.
KERNEL_TESTS := tests/backends/triton
INTERPRETED := $(filter-out %_compiles.py,$(wildcard $(KERNEL_TESTS)/test_triton_*.py))
COMPILED := $(wildcard $(KERNEL_TESTS)/test_triton_*compiles.py)
INTERPRET := TRITON_INTERPRET=1 $(BIN)/python -m pytest $(INTERPRETED)
COMPILE := { $(BIN)/python -m pytest -n 2 --dist worksteal $(COMPILED) || test $$? -eq 5; }
OTHERS := $(BIN)/python -m pytest $(COMPILED:%=--ignore=%)

# Kernels are interpreted on one core; the other tests run beside them, and then kernels are
# compiled. The output of the interpreted tests comes last.
test: lint ## lint, doctests and every test not marked slow
	@log=$$(mktemp); { $(INTERPRET); } > $$log 2>&1 & other=$$!; \
	trap "kill $$other; rm -f $$log" INT TERM; \
	$(OTHERS) && $(COMPILE); ended=$$?; \
	wait $$other; kernels=$$?; cat $$log; rm -f $$log; \
	test $$ended -eq 0 && { test $$kernels -eq 0 || test $$kernels -eq 5; }

test-slow: lint ## lint, doctests and every test
	$(OTHERS) -m ""
	{ $(INTERPRET); } || test $$? -eq 5
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "" $(COMPILED) || test $$? -eq 5

# On a machine with a GPU, which has its own torch: no virtual environment, nothing is installed.
GPU_PYTHON = $(or $(PYTHON),python3)

test-gpu: ## the tests that need a GPU, with the python3 and torch of this machine
	PYTHONPATH=src $(GPU_PYTHON) -m pytest tests/gpu

test-gpu-sanitizer: ## every GPU kernel under compute-sanitizer
	@command -v compute-sanitizer >/dev/null || { echo "error: no compute-sanitizer on PATH;" \
	  "it comes with the CUDA toolkit, in its bin or compute-sanitizer folder" >&2; exit 1; }
	for tool in memcheck racecheck initcheck; do echo "$$tool:"; \
	  PYTORCH_NO_CUDA_MEMORY_CACHING=1 PYTHONPATH=src compute-sanitizer --tool $$tool \
	  --error-exitcode 1 $(GPU_PYTHON) tests/gpu/sanitizer_workload.py || exit 1; done

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

docs: $(INSTALLED) ## the site, into build/site; open build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

costs: $(INSTALLED) ## docs/costs.md, from results/
	$(BIN)/python docs/tools/costs.py

pictures: $(INSTALLED) ## the drawings of docs/how-it-works.md, into docs/figures
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
