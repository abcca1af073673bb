"""Rules for the repository: cost of imports, contents of images, commands in README."""

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.control_image import closure

ROOT = Path(__file__).resolve().parent.parent
CONTROL_PLANE_GROUPS = ("kvs", "control", "search", "kubernetes", "dispatcher")
HEAVY_LIBRARIES = ("boto3", "flask", "keras", "optuna", "pandas", "redis", "tensorflow", "torch")


def _requirements_of_group(group: str) -> list[Requirement]:
    """Return the direct requirements of a service's image: the base dependencies and its group's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + project["optional-dependencies"][group]
    return [Requirement(line) for line in lines]


def _make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def _readme_make_commands() -> set[str]:
    """Return the targets of `make` commands in README's fenced blocks."""
    readme = ROOT / "README.md"
    assert readme.exists(), (
        "README.md is missing; it has to show `make run` and `make test` in a fenced block"
    )
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", readme.read_text(), flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"(?:^|&&|;)[ \t$]*make +([a-z][a-z-]*)", "\n".join(blocks), flags=re.MULTILINE))


@pytest.mark.commands
def test_importing_cerebro_loads_no_heavy_library() -> None:
    """A notebook or a service that imports cerebro must not load libraries that it may not use."""
    script = f"import sys, cerebro; print([name for name in {HEAVY_LIBRARIES!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["cerebro", "cerebro.client.results"])
def test_every_lazily_imported_name_exists(name: str) -> None:
    """Lazy imports have no import statement, so a moved module would go unnoticed."""
    package = importlib.import_module(name)
    for each in package.__all__:
        assert getattr(package, each) is not None


@pytest.mark.parametrize("group", CONTROL_PLANE_GROUPS)
def test_the_control_plane_installs_no_torch(group: str) -> None:
    """Neither directly nor indirectly."""
    found = closure(_requirements_of_group(group))
    assert "pydantic-core" in found, "the walk over installed metadata found no indirect dependency"
    assert not {name for name in found if name.startswith(("torch", "nvidia-", "triton"))}


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_images_contain_no_other_tracker(tracker: str) -> None:
    """Neither in a group of an image, nor indirectly in the control plane."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    build = (ROOT / "deploy/images/Dockerfile").read_text()
    installed = {group for line in re.findall(r"packages\.py ([\w ]+) >", build) for group in line.split()}
    assert {"kvs", "worker", "client"} <= installed
    groups = sorted({*installed, "local"} & {*project["optional-dependencies"]})
    names = {requirement.name for group in groups for requirement in _requirements_of_group(group)}
    for group in CONTROL_PLANE_GROUPS:
        names |= closure(_requirements_of_group(group))
    assert not {name for name in names if name.startswith(tracker)}


def test_worker_pins_torch_exactly_and_as_constrained() -> None:
    """pyproject.toml, constraints.txt and the Makefile have one exact version of torch."""
    torch = next(r for r in _requirements_of_group("worker") if r.name == "torch")
    pin = f"torch{torch.specifier}"
    assert re.fullmatch(r"torch==[0-9.]+", pin)
    assert pin in (ROOT / "constraints.txt").read_text().splitlines()
    assert re.search(rf"^TORCH := {re.escape(pin)}$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


def test_constraints_pin_every_direct_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = sum(project["optional-dependencies"].values(), project["dependencies"])
    named = {canonicalize_name(Requirement(line).name) for line in lines} - {project["name"]}
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {
        canonicalize_name(line.split("==")[0]) for line in constraints if "==" in line and line[0] != "#"
    }
    assert named - pinned == set()


def test_readme_shows_run_and_test_and_only_existing_targets() -> None:
    """README's fenced commands include `make run` and `make test`; each is a target of the Makefile."""
    commands = _readme_make_commands()
    assert {"run", "test"} <= commands
    assert commands <= _make_targets()


@pytest.mark.commands
def test_a_folder_named_cerebro_does_not_hide_the_package(tmp_path: Path) -> None:
    """A user's script may be next to the clone, which has that name."""
    (tmp_path / "cerebro").mkdir()
    code = "from cerebro import Experiment"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_no_test_sets_the_clock_of_its_process() -> None:
    """Event loops of servers that fixtures keep would stall. `tests/clocks.py` sets a module's clock."""
    sets = re.compile(r"""setattr\((time, |["'][\w.]*\btime\.)["']?monotonic""")
    tests = [path for path in (ROOT / "tests").rglob("*.py") if sets.search(path.read_text())]
    assert tests == []


def test_the_workflow_runs_the_same_script_as_contributors() -> None:
    """On each push and pull request, in the Debian that `.ci/run` is written for."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert workflow[True].keys() == {"push", "pull_request"}  # YAML reads `on` as a boolean
    (job,) = workflow["jobs"].values()
    assert job["container"] == "debian:12"
    assert job["steps"][-1]["run"] == "bash .ci/run"


def test_code_owners_name_existing_paths() -> None:
    """A renamed folder would lose its reviewers silently."""
    lines = (ROOT / ".github/CODEOWNERS").read_text().splitlines()
    paths = [line.split()[0] for line in lines if line.startswith("/")]
    assert paths
    assert [path for path in paths if not (ROOT / path.lstrip("/")).exists()] == []
