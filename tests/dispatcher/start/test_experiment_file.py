"""The start form accepts an experiment file and does not run its code on the page."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from cerebro.contract.events import RunRequested
from cerebro.contract.priority import parse
from cerebro.contract.runs import EvaluateRequest, FitRequest
from cerebro.usercode.archive import inspect
from dispatcher.sandbox.bounded_processes import BoundedProcesses
from dispatcher.start.experiment_file import FileContent, FileReader, archive_problem
from tests.dispatcher.fakes import Bench, Browser
from tests.dispatcher.start.test_start import upload, zip_of
from tests.waiting import HANG_S

FILE = """\
name: digits
locators:
  train: {metadata: /data/train.csv, objects: /data/images, types: {zip: string}}
  test: {metadata: s3://bucket/test.parquet}
  misc: [/data/words.txt]
code: src
etl:
  spec: digits:Rows(size=8)
  max_failed: 0.1
fit:
  spec: digits:Training
  space: {lr: [0.1, 0.2], batch_size: 4}
  epochs: 2
  metric: loss
  mode: min
  priority: high
test: true
"""
CODE = zip_of(**{"digits.py": b"raise SystemExit('user code ran')"})


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the timeout, since a slow machine may take longer than the default to read a file."""
    monkeypatch.setattr("dispatcher.start.experiment_file.READ_S", HANG_S)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def browser(bench: Bench) -> Browser:
    return bench.signed_in()


def requested(bench: Bench) -> list[RunRequested]:
    return [event for event in bench.store.logs.get("digits", []) if isinstance(event, RunRequested)]


@pytest.mark.commands
def test_file_creates_the_experiment_and_starts_its_runs(bench: Bench, browser: Browser) -> None:
    """The file's name and locators override the form. Sending it again starts no second run."""
    for _ in range(2):
        answer = browser.post("/start", {"name": "typed", "author": "Ada", "file": FILE} | upload(CODE))
        assert answer.status_code == 303
        assert answer.headers["Location"] == "/experiments/digits"
    record = bench.store.records["digits"]
    assert record.archive == hashlib.sha256(CODE).hexdigest()
    assert record.locators.model_dump(exclude_none=True) == {
        "train": {"metadata": "/data/train.csv", "objects": "/data/images", "types": {"zip": "string"}},
        "test": {"metadata": "s3://bucket/test.parquet"},
        "misc": ("/data/words.txt",),
    }
    etl, fit, test = requested(bench)
    assert (etl.run, fit.run, test.run) == ("etl-1", "fit-1", "test-1")
    assert (etl.author, fit.priority) == ("Ada", parse("high"))
    assert etl.request.kind == "etl"
    assert etl.request.max_failed == 0.1
    assert isinstance(fit.request, FitRequest)
    assert [model["lr"] for model in fit.request.models] == [0.1, 0.2]
    assert test.request == EvaluateRequest(kind="test", fit="fit-1", split="test")
    assert {code.class_name for code in bench.store.codes.values()} == {"Rows", "Training"}


@pytest.mark.commands
def test_file_with_conditions_starts_the_grid(bench: Bench, browser: Browser) -> None:
    """Only models that meet a condition have the hyperparameter; a wrong one is reported with its line."""
    space = """space: {net: "choice('vit', 'cnn')", patch: "choice(4, 8).when(net='vit')", batch_size: 4}"""
    file = FILE.replace("space: {lr: [0.1, 0.2], batch_size: 4}", space)
    wrong = browser.post("/start", {"file": file.replace("net='vit'", "net='vti'")} | upload(CODE))
    assert "never met: did you mean &#39;vit&#39;?" in wrong.get_data(as_text=True)
    assert browser.post("/start", {"file": file} | upload(CODE)).status_code == 303
    _etl, fit, _test = requested(bench)
    assert isinstance(fit.request, FitRequest)
    assert fit.request.models == (
        {"net": "vit", "patch": 4, "batch_size": 4},
        {"net": "vit", "patch": 8, "batch_size": 4},
        {"net": "cnn", "batch_size": 4},
    )


@pytest.mark.commands
def test_mistakes_are_reported_with_their_line(bench: Bench, browser: Browser) -> None:
    """`cerebro run` gives the same messages, and nothing is created."""
    answer = browser.post("/start", {"file": FILE.replace("mode: min", "mode: least")} | upload(CODE))
    assert answer.status_code == 422
    assert "Line 15: fit.mode: input should be" in answer.text
    assert not bench.store.records


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "needs code: upload the folder 'src' as an archive"),
        ({"src/digits.py": b""}, "names the module digits, which is missing in the root"),
        ({"requirements.txt": b"mine"}, ""),
        ({"digits/__init__.py": b""}, ""),
        ({"digits.py": b""}, ""),
    ],
)
def test_code_named_by_the_file_must_be_uploaded_or_installed(
    files: dict[str, bytes] | None, message: str
) -> None:
    """In the uploaded archive or in an installed package."""
    file_content = FileContent.model_validate(
        {"name": "digits", "locators": {"train": {"metadata": "/a"}}, "code": "src", "modules": ["digits"]}
        | {"codes": [], "runs": []}
    )
    listing = None if files is None else inspect(zip_of(**files))
    problem = archive_problem(file_content, listing)
    assert bool(problem) == bool(message)
    assert message in problem


@pytest.mark.commands
@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            "import pandas_of_no_image",
            "exit status 1: ModuleNotFoundError: No module named 'pandas_of_no_image'",
        ),
        ("raise MemoryError", "needs too much memory"),
    ],
)
def test_a_dead_reader_is_reported_with_its_last_line(
    program: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only a `MemoryError` is reported as lack of memory."""
    (tmp_path / "dying.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    reader = FileReader()
    reader._processes = BoundedProcesses("dying", at_once=1)
    found, problem = reader.read(FILE, archive="", author="")
    assert found is None
    assert message in problem


@pytest.mark.commands
@pytest.mark.slow
def test_an_experiment_with_other_runs_is_not_changed(bench: Bench, browser: Browser) -> None:
    """Its first run differs from the file's, so no run is started."""
    assert browser.post("/start", {"file": FILE} | upload(CODE)).status_code == 303
    answer = browser.post(
        "/start", {"file": FILE.replace("max_failed: 0.1", "max_failed: 0.2")} | upload(CODE)
    )
    assert answer.status_code == 409
    assert "No run was started" in answer.text
    assert len(requested(bench)) == 3


@pytest.mark.processes
@pytest.mark.slow
def test_a_file_that_exhausts_memory_is_refused(browser: Browser) -> None:
    """A child process with a memory limit reads the file."""
    bomb = "a: &a [x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 60)}]\n" for n in range(9)
    )
    answer = browser.post("/start", {"file": bomb})
    assert answer.status_code == 422
    assert "needs more memory than is available" in answer.text
