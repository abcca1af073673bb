"""Data frames of a fit match its state, for any metric names."""

from __future__ import annotations

from datetime import datetime
from random import Random
from typing import Literal

import pandas as pd
import pytest

from cerebro.client.files import MountedFiles
from cerebro.client.results import FitResult
from cerebro.contract.events import ModelsAdded
from cerebro.contract.runs import NewModel, ParentCheckpoint
from cerebro.contract.tasks.failures import FailureKind
from cerebro.errors import DataError, RunFailedError
from cerebro.runtime.volumes import Volumes
from cerebro.scheduling.validator import validate
from cerebro.state.experiment import fold
from cerebro.state.models.best import ranked_models
from dispatcher.read_models.model_table import ModelTable
from tests.client.results.fits import fit_result, fitted
from tests.state.runs import dispatched
from tests.state.stories import Story, sub_epoch


@pytest.mark.parametrize(
    ("mode", "order", "values"),
    [
        ("min", ["m01", "m02", "m00", "m03"], [1.0, 3.0, 4.0]),
        ("max", ["m00", "m02", "m01", "m03"], [5.0, 3.0, 2.0]),
    ],
)
def test_the_leaderboard_is_sorted_by_the_mode_of_the_metric(
    volumes: Volumes, mode: Literal["min", "max"], order: list[str], values: list[float]
) -> None:
    """Best first, each model at its best epoch; models without a value come last; ranks start at 1."""
    board = fit_result(fitted(mode=mode), volumes).leaderboard()
    assert list(board["model"]) == order
    assert list(board["loss"])[:3] == values
    assert pd.isna(board["loss"].iloc[3])
    assert list(board.index) == [1, 2, 3, 4]
    assert board.index.name == "rank"
    assert board.set_index("model").loc["m02", "failure"] == "ValueError: boom"
    assert list(board["state"]) == [
        "failed" if m == "m02" else "queued" if m == "m03" else "finished" for m in order
    ]


def test_names_of_users_do_not_hide_columns(volumes: Volumes) -> None:
    """A hyperparameter named `model` or like the metric, or a metric named `seconds`, gets its own column."""
    story = Story()
    story.fit(models=1, hyperparams={"m00": {"batch_size": 8, "model": "cnn", "loss": "mse", "epochs": 99}})
    story.epoch(1, loss=2.0, seconds=7.0, attempt=3.0)
    result = fit_result(story, volumes)
    (row,) = result.leaderboard().to_dict("records")
    assert (row["model"], row["model (hyperparameter)"]) == ("m00", "cnn")
    assert (row["loss"], row["loss (hyperparameter)"]) == (2.0, "mse")
    assert (row["epochs"], row["epochs (hyperparameter)"]) == (1, 99)
    (epoch,) = result.history().to_dict("records")
    assert (epoch["seconds"], epoch["seconds (metric)"]) == (4.0, 7.0)
    assert list(result.sub_epochs()["attempt"]) == [1, 1]
    assert list(result.sub_epochs()["attempt (metric)"]) == [3.0, 3.0]


def test_a_run_that_has_not_started_has_empty_tables(volumes: Volumes) -> None:
    """With their columns, so a notebook that attaches early does not fail."""
    story = Story()
    story.fit()
    story.run.models.clear()
    result = fit_result(story, volumes)
    assert list(result.leaderboard().columns) == ["model", "state", "loss", "best_epoch", "epochs", "failure"]
    assert len(result.leaderboard()) == len(result.history()) == len(result.sub_epochs()) == 0
    assert list(result.epochs().columns) == ["makespan", "lower_bound", "gap", "process_start", "idle"]
    assert result.failures() == {}
    with pytest.raises(RunFailedError, match="no model finished an epoch"):
        _ = result.best


def test_the_history_has_a_row_per_model_epoch_and_split(volumes: Volumes) -> None:
    """Training means with seconds, and validations."""
    history = fit_result(fitted(validated=True), volumes).history()
    rows = history[history["model"] == "m01"].to_dict("records")
    assert [(row["epoch"], row["split"], row["loss"]) for row in rows] == [
        (1, "train", 1.0),
        (1, "valid", 10.0),
        (2, "train", 2.0),
        (2, "valid", 20.0),
    ]
    assert rows[0]["seconds"] == 4.0
    assert pd.isna(rows[1]["seconds"])
    assert set(history["model"]) == {"m00", "m01", "m02"}


