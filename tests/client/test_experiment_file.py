"""An experiment file is what a notebook would do; a mistake in it is told with its line, before anything begins."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cerebro.client.experiment_file import read
from cerebro.client.experiment_file.running import Study
from cerebro.client.search import choice, loguniform
from cerebro.client.search.choices import ASHA, TPE, Above, Plateau
from cerebro.errors import ExperimentFileError, MetricError, SearchError, SearchSpaceError, SpecError
from cerebro.techniques import Fsdp

CODE = """\
from cerebro import ETLSpec, SubEpochSpec

class Rows(ETLSpec):
    def __init__(self, size=1):
        self.size = size
    def row_preprocessor(self, row, mode, object_dir):
        return row["value"], 0

class Training(SubEpochSpec):
    def create_models(self, hyperparams):
        return []
    def train(self, models, checkpoint, dataloader, hyperparams):
        return {"loss": 1.0}
"""
GOOD = """\
name: rows
locators:
  train: {metadata: train.csv}
etl:
  spec: rows:Rows(size=3)
fit:
  spec: rows:Training
  space: {lr: "loguniform(1e-4, 1e-1)", width: "choice([8, 16])", act: relu(x), decay: 1e-3, batch_size: 4}
  epochs: 9
  samples: 4
  search: ASHA(eta=3, sampler=TPE(startup=2))
  stop: [Plateau(epochs=2), 'Above("loss", 20)']
  techniques: [single, Fsdp(reshard=False)]
  metric: loss
  mode: min
