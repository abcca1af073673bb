"""`cerebro files` and `cerebro demo`, and errors about packages that are not installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import cerebro
from cerebro import cli
from cerebro.cli.administration import local
from cerebro.errors import ClusterError, MissingPackageError
from cerebro.local import requirements
from cerebro.runtime.shipped_files import SOURCES

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", SOURCES)
def test_files_prints_a_folder(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In a checkout, the folder of the checkout."""
    assert cli.main(["files", name]) == 0
    assert capsys.readouterr().out == f"{ROOT / SOURCES[name]}\n"


def test_the_demo_names_missing_packages_before_it_starts_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the command that installs them."""
    monkeypatch.setattr(requirements, "PACKAGES", ("json", "no_such_package"))
    monkeypatch.setattr(requirements, "SERVICES", ())
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", "--home", str(tmp_path / "home")]) == 1
    said = capsys.readouterr().err
    assert "packages that are not installed: no_such_package." in said
    assert f"{sys.executable} -m pip install 'cerebro-platform[local]'" in said
    assert list(tmp_path.iterdir()) == []


def test_without_torch_the_error_names_the_cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip would download CUDA on a machine that cannot use it."""
    monkeypatch.setattr(requirements, "missing", lambda _: ["torch"])
    with pytest.raises(ClusterError, match="first install a CPU build of torch"):
        requirements.require()


def test_the_demo_names_a_folder_that_it_cannot_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it starts a cluster."""
    (tmp_path / "file").touch()
    home = tmp_path / "home"
    assert cli.main(["demo", "--home", str(home), "--results", str(tmp_path / "file" / "results")]) == 1
    assert "--results FOLDER" in capsys.readouterr().err
    assert not home.exists()


def test_a_command_names_the_package_that_it_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line with the pip command instead of a traceback."""

    def fail(_: object) -> int:
        importlib.import_module("no_such_package")
        return 0

    monkeypatch.setattr(local, "_down", fail)
    monkeypatch.setattr("cerebro.cli.program.__file__", str(ROOT / "tests/cli/program.py"))
    assert cli.main(["down"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("cerebro: the package no_such_package is not installed")
    assert "pip install 'cerebro-platform[local]'" in said


def test_a_missing_package_of_user_code_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cerebro's extras would not install it."""

    def fail(_: object) -> int:
        importlib.import_module("no_such_package")
        return 0

    monkeypatch.setattr(local, "_down", fail)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["down"])


def test_importing_a_name_without_its_packages_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """`from cerebro import Experiment` after a plain `pip install cerebro-platform`."""
    monkeypatch.setitem(cerebro._MODULES, "Experiment", "no_such_package")
    with pytest.raises(MissingPackageError, match=r"no_such_package.*cerebro-platform\[client\]"):
        cerebro.__getattr__("Experiment")