def test_the_table_of_sub_epochs_is_in_order_of_completion(volumes: Volumes) -> None:
    """Its rows are enough to replay the run."""
    story = Story()
    story.fit()
    story.fail(sub_epoch(1, 1), 1, FailureKind.CRASH)
    story.train(1, 1, loss=1.0)
    story.train(1, 0, model="m01", loss=2.0)
    story.train(1, 0, loss=3.0)
    sub_epochs = fit_result(story, volumes).sub_epochs()
    assert list(
        sub_epochs[["model", "sub_epoch", "epoch", "partition", "attempt"]].itertuples(index=False, name=None)
    ) == [
        ("m00", 0, 1, 1, 2),
        ("m01", 0, 1, 0, 1),
        ("m00", 1, 1, 0, 1),
    ]
    assert sub_epochs["ended"].is_monotonic_increasing
    assert (sub_epochs["ended"] > sub_epochs["started"]).all()


def test_times_are_datetimes_with_a_time_zone(volumes: Volumes) -> None:
    """In UTC. A time from the table selects its own row; a time without a zone is refused."""
    result = fit_result(fitted(), volumes)
    table = result.sub_epochs()
    assert str(table["started"].dt.tz) == str(table["ended"].dt.tz) == "UTC"
    ends = [completed.ended for model in result._run.models.values() for completed in model.sub_epochs]
    assert [moment.timestamp() for moment in table["ended"]] == pytest.approx(sorted(ends), abs=1e-6)
    moment = table["ended"].iloc[3]
    assert list(result.sub_epochs(since=moment, until=moment)["ended"]) == [moment]
    with pytest.raises(DataError, match=r"since is .*, expected a datetime with a time zone"):
        result.sub_epochs(since=datetime(2026, 11, 27))


def test_the_log_is_enough_to_judge_the_schedule(volumes: Volumes) -> None:
    """The schedule validator accepts it and computes the bound of the last epoch's report."""
    story = dispatched(Random(2), models=3, partitions=2, epochs=2)
    state = fold("one", story.log)
    result = FitResult(state, state.runs["fit-1"], MountedFiles(volumes))
    report = validate(*result.schedule(), actual=True).check()
    assert report.lower_bound == pytest.approx(result.epochs()["lower_bound"].iloc[-1])


def test_a_notebook_shows_the_leaderboard(volumes: Volumes) -> None:
    """As a table in notebooks, and as one line of text elsewhere."""
    result = fit_result(fitted(), volumes)
    assert "<table" in result._repr_html_()
    assert repr(result) == "<FitResult one/fit-1: 4 models, 1 failed, running>"
    result.page = "http://127.0.0.1:7080/experiments/one?fit=fit-1"
    assert result.page in repr(result)
    assert f'<a href="{result.page}">' in result._repr_html_()


def test_a_warm_clone_is_listed_with_its_own_values(volumes: Volumes) -> None:
    """Also before its first sub-epoch, when all epochs are inherited."""
    story = Story()
    story.fit(models=1)
    story.epoch(1, loss=1.0)
    new = NewModel(
        hyperparams={"batch_size": 1, "lr": 0.7},
        epochs=2,
        checkpoint=ParentCheckpoint(model="m00", at="last"),
    )
    story.append(ModelsAdded(run="fit-1", models=(new,), by="ann"))
    board = fit_result(story, volumes).leaderboard().set_index("model")
    assert list(board["lr"]) == [0.1, 0.7]
    assert board["loss"].isna()["m01"]
    story.train(2, 0, model="m01", loss=0.5)
    assert fit_result(story, volumes).leaderboard().set_index("model").loc["m01", "lr"] == 0.7


def test_of_equal_models_the_first_is_the_best_in_every_output(volumes: Volumes) -> None:
    """Status, leaderboard, best model and the page's table use one rule."""
    story = Story()
    story.fit(models=4)
    for model, loss in (("m03", 2.0), ("m02", 1.0), ("m01", 1.0), ("m00", 3.0)):
        for epoch in (1, 2):
            story.epoch(epoch, model=model, loss=loss)
    result, table, order = fit_result(story, volumes), ModelTable(story.run), ["m01", "m02", "m03", "m00"]
    assert list(result.leaderboard()["model"]) == order
    assert [row.model.id for row in ranked_models(story.run)] == order
    assert [row.id for row in table.ranked()] == order
    assert (result.best.id, result.best.epoch) == ("m01", 1)
    assert table.best() is table.row("m01")
    assert story.run.best_model() is story.model("m01")
