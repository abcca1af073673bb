# Everything a user or a contributor does. `make` alone prints the targets.
#
# Set-up is part of every target that needs it: a virtual environment in .venv/, rebuilt when pyproject.toml or
# constraints.txt change. Nothing is installed outside .venv/; neither root nor a system service is needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
TORCH := torch==2.13.0

# One stamp per set of dependencies installed into .venv/.
VENV_STAMP := $(VENV)/.stamp-venv
LOCAL_STAMP := $(VENV)/.stamp-local
DEV_STAMP := $(VENV)/.stamp-dev
NOTEBOOK_STAMP := $(VENV)/.stamp-notebook
PINS := pyproject.toml constraints.txt

# mypy refuses paths that do not exist, hence the wildcard.
SOURCES := $(wildcard cerebro controller dispatcher etl_worker kvs_api model_hopper trial_runner \
	benchmarks examples tests)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run notebook stop test test-slow lint format bench scheduling clean distclean

help:  ## print these targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-10s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(LOCAL_STAMP)  ## install the platform into .venv/ (the targets below do it when needed)

run: $(LOCAL_STAMP)  ## start a local cluster, preprocess the digits, train a grid of models by hopping
	@$(BIN)/python examples/digits.py

notebook: $(NOTEBOOK_STAMP)  ## open notebooks/quickstart.ipynb in JupyterLab
	@$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/quickstart.ipynb

stop: $(LOCAL_STAMP)  ## stop the local cluster
	@$(BIN)/cerebro down

test: $(DEV_STAMP)  ## run the tests, but for the slow ones
	@$(BIN)/python -m pytest -q -m 'not slow'

test-slow: $(DEV_STAMP)  ## run the slow tests: whole clusters, crashes, the notebook, the browser
	@$(BIN)/python -m pytest -q -m slow

lint: $(DEV_STAMP)  ## check style, format, types and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports --no-cache

format: $(DEV_STAMP)  ## format the code and mend what can be mended mechanically
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(LOCAL_STAMP)  ## run the benchmarks, print the figures with their bars
	@$(BIN)/python -m benchmarks

scheduling: $(LOCAL_STAMP)  ## simulate all schedulers, write the tables and pictures of docs/scheduling.md
	@$(BIN)/python -m docs.generate_scheduling

clean:  ## remove caches and build leftovers
	@rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -path ./$(VENV) -prune -o -path ./.git -prune -o -type d -name __pycache__ -exec rm -rf {} +

distclean: clean  ## remove .venv/ as well
	@rm -rf $(VENV)

$(VENV_STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Cerebro needs Python 3.11 or newer; '$(PYTHON)' is" \
			"$$(command -v $(PYTHON) >/dev/null && $(PYTHON) --version 2>&1 || echo 'not on PATH')." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "'$(PYTHON)' cannot create virtual environments: its venv or ensurepip module is missing." >&2; \
		echo "On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Creating $(VENV)/ ..."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# torch goes first and alone: its pin is exact, and pip then resolves the rest around it in one pass.
$(LOCAL_STAMP): $(PINS) | $(VENV_STAMP)
	@echo "Installing the platform into $(VENV)/ (some minutes the first time) ..."
	@$(PIP) install -qq -c constraints.txt '$(TORCH)'
	@$(PIP) install -qq -c constraints.txt -e '.[local]'
	@touch $@

$(DEV_STAMP): $(LOCAL_STAMP)
	@echo "Installing the development tools into $(VENV)/ ..."
	@$(PIP) install -qq -c constraints.txt -e '.[local,dev]'
	@touch $@

$(NOTEBOOK_STAMP): $(LOCAL_STAMP)
	@echo "Installing JupyterLab into $(VENV)/ ..."
	@$(PIP) install -qq -c constraints.txt -e '.[local,notebook]'
	@touch $@
