"""Installed packages add techniques and search procedures by entry points."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cerebro.cli.doctor import installation
from cerebro.cli.doctor.check import Case, Verdict
from cerebro.client.experiment_file import read
from cerebro.client.requests.techniques import Parallelism, resolve_techniques
from cerebro.contract.records import CodeRecord
from cerebro.errors import ExperimentFileError, PluginError, SpecError
from cerebro.local.home import ClusterHome
from cerebro.usercode.encoding import decode
from tests.client.test_experiment_file import GOOD

Install = Callable[..., None]

TECHNIQUE = """\
from cerebro.techniques import Single

class Quiet(Single):
    name = "quiet"
"""
PROCEDURE = """\
from cerebro.search import Add, Procedure, Suggest, Suggested

class Plain(Procedure):
    def __init__(self, count=4):
        self.count = count

    def begin(self, facts):
        self.facts = facts
        return [Suggest(count=self.count)]

    def on_report(self, report):
        if isinstance(report, Suggested):
            return [Add(hyperparams=report.hyperparams, epochs=self.facts.epochs)]
        return []
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a package with one module and one entry point."""

    def write(package: str, group: str, entry: str, code: str) -> None:
        folder = tmp_path / package
        metadata = folder / f"{package}-1.2.dist-info"
        metadata.mkdir(parents=True)
        (folder / f"{package}.py").write_text(code)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        (metadata / "entry_points.txt").write_text(f"[cerebro.{group}]\n{entry}\n")
        monkeypatch.syspath_prepend(str(folder))

    return write


def sent(*techniques: str) -> list[CodeRecord]:
    """Resolve techniques by name; return the code that is sent to workers."""
    codes: list[CodeRecord] = []

    def put_code(code: CodeRecord) -> CodeRecord:
        codes.append(code)
        return code

    resolve_techniques(Parallelism(techniques=techniques), workers={}, put_code=put_code)
    return codes


def doctor(tmp_path: Path) -> tuple[Verdict, str]:
    case = Case(home=ClusterHome(tmp_path / "home"), environment={}, workers=1, info=None)
    finding = installation.plugins_of_packages(case)
    return finding.verdict, finding.message


def test_a_technique_of_a_package_is_used_by_its_name(install: Install, tmp_path: Path) -> None:
    """Workers get its class by import, as for an own technique."""
    install("quietly", "techniques", "quiet = quietly:Quiet", TECHNIQUE)
    (code,) = sent("single", "quiet")
    assert type(decode(code.encoded)).__module__ == "quietly"
    assert doctor(tmp_path) == (Verdict.OK, "quiet of quietly 1.2")


def test_an_experiment_file_calls_a_procedure_of_a_package(install: Install, tmp_path: Path) -> None:
    """With arguments, as a built-in one."""
    install("plainly", "procedures", "Plain = plainly:Plain", PROCEDURE)
    (tmp_path / "train.csv").write_text("id,value\n1,2\n")
    file = tmp_path / "experiment.yaml"
    file.write_text(GOOD.replace("ASHA(eta=3, sampler=TPE(startup=2))", "Plain(count=7)"))
    found = read(file).fit
    assert found is not None
    assert found.with_defaults["search"].count == 7
    file.write_text(GOOD.replace("ASHA(eta=3, sampler=TPE(startup=2))", "Plane(count=7)"))
    with pytest.raises(ExperimentFileError, match="Plane"):
        read(file)


def test_an_unknown_name_lists_the_names_of_packages(install: Install) -> None:
    """They follow the built-in ones."""
    install("quietly", "techniques", "quiet = quietly:Quiet", TECHNIQUE)
    with pytest.raises(SpecError, match=r"there is no technique 'quite'.*Installed packages add quiet"):
        sent("quite")


def test_a_broken_package_is_named_only_if_it_is_used(install: Install, tmp_path: Path) -> None:
    """The error has its cause; other names work."""
    install("broken", "techniques", "quiet = broken:Quiet", "import a_missing_module\n")
    assert sent("single") == []
    expected = "'quiet' of the package broken 1.2 cannot be loaded: .*No module named 'a_missing_module'"
    with pytest.raises(PluginError, match=expected):
        sent("quiet")
    verdict, message = doctor(tmp_path)
    assert verdict is Verdict.WARN
    assert "a_missing_module" in message


def test_a_name_of_two_packages_is_refused(install: Install, tmp_path: Path) -> None:
    """The error names both."""
    install("quietly", "techniques", "quiet = quietly:Quiet", TECHNIQUE)
    install("silently", "techniques", "quiet = silently:Quiet", TECHNIQUE)
    expected = "quietly 1.2 and silently 1.2 both have cerebro.techniques named 'quiet'"
    with pytest.raises(PluginError, match=expected):
        sent("quiet")
    assert expected in doctor(tmp_path)[1]


def test_a_built_in_name_has_priority(install: Install, tmp_path: Path) -> None:
    """The doctor reports the package."""
    install("quietly", "techniques", "single = quietly:Quiet", TECHNIQUE)
    assert sent("single") == []
    assert "named 'single', which is built in" in doctor(tmp_path)[1]


@pytest.mark.parametrize("entry", ["other = quietly:Quiet", "quiet = quietly:Single.name"])
def test_an_entry_that_is_no_technique_of_its_name_is_refused(install: Install, entry: str) -> None:
    """The error says what is expected."""
    install("quietly", "techniques", entry, TECHNIQUE)
    with pytest.raises(
        PluginError, match=r"expected a subclass of cerebro\.techniques\.Technique whose name is"
    ):
        sent(entry.partition(" ")[0])
