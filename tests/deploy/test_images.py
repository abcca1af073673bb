"""The Dockerfile: its inputs and its packages. test_containers.py tests the built images."""

from __future__ import annotations

import fnmatch
import importlib.util
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.control_image import closure

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "deploy" / "images"
DOCKERFILE = (IMAGES / "Dockerfile").read_text()
INSTRUCTIONS = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE)).splitlines()
TARGETS = ("control", "worker", "notebook")


def load(name: str) -> ModuleType:
    """Load a script of deploy/images as a module."""
    spec = importlib.util.spec_from_file_location(f"images_{name}", IMAGES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def stage(name: str) -> list[str]:
    """Return the instructions of a stage."""
    starts = [i for i, line in enumerate(INSTRUCTIONS) if line.startswith("FROM ")]
    begin = next(i for i in starts if INSTRUCTIONS[i].endswith(f" AS {name}"))
    end = next((i for i in starts if i > begin), len(INSTRUCTIONS))
    return [line for line in INSTRUCTIONS[begin:end] if line.strip()]


def requirements(command: str) -> list[Requirement]:
    """Return the requirements that ``python3 packages.py ARGUMENTS > FILE`` of the Dockerfile writes."""
    found = re.search(rf"packages\.py ([a-z0-9 -]+) > {command}\.txt", DOCKERFILE)
    assert found is not None
    packages = load("packages")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(line) for line in packages.requirements(project, found[1].split())]


def required(command: str) -> set[str]:
    """Return the names of the distributions in `requirements`."""
    return {each.name for each in requirements(command)}


@pytest.fixture
def let_in() -> list[str]:
    """Return the patterns of .dockerignore that include files."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*", "the list has to begin by keeping all out"
    return [rule[1:] for rule in rules if rule.startswith("!")]


def test_copied_paths_exist_and_are_not_ignored(let_in: list[str]) -> None:
    """.dockerignore includes each path that COPY takes from the checkout."""
    copies = [line.split()[1:-1] for line in INSTRUCTIONS if re.match(r"COPY (?!--from)", line)]
    sources = {source.rstrip("/") for words in copies for source in words}
    assert "cerebro" in sources
    for source in sources:
        assert (ROOT / source).exists()
        entrances = [rule for rule in let_in if rule == source or rule.startswith(f"{source}/")]
        assert entrances, f".dockerignore keeps {source} out"


def test_every_package_of_the_project_is_built_in() -> None:
    """The images install the packages of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {
        name for name in project["tool"]["setuptools"]["packages"]["find"]["include"] if "." not in name
    }
    copied = {line.split()[1].rstrip("/") for line in stage("code") if line.startswith("COPY ")}
    assert packages == {name for name in copied if (ROOT / name).is_dir()}


@pytest.mark.parametrize(
    "secret",
    [".env", ".git/config", ".venv/bin/python", "results/digits/leaderboard.csv", "token", "data/train.csv",
     "infra/eksctl/cluster.yaml", ".cerebro/run/token", "deploy/helm/values-secret.yaml"],
)  # fmt: skip
def test_other_paths_stay_out_of_the_build(secret: str, let_in: list[str]) -> None:
    """Secrets, data and results of a checkout never reach a builder."""
    assert not [rule for rule in let_in if secret == rule or secret.startswith(f"{rule}/")]
    assert not [rule for rule in let_in if fnmatch.fnmatch(secret, rule)]


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_without_root_and_has_labels(target: str) -> None:
    """User 1000, a health command, the OCI labels, and no installation in the final stage."""
    lines = stage(target) + (stage("worker") if target == "notebook" else [])
    text = "\n".join(lines)
    assert "USER 1000:1000" in lines
    assert "HEALTHCHECK" in text
    for label in ("title", "version", "revision", "source", "licenses"):
        assert f"org.opencontainers.image.{label}=" in text
    assert not re.search(r"pip3? install|apt-get", text)


def test_the_control_image_has_no_torch_and_the_worker_image_has_it() -> None:
    """The control image has the services' libraries, the worker image torch and the imports of examples/digits.py."""
    control, worker = required("control"), required("worker")
    assert {"flask", "uvicorn", "redis", "pyarrow", "boto3", "kubernetes", "optuna"} <= control
    assert not {"torch", "pandas", "ortools"} & control
    assert {"torch", "numpy", "pyarrow", "pillow", "boto3", "cloudpickle"} <= worker
    assert "scikit-learn" not in worker
    assert {"jupyterlab", "tensorboard", "pandas", "scikit-learn"} <= required("notebook")


