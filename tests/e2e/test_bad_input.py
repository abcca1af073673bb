"""Bad user input gives an error that names the object, and the experiment stays usable."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cerebro import Experiment
from cerebro.errors import (
    ConflictError,
    DataError,
    LocatorError,
    MetricError,
    RunFailedError,
    SearchSpaceError,
    SpecError,
    UnauthorizedError,
)
from tests.e2e.harness import Lab, write_table
from tests.e2e.specs import TinyETL, TinyTraining

pytestmark = pytest.mark.slow

TABLES = {
    "no id": ("number,x,label\n1,0.5,0\n", r"has no column 'id' \(its columns: number, x, label\)"),
    "an id twice": ("id,x,label\n1,0.5,0\n1,0.6,0\n", r"has the id '1' more than once"),
    "an id missing": ("id,x,label\n1,0.5,0\n,0.6,0\n", r"has no 'id' in row 2"),
    "no rows": ("id,x,label\n", r"has no rows"),
    "nothing": ("", r"cannot be read as CSV"),
    "one row": ("id,x,label\n1,0.5,0\n", r"'train' has 1 rows .* for 2 workers"),
}


def test_unusable_metadata_is_named(lab: Lab, tmp_path: Path) -> None:
    """Each message names the file or the split; after the fix the same experiment preprocesses it."""
    table = tmp_path / "train.csv"
    with pytest.raises(LocatorError, match=rf"metadata of 'train': {table} does not exist"):
        lab.experiment({"train": str(table)})
    table.touch()
    experiment = lab.experiment({"train": str(table)})
    table.unlink()
    with pytest.raises(RunFailedError, match=rf"{table}"):
        experiment.run_etl(TinyETL(), progress=False)
    for content, message in TABLES.values():
        table.write_text(content)
        with pytest.raises(RunFailedError, match=message):
            experiment.run_etl(TinyETL(), progress=False)
    table.unlink()
    table.mkdir()
    with pytest.raises(RunFailedError, match=rf"{table}"):
        experiment.run_etl(TinyETL(), progress=False)
    table.rmdir()
    write_table(table, 8)
    assert experiment.run_etl(TinyETL(), progress=False).kept_rows == {"train": 8}


def test_unusable_rows_are_named(lab: Lab) -> None:
    """For a row of another shape, the error names the field and a fix; for an exception, it has the traceback."""
    experiment = lab.experiment(lab.tables(train=8))
    with pytest.raises(
        RunFailedError, match=r"(?s)field 'input' of row 6 has .*\(7,\).*\(6,\).*Pad \(np\.pad\)"
    ):
        experiment.run_etl(TinyETL(ragged=6), progress=False)
    with pytest.raises(RunFailedError, match=r"(?s)ValueError: cannot read row 5"):
        experiment.run_etl(TinyETL(broken=5), progress=False)
    assert list(experiment.failed_rows()["id"]) == [5]
    result = experiment.run_etl(TinyETL(broken=5), max_failed=0.5, progress=False)
    assert list(result.failed_rows()["split"]) == ["train"]
    assert (result.kept_rows, result.failed) == ({"train": 7}, {"train": 1})


def test_malformed_locators_are_refused(lab: Lab) -> None:
    with pytest.raises(LocatorError, match=r"locators name no split"):
        lab.experiment({"misc": []})
    with pytest.raises(LocatorError, match=r"trian"):
        lab.experiment({"trian": "train.csv"})


def test_an_existing_name_with_other_locators_is_refused(lab: Lab, prepared: str) -> None:
    """With the same locators, the call attaches to the experiment."""
    locators = lab.attach(prepared).locators
    message = rf"'{prepared}' exists already with other dataset locators: .*`cerebro delete {prepared}`"
    with pytest.raises(ConflictError, match=message):
        Experiment(prepared, locators=lab.tables(train=3))
    assert Experiment(prepared, locators=locators).locators == locators


def test_a_wrong_token_is_refused(lab: Lab, prepared: str) -> None:
    """Immediately, with the location of the right token."""
    with pytest.raises(UnauthorizedError, match=r"wrong or missing bearer token: .*run/token"):
        Experiment.attach(prepared, server=lab.info().kvs, token="guessed")


class Holder(TinyTraining):
    """A spec that contains an object that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Computing(TinyTraining):
    """A spec whose metric names are unknown before it returns them."""

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        return dict(super().test(models, checkpoint, dataloader, hyperparams))


