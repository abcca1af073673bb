"""The built images under the chart's restrictions: read-only, user 1000, two workers with two containers each."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy import containers
from tests.deploy.containers import Platform, docker, image
from tests.waiting import HANG_S

pytestmark = [pytest.mark.slow, pytest.mark.processes]

MB = 1_000_000
CONTROL_BAR_BYTES = 650 * MB
WORKER_BAR_BYTES = 450 * MB
"""The limit beyond torch and its dependencies. Currently missed (574): the image has SciPy and Optuna for searches."""

_SIZE_OF_TORCH = """
import re
from importlib.metadata import PackageNotFoundError, distribution
def closure(name, seen):
    if name in seen:
        return seen
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return seen
    tops = {found.locate_file(file.parts[0]) for file in found.files or () if file.parts[0] != ".."}
    files = {path for top in tops for path in (top.rglob("*") if top.is_dir() else [top])}
    seen[name] = sum(path.stat().st_size for path in files if path.is_file())
    for line in found.requires or ():
        if "extra ==" not in line:
            closure(re.match(r"[A-Za-z0-9._-]+", line)[0].lower().replace("_", "-"), seen)
    return seen
print(sum(closure("torch", {}).values()))
"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A platform shared by tests that leave it intact."""
    yield from _platform(tmp_path_factory.mktemp("containers"))


@pytest.fixture
def own_platform(tmp_path: Path) -> Iterator[Platform]:
    yield from _platform(tmp_path)


def _platform(folder: Path) -> Iterator[Platform]:
    containers.require()
    platform = Platform(folder)
    try:
        platform.start()
        yield platform
    finally:
        platform.end()


@pytest.fixture(autouse=True)
def _images() -> None:
    containers.require()


def size(name: str) -> int:
    """Return the unpacked size of an image in bytes."""
    return int(docker("image", "inspect", "--format={{.Size}}", image(name)).stdout)


def in_image(name: str, *command: str) -> str:
    """Return the output of a command in a new container."""
    return docker(
        "run", "--rm", "--network=none", "--read-only", "--tmpfs=/tmp", image(name), *command
    ).stdout


def test_control_image_is_within_its_bar_and_has_no_torch() -> None:
    assert size("control") <= CONTROL_BAR_BYTES
    script = "from importlib.util import find_spec as f; print([f(n) for n in ('torch', 'pandas', 'pip')])"
    assert in_image("control", "python", "-c", script).strip() == "[None, None, None]"


def test_worker_image_is_within_its_bar() -> None:
    torch = int(in_image("worker", "python", "-c", _SIZE_OF_TORCH))
    assert torch > 100 * MB, "torch was not measured"
    assert size("worker") - torch <= WORKER_BAR_BYTES


@pytest.mark.parametrize("name", ["control", "worker", "notebook"])
def test_images_carry_no_tools_of_the_build(name: str) -> None:
    """No compiler, no package lists and no pip cache; the user is 1000 and owns nothing below /opt."""
    look = (
        "for tool in gcc cc g++ clang ld as; do command -v $tool; done; "
        "find /var/lib/apt/lists /var/cache/apt/archives /wheels /source -type f ! -name lock; find /opt -user 1000"
    )
    assert in_image(name, "sh", "-c", f"{{ {look}; }} 2>/dev/null; id -u").split() == ["1000"]
    config = json.loads(docker("image", "inspect", "--format={{json .Config}}", image(name)).stdout)
    assert config["User"] == "1000:1000"
    assert config["Labels"]["org.opencontainers.image.version"] == containers.VERSION
    assert not [line for line in config["Env"] if line.startswith("PIP_")]


@pytest.mark.parametrize("name", ["control", "worker", "notebook"])
def test_nothing_is_compiled_at_start(name: str) -> None:
    """Every module that Cerebro imports has unchecked bytecode in the image."""
    script = (
        "import importlib, pathlib\n"
        "for name in ('cerebro.runtime.kvs.client', 'cerebro.data.tables.whole_tables', 'controller.loop.loop', "
        "'urllib3', 'pyarrow.parquet'):\n"
        "    cached = importlib.import_module(name).__cached__\n"
        "    assert pathlib.Path(cached).read_bytes()[4] == 1, cached\n"  # PEP 552: hash-based, not checked
        "print('ok')"
    )
    assert in_image(name, "python", "-c", script).strip() == "ok"


def test_an_experiment_runs_from_the_notebook_image(platform: Platform) -> None:
    """The selftest in the notebook image, as `helm test` runs it: ETL and fit on both workers."""
    done = platform.notebook("python", "-P", "-m", "cerebro.cli", "selftest", "--timeout", "120")
    assert done.returncode == 0, done.stdout + done.stderr + platform.logs("worker-0")
    assert "each committed exactly once" in done.stdout
    assert list((platform.folder / "shared" / "selftest").iterdir()) == []


def test_health_commands_report_the_state(platform: Platform) -> None:
    """Docker's health command succeeds in each service's container."""
    for name in ("kvs-api", "controller", "dispatcher", "worker-0", "worker-0-etl"):
        docker("exec", platform.name(name), "python", "-m", "cerebro.runtime.web.health")


def test_requirements_of_user_code_are_installed_on_the_shards_volume(
    platform: Platform, tmp_path: Path
) -> None:
    """A worker creates an environment for requirements.txt although its own packages are read-only."""
    wheel = tmp_path / "greeting-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("greeting.py", "TEXT = 'hello'\n")
        archive.writestr(
            "greeting-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n"
        )
        archive.writestr(
            "greeting-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("greeting-1.0.dist-info/RECORD", "")
    code = platform.folder / "code" / "mine"
    code.mkdir()
    (code / wheel.name).write_bytes(wheel.read_bytes())
    (code / "requirements.txt").write_text(f"--no-index\n./{wheel.name}\n")
    script = (
        "import os, subprocess\n"
        "from cerebro.worker.agent.environment import python_for\n"
        "from cerebro.runtime.volumes import Volumes\n"
        "python = python_for('/volumes/code/mine', Volumes.from_environment(os.environ))\n"
        "print(subprocess.check_output([python, '-c', 'import greeting, torch; print(greeting.TEXT)'], text=True))"
    )
    done = docker("exec", platform.name("worker-0"), "python", "-c", script)
    assert done.stdout.strip() == "hello"


def test_jupyterlab_starts_with_the_notebooks(platform: Platform) -> None:
    """start-notebook copies the quickstart to the shared volume once; JupyterLab requires its token."""
    folder = platform.folder / "shared" / "notebooks"
    command = ["start-notebook", "/volumes/shared/notebooks"]
    environment = {"JUPYTER_TOKEN": "secret", "JUPYTER_PORT": str(platform.ports["notebook"])}
    platform.run("notebook", "notebook", command, environment, ["shared"])
    platform.await_url("notebook", "/api")
    platform.await_url("notebook", "/api/contents/quickstart.ipynb?token=secret")
    assert (folder / "quickstart.ipynb").exists()
    docker("stop", "--time=20", platform.name("notebook"))
    assert platform.state("notebook")["ExitCode"] == 0


def test_each_process_ends_on_sigterm(own_platform: Platform) -> None:
    """As PID 1 each process handles SIGTERM: exit status 0 within the grace period."""
    for name in ("worker-1", "worker-1-etl", "dispatcher", "controller", "kvs-api", "redis"):
        docker("stop", f"--time={HANG_S:.0f}", own_platform.name(name))
        assert own_platform.state(name)["ExitCode"] == 0, own_platform.logs(name)
