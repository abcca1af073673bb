"""The dispatcher derives the same requests from an experiment file as `cerebro run`, without its code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cerebro.client.experiment_file.submission import ReadRequest, Submission, read_submission
from cerebro.contract.records import CodeRecord
from cerebro.contract.runs import EtlRequest, EvaluateRequest, FitRequest
from cerebro.errors import ExperimentFileError
from cerebro.usercode.encoding import decode
from cerebro.usercode.named import Named, encoded
from tests.client.test_experiment_file import CODE, GOOD


def read(text: str = GOOD, archive: str = "") -> Submission:
    return read_submission(ReadRequest(text=text, archive=archive, author="Ada"))


def test_the_file_defines_the_runs() -> None:
    """The first run of each kind, in order, with the notebook's expressions evaluated."""
    found = read()
    assert [run.run for run in found.runs] == ["etl-1", "fit-1", "test-1", "predict-1"]
    assert (found.name, found.modules, found.code) == ("rows", ("rows",), None)
    etl, fit, test, predict = (run.request for run in found.runs)
    assert isinstance(etl, EtlRequest)
    assert isinstance(fit, FitRequest)
    assert fit.search is not None
    assert (fit.search.procedure.kind, fit.search.sampler.kind, fit.search.samples) == ("asha", "tpe", 4)
    assert [each.name for each in fit.techniques or ()] == ["single", "fsdp"]
    assert test == EvaluateRequest(kind="test", fit="fit-1", split="test")
    assert predict == EvaluateRequest(kind="predict", fit="fit-1", models=("m00",), split="train")
    assert {etl.code, fit.code} == {code.sha256 for code in found.codes}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("mode: min", "mode: least"), ":16: fit.mode: input should be"),
        (("spec: rows:Rows(size=3)", "spec: rows:Rows(size=3)\n  max_failed: 2"), ": etl: max_failed is 2"),
        (("spec: rows:Rows(size=3)", "spec: rows.Rows"), "etl.spec: 'rows.Rows': expected module:Class"),
        (("spec: rows:Rows(size=3)", "spec: rows:Rows(3)\n  priority: 99"), "etl.priority: "),
        (("spec: rows:Rows(size=3)", "spec: rows:Rows(3)\n  project: A B"), ": etl: "),
        (("epochs: 9", "epochs: 0"), ": fit: epochs is 0"),
        (("batch_size: 4", "batch_size: choice()"), "fit.space: "),
        (
            ("ASHA(eta=3, sampler=TPE(startup=2))", "own:Mine(3)"),
            "fit.search: own:Mine(3) is a search procedure",
        ),
        (("name: rows", "name: 2020-99-99"), "is no YAML"),
        (("models: [m00]", "models: &a [*a]"), "contains itself"),
    ],
)
def test_mistakes_are_reported_with_their_line(change: tuple[str, str], message: str) -> None:
    """The same messages as with the code at hand."""
    with pytest.raises(ExperimentFileError, match="experiment file:") as caught:
        read(GOOD.replace(*change))
    assert message in str(caught.value)


def code_of(text: str, archive: str = "") -> CodeRecord:
    return encoded(Named.parse(text), archive)


def test_the_worker_imports_the_named_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The archive's module wins over an installed one with its name, and archives do not share modules."""
    (tmp_path / "rows.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    assert decode(code_of("rows:Rows(size=3)").encoded).size == 3
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "rows.py").write_text(CODE.replace("size=1", "size=2"))
    monkeypatch.setenv("CEREBRO_ARCHIVE", str(tmp_path / "archive"))
    del sys.modules["rows"]
    assert decode(code_of("rows:Rows").encoded).size == 2
    one, other = code_of("rows:Rows", "a" * 64), code_of("rows:Rows", "b" * 64)
    assert one.sha256 != other.sha256
    assert one.fingerprint != other.fingerprint
    assert code_of("rows:Rows", "a" * 64) == one
    del sys.modules["rows"]
