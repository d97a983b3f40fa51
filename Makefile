PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
ARGS ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
RUN := $(VENV)/.installed-run
DEV := $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test test-slow test-all test-browser test-oracles check package docs format bench \
	fuzz faults attacks clean distclean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(RUN) ## run the demo of all three verbs
	$(BIN)/python examples/demo.py $(ARGS)

# Two workers with one thread each are faster than one process with two. Select with ARGS="-k loop".
PYTEST = OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test: $(DEV) ## run the tests, except the slow ones
	$(PYTEST) -m "not slow and not browser" $(ARGS)

test-slow: $(DEV) ## run the slow tests: examples, the site, several processes, compilers
	$(PYTEST) -m "slow and not browser" $(ARGS)

test-all: test test-slow test-browser ## run every test

test-browser: $(DEV) ## open reports in a real browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/browser -m browser $(ARGS)

test-oracles: $(DEV) ## compare with other libraries, if they are installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/oracles $(ARGS)

check: $(DEV) ## lint, formatting, types and the commit hooks
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	@if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then \
		echo "$(BIN)/pre-commit run --all-files"; \
		PRE_COMMIT_HOME="$(CURDIR)/$(VENV)/pre-commit" $(BIN)/pre-commit run --all-files; \
	else \
		echo "not a git checkout: the commit hooks are skipped"; \
	fi

package: $(DEV) ## build the wheel and the sdist, try them in a clean environment
	OMP_NUM_THREADS=1 $(BIN)/python tools/check_package.py $(ARGS)

docs: $(DEV) ## build the documentation into site/ and check its links
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

format: $(DEV) ## format the code and apply automatic fixes
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(RUN) ## time one step of the loop
	$(BIN)/python benchmarks/step.py $(ARGS)

fuzz: $(DEV) ## call everything public with wrong arguments, 50,000 times
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python tools/fuzz.py --workers $(WORKERS) $(ARGS)

attacks: $(DEV) ## estimate log Z of 300 hostile targets: is any trusted and wrong?
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python tools/attacks.py $(ARGS)

# Then the tests of teachers that fail, of signals, of closed pipes and of two processes at once.
FAULTS = tests/storage tests/security tests/cli/test_interruption.py tests/cli/test_lock.py \
	tests/cli/test_app.py tests/compression/test_bad_input.py tests/teachers/test_cache.py

faults: $(DEV) ## crash every writer at every operation, damage 1,000 files, kill 100 processes
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m tests.faults $(ARGS)
	$(PYTEST) $(FAULTS)

clean: ## remove caches and builds
	rm -rf build dist htmlcov site test-artifacts .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environment too
	rm -rf $(VENV)

# The environment: created once, updated when the requirements change.
$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"PYTHON: expected Python 3.11 or later, as in make PYTHON=python3.12, got {v[0]}.{v[1]}")'
	$(PYTHON) -m venv $(VENV)

$(RUN): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "installing limbeck and its dependencies into $(VENV): a few minutes the first time"
	$(PIP) install --quiet --constraint constraints.txt --editable '.[report]'
	@touch $@

$(DEV): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "installing limbeck and its development tools into $(VENV): a few minutes the first time"
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(RUN) $@