def test_the_control_image_has_all_libraries_of_its_services() -> None:
    """Each library that a control-plane service imports is in its groups; solvers are optional."""
    services = ("controller", "dispatcher", "kvs_api")
    graph = grimp.build_graph(
        "cerebro", *services, include_external_packages=True, exclude_type_checking_imports=True
    )
    # The client imports torch and others only inside functions that the page does not call; test_control_image.py tests
    # this.
    graph.remove_import(
        importer="dispatcher.start.file_process", imported="cerebro.client.experiment_file.submission"
    )
    pending = [module for service in services for module in {service} | graph.find_descendants(service)]
    reached = set[str]()
    while pending:
        module = pending.pop()
        if module not in reached:
            reached.add(module)
            pending += graph.find_modules_directly_imported_by(module)
    known = packages_distributions()
    libraries = {module.split(".")[0] for module in reached} - {"cerebro", *services, "ortools", "gurobipy"}
    distributions = {name: known[name] for name in libraries - set(sys.stdlib_module_names) if name in known}
    installed = closure(requirements("control"))
    missing = {n for n, of in distributions.items() if not {canonicalize_name(d) for d in of} & installed}
    assert missing == set()
    assert "xxhash" in distributions, "the walk over imports found no indirect one"


def test_trimming_keeps_the_files_for_reading_buckets(tmp_path: Path) -> None:
    """Trimming removes AWS' other services and packages' tests, but keeps S3 and the sign-in."""
    finish = load("finish")
    removed = ["botocore/data/ec2/x.json", "numpy/linalg/tests/t.py", "pyarrow/libarrow_flight.so.1"]
    kept = [
        "botocore/data/s3/x.json",
        "botocore/data/sts/x.json",
        "botocore/data/endpoints.json",
        "numpy/linalg/a.py",
        "pyarrow/libarrow.so.1",
    ]
    for name in removed + kept:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    finish.trim(tmp_path, "control")
    assert [name for name in removed if (tmp_path / name).exists()] == []
    assert [name for name in kept if not (tmp_path / name).exists()] == []


@pytest.mark.slow
def test_pages_find_plotlys_script_in_the_control_image(tmp_path: Path) -> None:
    """Trimming removes plotly's figure builders, most of the package, but keeps its script."""
    spec = importlib.util.find_spec("plotly")
    assert spec is not None
    assert spec.origin is not None
    shutil.copytree(Path(spec.origin).parent, tmp_path / "plotly")
    load("finish").trim(tmp_path, "control")
    left = sum(path.stat().st_size for path in (tmp_path / "plotly").rglob("*") if path.is_file())
    assert left < 15_000_000
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from importlib.util import find_spec\n"
        "from cerebro.client.reporting.plotting import plotly_script\n"
        f"assert find_spec('plotly').origin.startswith({str(tmp_path)!r})\n"
        "assert len(plotly_script()) > 1_000_000\n"
        "import dispatcher.pages.statics"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_controller_needs_no_generated_class_of_the_kubernetes_client(tmp_path: Path) -> None:
    """Trimming removes the generated classes, most of the package; the client still imports and sends requests."""
    spec = importlib.util.find_spec("kubernetes")
    assert spec is not None
    assert spec.origin is not None
    ignored = shutil.ignore_patterns("aio", "__pycache__", "v1beta*", "v2*")
    shutil.copytree(Path(spec.origin).parent, tmp_path / "kubernetes", ignore=ignored)
    load("finish").trim(tmp_path, "control")
    assert not list(tmp_path.glob("kubernetes/client/*/v1_pod*.py"))
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from kubernetes import __file__ as origin\n"
        f"assert origin.startswith({str(tmp_path)!r})\n"
        "from kubernetes.client import Configuration\n"
        "from controller.kubernetes import KubernetesOrchestrator\n"
        "from cerebro.errors import RetryableError\n"
        "here = Configuration(host='http://127.0.0.1:1', retries=False)\n"
        "try: KubernetesOrchestrator(here, 'cerebro', 'workers').scale(1)\n"
        "except RetryableError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "does not answer" in done.stdout, done.stderr


@pytest.mark.slow
def test_samplers_work_in_the_control_image(tmp_path: Path) -> None:
    """Trimming removes Optuna's database and its dependencies; TPE and CMA-ES still sample."""
    removed = ["alembic", "greenlet", "mako", "sqlalchemy"]
    for name in removed:
        (tmp_path / name).mkdir()
    load("finish").trim(tmp_path, "control")
    assert list(tmp_path.iterdir()) == []
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({[*removed, 'yaml', 'scipy', 'torch']!r}))\n"
        "from cerebro.contract.search import CMA, RandomSampler, TPE, Uniform\n"
        "from cerebro.search.history import Past\n"
        "from cerebro.search.samplers import suggest\n"
        "space = {'x': Uniform(low=0, high=1), 'y': Uniform(low=0, high=1)}\n"
        "seen = [Past(hyperparams=each, scores={1: each['x']})\n"
        "        for each in suggest(RandomSampler(), space, (), range(30), 0)]\n"
        "for choice in (TPE(), CMA()): print(*suggest(choice, space, seen, range(2), 0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.count("'x'") == 4, done.stderr


def test_worker_images_have_the_packages_of_samplers() -> None:
    """They have the samplers' packages including SciPy, which the control image lacks."""
    assert {"cmaes", "optuna", "scipy"} <= required("worker")
    assert "scipy" not in required("control")
