"""An experiment file does what a notebook does; errors name their line before anything starts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from cerebro.client.experiment_file import read
from cerebro.client.experiment_file.study import Study
from cerebro.client.search import choice, loguniform, randint
from cerebro.contract.search import ASHA, TPE, Above, Plateau
from cerebro.errors import ExperimentFileError
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
  test: {metadata: train.csv}
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
    """Create a folder with code and a table."""
    (tmp_path / "rows.py").write_text(CODE)
    (tmp_path / "train.csv").write_text("id,value\n1,2\n")
    return tmp_path


def opened(folder: Path, text: str) -> Study:
    """Open the study of a file."""
    path = folder / "e.yaml"
    path.write_text(text)
    return Study.open(path)


def refusal(folder: Path, old: str, new: str) -> str:
    """Return the error for the valid file with one change."""
    assert old in GOOD
    with pytest.raises(ExperimentFileError) as refused:
        opened(folder, GOOD.replace(old, new))
    return str(refused.value).replace(str(folder), "")


def test_expressions_mean_the_same_as_in_a_notebook(folder: Path) -> None:
    """Calls are evaluated, texts and numbers keep their type."""
    study = opened(folder, GOOD)
    fit = study.file.fit
    assert fit is not None
    assert fit.space == {
        "lr": loguniform(1e-4, 1e-1), "width": choice([8, 16]), "act": "relu(x)", "decay": 1e-3, "batch_size": 4,
    }  # fmt: skip
    assert fit.explicit["search"] == ASHA(eta=3, sampler=TPE(startup=2))
    assert fit.explicit["stop"] == [Plateau(epochs=2), Above("loss", 20)]
    single, fsdp = fit.explicit["techniques"]
    assert (single, type(fsdp), vars(fsdp)) == ("single", Fsdp, vars(Fsdp(reshard=False)))
    assert (study.etl.size, type(study.training).__name__) == (3, "Training")  # type: ignore[attr-defined]
    assert study.file.test is not None
    assert study.file.test.explicit == {}
    assert study.file.predict is not None
    assert study.file.predict.explicit == {"models": ["m00"], "split": "train"}


def test_conditions_and_steps_are_written_as_in_python(folder: Path) -> None:
    """A method may follow a call of a distribution; nothing else is called."""
    line = """{n: "randint(2, 12, step=2)", w: "randint(8, 64, log=True)", e: "choice('vit', 'cnn')",
          p: "choice(4, 8).when(e='vit', n=[2, 4])", batch_size: 4}"""
    old = next(each for each in GOOD.splitlines() if "space:" in each)
    study = opened(folder, GOOD.replace(old, f"  space: {line}"))
    assert study.file.fit is not None
    assert study.file.fit.space == {
        "n": randint(2, 12, step=2),
        "w": randint(8, 64, log=True),
        "e": choice("vit", "cnn"),
        "p": choice(4, 8).when(e="vit", n=[2, 4]),
        "batch_size": 4,
    }


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ('"choice(8).when(act=cnn)"', "9: fit.space: cnn: expected a number, a text in quotes"),
        ('"choice(8).when(at=3)"', "fit: the condition when(at=...) of 'width' refers to 'at', which"),
        ('"choice(8).when(decay=1)"', "refers to a later hyperparameter: move 'decay' before 'width'"),
        ('"choice(8).data.when(lr=1)"', "fit.space: choice(8).data.when(lr=1): "),
        ('"choice(8).__class__()"', "fit.space: choice(8).__class__(): "),
        ('"choice(8).wen(lr=1)"', "fit.space: choice(8).wen(lr=1): did you mean .when?"),
        (
            '"randint(2, 12, step=3)"',
            "fit.space: randint(2, 12, step=3): randint(2, 12, step=3): the step",
        ),
    ],
)
def test_wrong_conditions_are_reported_with_their_line(folder: Path, new: str, message: str) -> None:
    """Before anything starts."""
    assert message in refusal(folder, '"choice([8, 16])"', new)


def test_paths_are_in_the_files_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent of the current folder."""
    monkeypatch.chdir("/")
    study = opened(folder, GOOD)
    assert study.locators.train is not None
    assert study.locators.train.metadata == str(folder / "train.csv")
    assert study.output == folder / "results" / "rows"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: rows", "name: Rows!", r"e.yaml:1: name: string should match .*, not 'Rows!'"),
        ("name: rows\n", "", r"e.yaml:1: name: is missing"),
        ("epochs: 9", "epoch: 9", r"e.yaml:10: fit.epoch: no such field; did you mean epochs\?"),
        ("test: true", "test: {splits: test}", r"e.yaml:17: test.splits: no such field; did you mean split\?"),
        ("search: ASHA", "search: Asha", r"e.yaml:12: fit.search: Asha\(.*\): did you mean ASHA\?"),
        ("eta=3", "eta=1", r"e.yaml:12: fit.search: ASHA\(eta=1.*\): ASHA\(eta=1\): input should be greater than"),
        ("ASHA(eta=3, sampler=TPE(startup=2))", "ASHA", r"e.yaml:12: fit.search: 'ASHA': expected a call such as ASHA"),
        ("eta=3", "rungs=3", r"e.yaml:12: .*ASHA\(rungs=3\): no such option; ASHA has active, brackets, eta, "),
        ("startup=2", "startup=open('x')", r"e.yaml:12: fit.search: open\('x'\): there are ASHA, CMA"),
        ("eta=3", "eta=", r"e.yaml:12: fit.search: ASHA\(eta=, .*(invalid syntax|expected argument value)"),
        ("startup=2", "**{}", r"e.yaml:12: .*give the arguments one by one"),
        ("loguniform(1e-4", "loguniform(lr", r"e.yaml:9: fit.space: lr: expected a number"),
        ("loguniform(1e-4", "loguniform(-1", r"e.yaml:9: .*the lower end must be positive"),
        ("rows:Rows(size=3)", "rows.Rows", r"e.yaml:6: etl.spec: 'rows.Rows': expected module:Class"),
        ("(size=3)", "(size=x)", r"e.yaml:6: etl.spec: x: expected a number"),
        ("train: {metadata: train.csv}", "train: 3", r"e.yaml:2: locators: locators are wrong: train: Input"),
        (
            "train: {metadata: train.csv}",
            "train: {metdata: train.csv}",
            r"e.yaml:2: .* wrong: unknown key 'metdata' in the locator of 'train': did you mean 'metadata'\? Expected",
        ),
        (
            "train: {metadata: train.csv}",
            "trial: {metadata: train.csv}",
            r"e.yaml:2: .* unknown key 'trial' in the locators: did you mean 'train'\?",
        ),
        ("name: rows", "name: rows\nname: more", r"e.yaml:2: name: given twice"),
        (GOOD[GOOD.index("fit:") : GOOD.index("test: true")], "", r"e.yaml:7: test: needs a trained model: add `fit`"),
        ("rows:Training", "nowhere:Training", r"e.yaml:8: fit.spec: nowhere:Training: module 'nowhere' is neither in"),
        ("rows:Training", "rows:Trainin", r"e.yaml:8: fit.spec: rows:Trainin cannot (.*\n)*.*no attribute 'Trainin'"),
        ("Rows(size=3)", "Rows(sizes=3)", r"e.yaml:6: etl.spec: rows:Rows\(sizes=3\): .*unexpected keyword"),
        ("epochs: 9", "epochs: nine", r"e.yaml:10: fit.epochs: input should be a valid integer"),
        ("epochs: 9", "epochs: true", r"e.yaml:10: fit.epochs: input should be a valid integer"),
        ("epochs: 9", "hang_timeout_s: soon", r"e.yaml:10: fit.hang_timeout_s"),
        ("epochs: 9", "priority: urgent", r"e.yaml:10: fit.priority: no priority 'urgent': choose one of"),
        ("epochs: 9", "gang: many", r"e.yaml:10: fit.gang: input should be a valid integer"),
        ("[single, Fsdp(reshard=False)]", "[ddpp]", r"e.yaml:7: fit: .*'ddpp'"),
        ("[single, Fsdp(reshard=False)]", "[Fsdp]", r"e.yaml:7: fit: .*'Fsdp'"),
        ("test: true", "test: {fit: fit-1}", r"e.yaml:17: test.fit: no such field"),
        ("test: true", "test: {split: valid}", r"e.yaml:17: test: the split 'valid' has no locators"),
        ("test: true", "test: {split: tests}", r"e.yaml:17: test.split: input should be 'train', 'valid'"),
        ("loguniform(1e-4, 1e-1)", "logunifrm(1e-4, 1e-1)", r"e.yaml:9: .*: did you mean loguniform\?"),
        ("loguniform(1e-4, 1e-1)", "loguniform(1e-4", r"e.yaml:9: fit.space: loguniform\(1e-4: '\(' was never closed"),
        ("ASHA(eta=3, sampler=TPE(startup=2))", "a:B(c=x)", r"e.yaml:12: fit.search: x: expected a number"),
        ("name: rows", "code: .\nname: rows", r"e.yaml:1: code: the folder .* contains this file"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_line(folder: Path, old: str, new: str, message: str) -> None:
    """One sentence in the file's terms."""
    assert re.search(message, refusal(folder, old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ASHA(eta=3, sampler=TPE(startup=2))", "rows:Rows()", r"e.yaml:7: fit: search=<rows.Rows .*: expected"),
        ("metric: loss", "metric: los", r"e.yaml:7: fit: metric 'los' is not returned by Training.train\(\)"),
        ("rows:Training", "rows:Rows", r"e.yaml:7: fit: run_fit takes an object of a subclass of .*SubEpochSpec"),
        ("batch_size: 4", "width2: 4", r"e.yaml:7: fit: .*batch_size"),
        ("rows:Training", "broken:Training", r"e.yaml:8: fit.spec: broken:Training cannot be imported\n(.*\n)*.*a: b"),
    ],
)  # fmt: skip
def test_invalid_fit_options_are_reported_before_preprocessing(
    folder: Path, old: str, new: str, message: str
) -> None:
    """Invalid fit options fail before preprocessing starts."""
    (folder / "broken.py").write_text("raise KeyError('a: b')\n")
    assert re.search(message, refusal(folder, old, new))


def test_a_dry_run_needs_no_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And reserves no name."""
    monkeypatch.setattr("cerebro.client.experiment.connect", None)
    study = opened(folder, GOOD[: GOOD.index("fit:")])
    assert "nothing was sent" in repr(study.dry_run(rows=1))


GOALS = """\
  finish_by: FINISH
  budget: Budget(worker_hours=40)
  workers: [2, 12]
test: true
"""


def test_an_invalid_deadline_is_reported_with_its_line(folder: Path) -> None:
    """The message has an example."""
    (folder / "e.yaml").write_text(GOOD.replace("test: true\n", GOALS.replace("FINISH", "tonight")))
    with pytest.raises(ExperimentFileError, match=r"fit\.finish_by.*such as PT6H"):
        read(folder / "e.yaml")


def test_the_documented_file_can_be_read(tmp_path: Path) -> None:
    """The example of the documentation is valid."""
    page: Any = (Path(__file__).parents[2] / "docs" / "experiment-file.md").read_text(encoding="utf-8")
    (tmp_path / "e.yaml").write_text(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])  # type: ignore[index]
    assert read(tmp_path / "e.yaml").name == "digits"
