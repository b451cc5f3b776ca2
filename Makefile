# Everything a newcomer types. Needs Python 3.11 or newer, a C++ compiler and make; each target sets itself up.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Environments with torch, which demo and tests share, about 2 GB; and what mypy and the tests' compilers have seen.
export KCI_CACHE ?= $(HOME)/.cache/kci
# The tests start Python some thousand times: without bytecode each start compiles kci anew, which takes most of the time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-lowest lint types docs site bench

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# Modules are compiled at once: where PYTHONDONTWRITEBYTECODE is set they would otherwise be compiled at every start.
$(BIN)/kci: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("kci needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable .
	-$(BIN)/python -m compileall -q src/kci
	@touch $@

$(VENV)/.dev: $(BIN)/kci
	$(BIN)/uv pip install --quiet --python $(BIN)/python --group dev || { \
	    $(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' && $(BIN)/python -m pip install --quiet --group dev; }
	@touch $@

demo: $(BIN)/kci  ## build, merge and verify the example kernels on this machine, and load those for the CPU
	$(BIN)/python examples/demo.py

# What decides about a change is the same each time: files in their order, and no new examples of hypothesis. `test-fast` shuffles both,
# and takes a third of the examples. Three workers of xdist on two cores: these tests wait for programs more than they compute.
test: $(VENV)/.dev  ## all tests: real compilers, real torch, real loader, real workflow engine
	$(BIN)/python -m pytest -p no:randomly --hypothesis-profile ci -n 3 --dist worksteal --durations=20

test-fast: $(VENV)/.dev  ## the tests that need no torch and no network, and are quick
	$(BIN)/python -m pytest -m 'not torch and not network and not slow' -n 3 --dist worksteal

# The tools of developers need newer versions of some of them; what tests those is left out.
test-lowest:  ## the fast tests with the oldest versions that pyproject.toml allows
	$(MAKE) VENV=build/lowest build/lowest/.dev
	build/lowest/bin/uv pip install --quiet --upgrade --python build/lowest --resolution lowest-direct --editable '.[hf,sign,zstd]'
	build/lowest/bin/uv pip install --quiet --upgrade --python build/lowest --resolution lowest-direct --editable .
	build/lowest/bin/python -m pytest -m 'not torch and not network and not slow' -n 3 --dist worksteal \
	    --ignore tests/workflows/test_lint.py --ignore tests/workflows/test_gitlab.py \
	    --deselect tests/test_project.py::test_the_import_contract_fails_against_the_flow

lint: $(VENV)/.dev  ## style, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.dev  ## the strict type checker, for the system here and for Windows
	$(BIN)/mypy --cache-dir $(KCI_CACHE)/test-tools/mypy
	$(BIN)/mypy --cache-dir $(KCI_CACHE)/test-tools/mypy-win32 --platform win32

docs: $(VENV)/.dev  ## write the generated pages of docs/
	$(BIN)/python bin/gen_docs.py

# The generator is told to treat every warning as an error; its own notice about its successor is none.
site: $(VENV)/.dev  ## the pages of docs/ as a site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: $(VENV)/.dev  ## figures, as ratios against something measured in the same run
	for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done
