"""The wheel alone: its files, and documented commands in an environment without the checkout."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cerebro.local import cluster
from cerebro.local.home import ClusterHome, find_running
from cerebro.local.supervision import processes
from cerebro.runtime.shipped_files import SOURCES
from scripts.release import build_wheel
from tests.deploy import documented_commands, tools
from tests.waiting import HANG_S

pytestmark = [pytest.mark.slow, pytest.mark.processes]

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cerebro", "controller", "dispatcher", "etl_worker", "kvs_api", "model_hopper", "trial_runner")


def _tracked_files(*folders: str) -> list[str]:
    """List files that git tracks or would add, relative to the checkout."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


@dataclass(frozen=True, kw_only=True)
class Installation:
    """An environment with the wheel, and an empty working directory and home."""

    environment: Path
    work: Path
    home: ClusterHome

    def run(self, *command: str) -> str:
        """Run a command of the environment in the working directory; return its output."""
        done = self.finish(*command)
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def finish(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment in the working directory."""
        variables = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("CEREBRO_", "PYTHON", "VIRTUAL_ENV"))
        }
        program, *arguments = command
        return subprocess.run(
            [str(self.environment / "bin" / program), *arguments],
            cwd=self.work,
            env=variables | {"HOME": str(self.home.path.parent), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=4 * HANG_S,
            check=False,
        )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the checkout, through the source distribution."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in _tracked_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes((ROOT / name).read_bytes())
    return build_wheel(source, target, {})


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Install the wheel without dependencies; the packages of this environment supply them."""
    folder = tmp_path_factory.mktemp("installation")
    environment, work = folder / "venv", folder / "work"
    work.mkdir()
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    # Python does not follow the .pth files of these folders; one leads to the checkout.
    installed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "others.pth").write_text("".join(f"{path}\n" for path in installed))
    python = str(environment / "bin" / "python")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(command, check=True)
    home = ClusterHome(folder / ".cerebro")
    yield Installation(environment=environment, work=work, home=home)
    cluster.stop(home.path)
    assert processes.marked(home.path) == ()


@pytest.fixture(scope="module")
def demo(installation: Installation) -> str:
    """Run the demo, which leaves a cluster."""
    return installation.run("cerebro", "demo", "--epochs", "1", "--results", "found")


def test_the_wheel_has_all_files(wheel: Path) -> None:
    """All files of the packages, `py.typed`, and the examples, notebooks, chart and cluster files."""
    expected = set(_tracked_files(*PACKAGES))
    for name, source in SOURCES.items():
        expected |= {f"cerebro/shipped/{name}{file.removeprefix(source)}" for file in _tracked_files(source)}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert "cerebro/py.typed" in found
    assert found == {name for name in expected if not name.endswith("README.md")}


def test_the_wheel_is_for_all_machines(wheel: Path) -> None:
    """It contains no compiled code."""
    assert wheel.name.endswith("-py3-none-any.whl")


def test_the_demo_prints_a_leaderboard_and_addresses(installation: Installation, demo: str) -> None:
    """From nothing, in an empty folder, without the checkout."""
    where = installation.run("python", "-c", "import cerebro; print(cerebro.__file__)")
    assert where.startswith(str(installation.environment))
    assert re.search(r"^1 +m0\d +finished", demo, re.MULTILINE)
    info = find_running(installation.home)
    assert info is not None
    assert info.dispatcher in demo
    assert f"end it with: {installation.environment}/bin/cerebro down" in demo
    assert (installation.work / "found" / "report.html").stat().st_size > 0


@pytest.mark.usefixtures("demo")
@pytest.mark.parametrize("group", documented_commands.CALLS)
def test_documented_commands_work(installation: Installation, group: str) -> None:
    """Each command of docs/commands.md that one machine can run, on the demo's cluster."""
    examples, clusters, chart = (
        installation.run("cerebro", "files", name).strip() for name in ("examples", "clusters", "chart")
    )
    data = installation.home.path / "examples/digits"
    (installation.work / "file.yaml").write_text(documented_commands.FILE.replace("DATA", str(data)))
    shutil.copy(f"{examples}/digits.py", installation.work)
    wrong = []
    for _, calls in documented_commands.CALLS[group]:
        for call, expected in calls:
            command = call.replace("CLUSTERS", clusters).split()
            done = installation.finish("cerebro", *command)
            while command[0] == "stacks" and "try again" in done.stderr:  # between two sub-epochs
                done = installation.finish("cerebro", *command)
            output = done.stdout if done.returncode == 0 else done.stderr
            is_answer = done.returncode == 0 or re.match(r"cerebro: [^\n]+\n\Z", output)
            if not is_answer or expected.replace("CHART", chart) not in output:
                wrong.append(f"{call} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.usefixtures("demo")
def test_shipped_examples_run(installation: Installation) -> None:
    """`cerebro files` prints their folder."""
    folder = Path(installation.run("cerebro", "files", "examples").strip())
    assert folder.is_relative_to(installation.environment)
    assert "done in" in installation.run("python", str(folder / "criteo.py"), "--small")


@pytest.mark.usefixtures("demo")
def test_jupyterlab_opens_the_shipped_notebooks(installation: Installation) -> None:
    """`cerebro up --notebook` adds JupyterLab and copies the notebooks."""
    if importlib.util.find_spec("jupyterlab") is None:
        pytest.skip("JupyterLab is not installed: make notebook")
    assert "JupyterLab   http" in installation.run("cerebro", "up", "--notebook")
    copied = {path.name for path in (installation.home.path / "notebooks").glob("*.ipynb")}
    assert copied == {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}


def test_helm_accepts_the_shipped_chart(installation: Installation) -> None:
    """`helm install cerebro "$(cerebro files chart)"` needs no checkout."""
    chart = installation.run("cerebro", "files", "chart").strip()
    done = subprocess.run(
        [str(tools.helm()), "lint", "--strict", chart], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_types_reach_users(installation: Installation) -> None:
    """mypy reads `py.typed`, so a wrong argument is reported."""
    script = installation.work / "typed.py"
    script.write_text("from cerebro import Experiment\nExperiment(name=1, locators={})\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", str(installation.environment / "bin/python"), str(script),
         "--cache-dir", str(installation.work / "cache"), "--output", "json", "--config-file", os.devnull],
        cwd=installation.work, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [each["code"] for each in found if each["file"] == script.name] == ["arg-type"], done.stdout
