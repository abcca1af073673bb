"""`folds`, `stratify` and `group` in requests: one clear error for bad input before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cerebro import ASHA, ETLSpec, Parallelism, Plateau, Repeat, Search, loguniform
from cerebro.client.experiment_file.schema import ExperimentFile
from cerebro.client.requests.run_requests import FitOptions, check_etl, resolve_fit
from cerebro.commands.planning import plan_fit
from cerebro.contract.records import Locators
from cerebro.contract.runs import FitRequest
from cerebro.contract.tasks.checkpoints import FittedRef
from cerebro.data.tables.locators import parse_locators
from cerebro.errors import CerebroError, DataError
from tests.dispatcher.stories import Story

GRID = {"lr": [0.1, 0.01], "batch_size": 32}


def check(space: Any, **options: Any) -> None:
    given = {"metric": "loss", "mode": "min", "epochs": 2, **options}
    resolve_fit(None, space, FitOptions(**given), has_validation_split=False)


@pytest.mark.parametrize("folds", [1, 0, -2, True, 2.5, "5"])
def test_an_impossible_number_of_folds_is_refused(folds: Any) -> None:
    """One fold is no cross-validation."""
    with pytest.raises(DataError, match=r"folds is .*, expected the number of folds .* from 2"):
        check(GRID, folds=folds)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"search": ASHA(), "samples": 3}, "a search procedure or stop rules"),
        ({"search": Search(stop=Plateau(epochs=1))}, "a search procedure or stop rules"),
        ({"repeats": Repeat(top=1)}, "repeats"),
        ({"constraints": ["loss <= 1"]}, "objectives or constraints"),
        ({"parallelism": Parallelism(gang=2)}, "gang=2"),
    ],
)
def test_options_that_do_not_combine_are_refused(options: dict[str, Any], message: str) -> None:
    """The message names them."""
    space = {"lr": loguniform(0.01, 0.1), "batch_size": 32} if "samples" in options else GRID
    with pytest.raises(CerebroError, match=f"folds=5 cannot be combined with .*{message}"):
        check(space, folds=5, **options)


def test_a_grid_and_random_configurations_pass() -> None:
    """Without a validation split, because folds replace it."""
    check(GRID, folds=2)
    check({"lr": loguniform(0.01, 0.1), "batch_size": 32}, samples=3, folds=5)


def request(folds: int) -> FitRequest:
    return FitRequest(
        code="0" * 64, models=({"batch_size": 1},), epochs=1, metric="loss", mode="min", folds=folds
    )


def test_more_folds_than_partitions_are_refused() -> None:
    """The message has both numbers and a remedy."""
    story = Story("few")
    story.workers_join()
    story.etl()
    assert plan_fit(story.state, request(2), {}).folds == ((0,), (1,))
    with pytest.raises(DataError, match=r"folds=3, but the data set has 2 training partitions.*set folds=2"):
        plan_fit(story.state, request(3), {})


def test_a_data_set_whose_etl_has_seen_all_rows_is_refused() -> None:
    """Its statistics would leak the validation rows."""
    story = Story("fitted")
    story.workers_join()
    story.etl()
    story.state.datasets["d1"].fitted = FittedRef(
        name="datasets/d1/fitted/a.pickle", checksum="0" * 16, size=1
    )
    with pytest.raises(DataError, match=r"ETLSpec.fit\(\) has read the rows of all folds"):
        plan_fit(story.state, request(2), {})


def test_a_request_without_folds_is_written_as_before() -> None:
    """Older versions read it, and its log has the same bytes."""
    plain = FitRequest(code="0" * 64, models=({"batch_size": 1},), epochs=1, metric="loss", mode="min")
    assert "folds" not in plain.model_dump_json()
    story = Story("plain")
    story.workers_join()
    story.etl()
    assert "folds" not in plan_fit(story.state, plain, {}).model_dump_json()
    given = request(5)
    assert FitRequest.model_validate_json(given.model_dump_json()) == given


class Rows(ETLSpec):
    def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> Any:
        return row["x"], row["label"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"stratify": "lable"}, "stratify='lable', but .* has no such column: choose one of id, x, label"),
        ({"group": "patient"}, "group='patient', but .* has no such column"),
        ({"group": 3}, "group is 3, expected the name of a column"),
    ],
)
def test_unknown_columns_are_refused_on_this_machine(
    tmp_path: Path, columns: dict[str, Any], message: str
) -> None:
    """If the table is here."""
    (tmp_path / "t.csv").write_text("id,x,label\n1,2,3\n")
    locators: Locators = parse_locators({"train": str(tmp_path / "t.csv")})
    with pytest.raises(DataError, match=message):
        check_etl(Rows(), locators, fraction=1, max_failed=0, is_remote=False, **columns)
    check_etl(Rows(), locators, fraction=1, max_failed=0, is_remote=False, stratify="label", group="x")


def test_an_experiment_file_has_folds_and_columns() -> None:
    """As plain values."""
    fit = {"spec": "m:S", "space": GRID, "metric": "loss", "mode": "min", "folds": 5}
    etl = {"spec": "m:E", "stratify": "label", "group": "patient"}
    file = ExperimentFile.model_validate(
        {"name": "a", "locators": {"train": {"metadata": "a.csv"}}, "etl": etl, "fit": fit}
    )
    assert file.fit is not None
    assert file.fit.explicit["folds"] == 5
    assert {name: file.etl.explicit[name] for name in ("stratify", "group")} == {
        "stratify": "label",
        "group": "patient",
    }
