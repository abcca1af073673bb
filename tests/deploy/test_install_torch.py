"""`scripts/install_torch` with real pip and small wheels in a folder: which build of torch it installs."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.commands]

ROOT = Path(__file__).resolve().parents[2]

Run = Callable[..., tuple[str, subprocess.CompletedProcess[str]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the script; return the installed version and the process."""

    def run(
        *offered: str, requirement: str = "torch==2.13.0", has_gpu: bool = False
    ) -> tuple[str, subprocess.CompletedProcess[str]]:
        wheels, programs, environment = (tmp_path / name for name in ("wheels", "programs", "venv"))
        wheels.mkdir()
        programs.mkdir()
        venv.create(environment, symlinks=True)
        for version in offered:
            _write_wheel(wheels, version)
        program = programs / "nvidia-smi"
        program.write_text(f"#!/bin/sh\nexit {0 if has_gpu else 9}\n")
        program.chmod(0o755)
        done = subprocess.run(
            [str(ROOT / "scripts" / "install_torch"), sys.executable, requirement],
            env={
                **os.environ,
                "PATH": f"{programs}:{os.environ['PATH']}",
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(wheels),
                "PIP_PYTHON": str(environment / "bin" / "python"),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        versions = [
            path.stem.removeprefix("torch-")
            for path in environment.glob("lib/*/site-packages/torch-*.dist-info")
        ]
        return "".join(versions), done

    return run


def _write_wheel(folder: Path, version: str) -> None:
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        about = f"torch-{version}.dist-info"
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


def test_without_a_gpu_the_cpu_build_is_preferred(run: Run) -> None:
    """Even if pip alone would choose a CUDA build, whose label sorts higher."""
    version, done = run("2.13.0", "2.13.0+cpu", "2.13.0+cu130")
    assert (version, done.stderr) == ("2.13.0+cpu", "")


def test_without_a_cpu_build_the_size_is_announced(run: Run) -> None:
    """With the settings that avoid the download; then pip installs the only build."""
    version, done = run("2.13.0")
    assert version == "2.13.0", done.stderr
    assert "about 3 GB" in done.stderr
    assert "PIP_EXTRA_INDEX_URL" in done.stderr


def test_with_a_gpu_pip_chooses(run: Run) -> None:
    """It prefers the CUDA build."""
    version, done = run("2.13.0", "2.13.0+cpu", "2.13.0+cu130", has_gpu=True)
    assert (version, done.stderr) == ("2.13.0+cu130", "")


def test_a_named_build_is_installed(run: Run) -> None:
    """`make setup TORCH=torch==2.13.0+cu130` on a machine that gets its GPU later."""
    version, _ = run("2.13.0+cpu", "2.13.0+cu130", requirement="torch==2.13.0+cu130")
    assert version == "2.13.0+cu130"


def test_other_problems_of_pip_are_shown(run: Run) -> None:
    """Without a second try, which could download CUDA."""
    version, done = run("2.13.0", requirement="torch=2.13.0")
    assert (version, done.returncode) == ("", 1)
    assert "Invalid requirement" in done.stderr
    assert "GB" not in done.stderr