GOOD: dict[str, Any] = {"lr": [0.01], "batch_size": [5]}
ARGUMENTS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "an empty space": ({"space": {}}, SearchSpaceError, "the search space is empty"),
    "an empty axis": ({"space": {"lr": [], "batch_size": 5}}, SearchSpaceError, "'lr' has no values"),
    "a bad type": (
        {"space": {"lr": [{1, 2}], "batch_size": 5}},
        SearchSpaceError,
        r"'lr' has the value .*set",
    ),
    "no batch_size": ({"space": {"lr": [0.1]}}, SearchSpaceError, "lacks 'batch_size'"),
    "batch_size as text": ({"space": {"batch_size": ["5"]}}, SearchSpaceError, "batch_size is '5'"),
    "batch_size too large": (
        {"space": {"batch_size": [21]}},
        SearchSpaceError,
        "21 of model m00 .* has 20 rows",
    ),
    "no direction": ({"mode": None}, MetricError, "mode='max' if a larger value is better"),
    "no metric": ({"metric": None}, MetricError, "no metric"),
    "an unknown metric": (
        {"metric": "acuracy"},
        MetricError,
        r"'acuracy' is not returned by TinyTraining\.test\(\), which returns: accuracy, loss",
    ),
    "an unknown metric of names that are computed": (
        {"metric": "acuracy", "spec": Computing()},
        RunFailedError,
        r"'acuracy' was not returned by SubEpochSpec\.test.* returned: accuracy, loss",
    ),
    "a dict instead of an option group": (
        {"limits": {"hours": 3}},
        DataError,
        r"limits is .*, expected an object of cerebro\.Limits",
    ),
    "a class": ({"spec": TinyTraining}, SpecError, r"pass TinyTraining\(\) instead of TinyTraining"),
    "another spec": ({"spec": TinyETL()}, SpecError, "a subclass of cerebro.SubEpochSpec, not a TinyETL"),
    "what cannot be sent": ({"spec": Holder()}, SpecError, r"attribute 'lock' \(lock\) cannot be serialised"),
}


def test_invalid_arguments_of_run_fit_are_refused(lab: Lab, prepared: str) -> None:
    """The error names the argument, the expectation and the value; a valid call works afterwards."""
    experiment = lab.attach(prepared)
    for case, (changes, error, message) in ARGUMENTS.items():
        given: dict[str, Any] = {
            "spec": TinyTraining(),
            "space": GOOD,
            "metric": "accuracy",
            "mode": "max",
        } | changes
        spec, space = given.pop("spec"), given.pop("space")
        with pytest.raises(error, match=message):
            experiment.run_fit(spec, space, **given, progress=False)
        assert experiment.state().active_run() is None, case
    right = experiment.run_fit(TinyTraining(), GOOD, metric="accuracy", mode="max", progress=False)
    assert right.failures() == {}


def test_a_second_run_is_refused_while_a_run_is_open(lab: Lab, prepared: str) -> None:
    """The error names the open run, which continues."""
    experiment = lab.attach(prepared)
    fit = lab.fit(experiment, TinyTraining(gate=lab.gate.port, holds=[("a", 0)]), tags="a")
    lab.gate.knock()
    with pytest.raises(
        ConflictError,
        match=r"run_fit of experiment .* cannot begin: fit-\d+ is running.*; wait for it with watch",
    ):
        experiment.run_fit(TinyTraining(), GOOD, metric="accuracy", mode="max", progress=False)
    lab.gate.open()
    assert lab.result(fit, experiment).failures() == {}
