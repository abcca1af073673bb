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
from cerebro.runtime import shipped_files
from cerebro.runtime.shipped_files import SOURCES

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", SOURCES)
def test_files_prints_a_folder(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In a checkout, the folder of the checkout."""
    assert cli.main(["files", name]) == 0
    assert capsys.readouterr().out == f"{ROOT / SOURCES[name]}\n"


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders as in the notebook image; return the folder of its examples."""
    package, share = tmp_path / "site-packages" / "cerebro", tmp_path / "share"
    for folder in (package, share / "examples", share / "notebooks"):
        folder.mkdir(parents=True)
    (share / "examples" / "digits.py").write_text(
        "import os, sys\nprint(os.environ['CEREBRO_SERVER'], *sys.argv[1:])"
    )
    monkeypatch.setattr(shipped_files, "_PACKAGE", package)
    monkeypatch.setattr(shipped_files, "IN_IMAGE", share)
    monkeypatch.setenv("CEREBRO_SERVER", "http://cerebro-kvs-api:7070")
    monkeypatch.chdir(tmp_path)
    return share / "examples"


def test_the_notebook_image_has_examples_and_notebooks(
    image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The chart is in no image; the error says where it is."""
    assert cli.main(["files", "examples"]) == 0
    assert capsys.readouterr().out == f"{image}\n"
    assert cli.main(["files", "chart"]) == 1
    assert "this image has no chart; no image has them. On your machine" in capsys.readouterr().err


def test_the_demo_in_an_image_uses_its_cluster(
    image: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It needs no package of a local cluster."""
    started: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr("os.execve", lambda _, command, environment: started.append((command, environment)))
    monkeypatch.setattr(requirements, "PACKAGES", ("no_such_package",))
    cli.main(["demo", "--epochs", "2"])
    ((command, environment),) = started
    assert command[1:] == [
        str(image / "digits.py"),
        "--output",
        str(Path("results/digits").absolute()),
        "--epochs",
        "2",
    ]
    assert environment["CEREBRO_SERVER"] == "http://cerebro-kvs-api:7070"
    assert cli.main(["demo", "--workers", "2"]) == 1
    assert "--workers is for a local cluster" in capsys.readouterr().err
    monkeypatch.delenv("CEREBRO_SERVER")
    assert cli.main(["demo"]) == 1
    assert "an image cannot start a local cluster: set CEREBRO_SERVER" in capsys.readouterr().err


def test_an_image_without_examples_names_the_one_that_has_them(
    image: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the images of control plane and workers."""
    (image / "digits.py").unlink()
    image.rmdir()
    for command in (["demo"], ["files", "examples"]):
        assert cli.main(command) == 1
        assert "the image cerebro-notebook has them: run the command in a terminal" in capsys.readouterr().err


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