test: true
predict: {models: [m00], split: train}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With code and a table."""
    (tmp_path / "rows.py").write_text(CODE)
    (tmp_path / "train.csv").write_text("id,value\n1,2\n")
    return tmp_path


def opened(folder: Path, text: str) -> Study:
    """The study of a file."""
    path = folder / "e.yaml"
    path.write_text(text)
    return Study.open(path)


def refusal(folder: Path, old: str, new: str, kind: type[Exception] = ExperimentFileError) -> str:
    """What is said of the good file with one change."""
    assert old in GOOD
    with pytest.raises(kind) as refused:
        opened(folder, GOOD.replace(old, new))
    return str(refused.value).replace(str(folder), "")


def test_words_mean_what_they_mean_in_a_notebook(folder: Path) -> None:
    """Calls are made, texts stay texts, numbers are numbers."""
    study = opened(folder, GOOD)
    fit = study.file.fit
    assert fit is not None
    assert fit.space == {
        "lr": loguniform(1e-4, 1e-1), "width": choice([8, 16]), "act": "relu(x)", "decay": 1e-3, "batch_size": 4,
    }  # fmt: skip
    assert fit.given["search"] == ASHA(eta=3, sampler=TPE(startup=2))
    assert fit.given["stop"] == [Plateau(epochs=2), Above("loss", 20)]
    single, fsdp = fit.given["techniques"]
    assert (single, type(fsdp), vars(fsdp)) == ("single", Fsdp, vars(Fsdp(reshard=False)))
    assert (study.etl.size, type(study.training).__name__) == (3, "Training")  # type: ignore[attr-defined]
    assert study.file.test is not None
    assert study.file.test.given == {}
    assert study.file.predict is not None
    assert study.file.predict.given == {"models": ["m00"], "split": "train"}


def test_paths_are_in_the_files_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the command is given."""
    monkeypatch.chdir("/")
    study = opened(folder, GOOD)
    assert study.locators.train is not None
    assert study.locators.train.metadata == str(folder / "train.csv")
    assert study.output == folder / "results" / "rows"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("name: rows", "name: Rows!", r"e.yaml:1: name: string should match .*, not 'Rows!'"),
        ("name: rows\n", "", r"e.yaml:1: name: is missing"),
        ("epochs: 9", "epoch: 9", r"e.yaml:9: fit.epoch: no such field; did you mean epochs\?"),
        ("test: true", "test: {splits: test}", r"e.yaml:16: test.splits: no such field; did you mean split\?"),
        ("search: ASHA", "search: Asha", r"e.yaml:11: fit.search: Asha\(.*\): did you mean ASHA\?"),
        ("eta=3", "eta=1", r"e.yaml:11: fit.search: ASHA\(eta=1.*\): ASHA\(eta=1\): expected a whole number"),
        ("ASHA(eta=3, sampler=TPE(startup=2))", "ASHA", r"e.yaml:11: fit.search: 'ASHA': expected a call such as ASHA"),
        ("eta=3", "rungs=3", r"e.yaml:11: .*unexpected keyword argument 'rungs'"),
        ("startup=2", "startup=open('x')", r"e.yaml:11: fit.search: open\('x'\): there are ASHA, CMA"),
        ("eta=3", "eta=", r"e.yaml:11: fit.search: ASHA\(eta=, .*invalid syntax"),
        ("startup=2", "**{}", r"e.yaml:11: .*give the arguments one by one"),
        ("loguniform(1e-4", "loguniform(lr", r"e.yaml:8: fit.space: lr: expected a number"),
        ("loguniform(1e-4", "loguniform(-1", r"e.yaml:8: .*the lower end must be positive"),
        ("rows:Rows(size=3)", "rows.Rows", r"e.yaml:5: etl.spec: 'rows.Rows': expected module:Class"),
        ("size=3", "size=x", r"e.yaml:5: etl.spec: x: expected a number"),
        ("{metadata: train.csv}", "{metadata: 3}", r"e.yaml:2: locators: locators are wrong: train.metadata"),
        ("name: rows", "name: rows\nname: more", r"e.yaml:2: name: given twice"),
        (GOOD[GOOD.index("fit:") : GOOD.index("test:")], "", r"e.yaml:1: the file: `test` needs models: add `fit`"),
        ("rows:Training", "nowhere:Training", r"e.yaml: nowhere:Training: there is no module 'nowhere' in"),
        ("rows:Training", "rows:Trainin", r"e.yaml: rows:Trainin: module 'rows' has no attribute 'Trainin'"),
        ("Rows(size=3)", "Rows(sizes=3)", r"rows:Rows\(sizes=3\): Rows\(sizes=3\): .*unexpected keyword"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line(folder: Path, old: str, new: str, told: str) -> None:
    """In one sentence, by the words of the file."""
    assert re.search(told, refusal(folder, old, new))


@pytest.mark.parametrize(
    ("old", "new", "kind", "told"),
    [
        ("ASHA(eta=3, sampler=TPE(startup=2))", "rows:Rows()", SearchError, r"e.yaml: search=<rows.Rows .*: expected"),
        ("metric: loss", "metric: los", MetricError, r"e.yaml: metric 'los' is not returned by Training.train\(\)"),
        ("rows:Training", "rows:Rows", SpecError, r"e.yaml: run_fit takes an object of a subclass of .*SubEpochSpec"),
        ("batch_size: 4", "width2: 4", SearchSpaceError, r"e.yaml: .*batch_size"),
    ],
)  # fmt: skip
def test_what_a_fit_would_refuse_is_told_before_preprocessing(
    folder: Path, old: str, new: str, kind: type[Exception], told: str
) -> None:
    """Nobody waits for it."""
    assert re.search(told, refusal(folder, old, new, kind))


def test_code_may_have_a_folder_of_its_own(folder: Path) -> None:
    """Modules are looked for there."""
    (folder / "src").mkdir()
    (folder / "src" / "own_rows.py").write_text(CODE)
    study = opened(
        folder, GOOD.replace("rows:", "own_rows:").replace("own_rows:Rows", "own_rows:Rows") + "code: src\n"
    )
    assert study.code == folder / "src"
    assert type(study.etl).__module__ == "own_rows"


def test_what_is_no_file_is_said(tmp_path: Path) -> None:
    """With where to find one."""
    with pytest.raises(ExperimentFileError, match=r"cannot be read: .*docs/experiment-file.md has one"):
        read(tmp_path / "none.yaml")
    (tmp_path / "list.yaml").write_text("- 1\n")
    with pytest.raises(ExperimentFileError, match="must be a mapping with name, locators, etl"):
        read(tmp_path / "list.yaml")


def test_the_documented_file_can_be_read(tmp_path: Path) -> None:
    """As it stands there."""
    page: Any = (Path(__file__).parents[2] / "docs" / "experiment-file.md").read_text(encoding="utf-8")
    (tmp_path / "e.yaml").write_text(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])  # type: ignore[index]
    assert read(tmp_path / "e.yaml").name == "digits"
