"""Installed packages add techniques, procedures, samplers, stores, exporters and metrics by entry points."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cerebro.cli.doctor import installation
from cerebro.cli.doctor.check import Case, Verdict
from cerebro.cli.program import main
from cerebro.client.experiment_file import read
from cerebro.client.experiment_file.submission import ReadRequest, read_submission
from cerebro.client.requests.techniques import Parallelism, resolve_techniques
from cerebro.contract.records import CodeRecord, Locator
from cerebro.data.objects import fetch_uri, open_store
from cerebro.data.tables.locators import absolute, parse_locators, preview_metadata
from cerebro.errors import ExperimentFileError, LocatorError, MetricError, PluginError, SpecError
from cerebro.local.home import ClusterHome
from cerebro.metrics import accuracy, mae, measure, mse
from cerebro.usercode.encoding import decode
from dispatcher.start.locator_sources import NotCheckedError, root_of
from tests.client.test_experiment_file import GOOD
from tests.exports.logged import LogStore, expected, story

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


SAMPLER = """\
class Lowest:
    def __init__(self, steps=2):
        self.steps = steps

    def suggest(self, space, history, numbers, seed):
        return [{name: each.low for name, each in space.items()} for _ in numbers]
"""
STORE = """\
from cerebro.data.objects import Info, RemoteStore

class Memory(RemoteStore):
    objects = {"train.csv": b"id,value\\n1,2\\n", "images/1.png": b"png"}

    def info(self, name):
        return Info(len(self.objects[name]), "1") if name in self.objects else None

    def part(self, name, start, most):
        return self.objects[name][start : start + most]

    def list(self, prefix=""):
        return iter(sorted(name for name in self.objects if name.startswith(prefix)))
"""
EXPORTER = """\
import pathlib

class Sums:
    def __init__(self, projection, options):
        self.projection, self.file, self.rows = projection, pathlib.Path(options["file"]), 0

    def cursor(self, key):
        return 0

    def send(self, rows):
        self.rows += sum(map(len, rows.values()))

    def settle(self):
        self.file.write_text(f"{self.projection.record.name} {self.rows}")
"""
METRIC = """\
from cerebro import Ratio

def recall(outputs, targets):
    return Ratio(((outputs > 0.5) & (targets > 0.5)).sum(), (targets > 0.5).sum())

def wrong(outputs, targets):
    return 0.5
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


def test_an_experiment_file_names_a_sampler_of_a_package(install: Install, tmp_path: Path) -> None:
    """As an argument of a procedure; the web page refuses it, because it sends no code of packages."""
    install("lowly", "samplers", "Lowest = lowly:Lowest", SAMPLER)
    (tmp_path / "train.csv").write_text("id,value\n1,2\n")
    file = tmp_path / "experiment.yaml"
    text = GOOD.replace("TPE(startup=2)", "Lowest(steps=5)")
    file.write_text(text)
    found = read(file).fit
    assert found is not None
    assert found.with_defaults["search"].sampler.steps == 5
    with pytest.raises(
        ExperimentFileError, match="Lowest is a sampler of a package, which the web page cannot"
    ):
        read_submission(ReadRequest(text=text))


def test_a_store_of_a_package_reads_the_addresses_of_its_scheme(install: Install, tmp_path: Path) -> None:
    """Metadata and objects; a missing package is named."""
    with pytest.raises(LocatorError, match="A package with a store for memory:// must be installed"):
        open_store("memory://all")
    install("remembering", "stores", "memory = remembering:Memory", STORE)
    table = preview_metadata("train", Locator(metadata="memory://all/train.csv"), 5).table
    assert table.to_pylist() == [{"id": 1, "value": 2}]
    fetch_uri("memory://all/train.csv", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"id,value\n1,2\n"
    assert open_store("MEMORY://all").read("images/1.png") == b"png"
    absolute_uri = absolute(parse_locators({"train": "memory://all/train.csv"})).splits()["train"].metadata
    assert absolute_uri == "memory://all/train.csv"


def test_the_web_page_opens_no_store_of_a_package(install: Install) -> None:
    """It does not load the package."""
    install("remembering", "stores", "memory = remembering:Memory", "raise SystemExit")
    with pytest.raises(NotCheckedError, match=r"This page can check paths and s3:// only"):
        root_of("memory://all", None)


def test_results_are_exported_by_a_package(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exporter gets the options of the command."""
    install("summing", "exporters", "sums = summing:Sums", EXPORTER)
    log = LogStore(story().log)
    monkeypatch.setattr("cerebro.cli.experiments.export.cluster_client", lambda home: log)
    assert main(["export", "package", "sums", "one", "--option", f"file={tmp_path / 'sums'}"]) == 0
    name, rows = (tmp_path / "sums").read_text().split()
    assert (name, int(rows)) == ("one", sum(map(len, expected(log.log).values())))
    assert main(["export", "package", "sum", "one"]) == 1
    assert "no installed package exports to 'sum' (installed: sums)" in capsys.readouterr().err
    for wrong in ("folder", "=x"):
        with pytest.raises(SystemExit):
            main(["export", "package", "sums", "one", "--option", wrong])
        assert f"must be KEY=VALUE, such as folder=out, not {wrong!r}" in capsys.readouterr().err


def test_a_metric_of_a_package_is_measured_by_its_name(install: Install) -> None:
    """Beside built-in ones; its result must be a ratio."""
    import torch

    install("recalling", "metrics", "recall = recalling:recall\nwrong = recalling:wrong", METRIC)
    outputs, targets = torch.tensor([0.9, 0.2, 0.7]), torch.tensor([1.0, 1.0, 0.0])
    found = measure(["recall", "mae"], outputs, targets)
    assert {name: round(each.value, 3) for name, each in found.items()} == {"recall": 0.5, "mae": 0.533}
    with pytest.raises(MetricError, match=r"the metric 'wrong' returned 0.5: expected a cerebro.Ratio"):
        measure(["wrong"], outputs, targets)
    with pytest.raises(MetricError, match=r"no metric 'recal': use accuracy, mae, mse, recall, wrong"):
        measure(["recal"], outputs, targets)


def test_targets_of_another_shape_are_refused() -> None:
    """A column of targets would be compared with each row."""
    import torch

    outputs = torch.tensor([[0.1, 0.9], [0.8, 0.2]])
    assert accuracy(outputs, torch.tensor([1, 1])).value == 0.5
    with pytest.raises(MetricError, match=r"outputs have the shape \(2,\), targets \(2, 1\): reshape"):
        accuracy(outputs, torch.tensor([[1], [1]]))
    for metric in (mae, mse):
        with pytest.raises(MetricError, match=r"outputs have the shape \(2, 2\), targets \(2, 1\): reshape"):
            metric(outputs, torch.tensor([[1], [1]]))


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
