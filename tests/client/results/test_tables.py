"""Tables that ETL, test and predict return."""

from __future__ import annotations

from typing import Literal

from cerebro.client import results
from cerebro.client.files import MountedFiles
from cerebro.client.results import EtlResult
from cerebro.contract.events import RunRequested, RunStarted
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest
from cerebro.contract.tasks.results import TaskResult
from cerebro.data.tables.whole_tables import write_columns
from cerebro.runtime.volumes import Volumes
from cerebro.state import Run, TaskKey
from tests.state.stories import DATASET, Story


def test_rows_in_are_rows_kept_plus_rows_failed(volumes: Volumes) -> None:
    """For each split."""
    story = Story()
    story.etl(splits={"train": 10, "test": 3})
    dataset = story.state.datasets[DATASET]
    dataset.rows["train", 1], dataset.failed_rows["train", 1] = 8, 2
    result = EtlResult.from_run(dataset, story.state.runs["etl-1"], MountedFiles(volumes))
    assert result.rows == {"train": 20, "test": 6}
    assert result.kept_rows == {"train": 18, "test": 6}
    assert result.failed == {"train": 2, "test": 0}
    assert result.seconds > 0
    assert all(result.rows[s] == result.kept_rows[s] + result.failed[s] for s in result.rows)
    drawn = result.plot_rows()
    assert [trace.name for trace in drawn.data] == ["preprocessed", "failed"]
    assert list(drawn.layout.yaxis.ticktext) == ["train", "test"]


def evaluation(kind: Literal["test", "predict"], models: dict[str, int]) -> tuple[Story, Run]:
    story = Story()
    story.append(
        RunRequested(run="e-1", request=EvaluateRequest(kind=kind, fit="fit-1", split="test")),
        RunStarted(
            run="e-1",
            plan=EvaluatePlan(
                kind=kind, dataset=DATASET, fit="fit-1", models=models, partitions={0: 30, 1: 10}
            ),
        ),
    )
    return story, story.state.runs["e-1"]


def test_a_test_without_rows_has_no_mean() -> None:
    """If every row of the split failed in ETL, the mean is NaN, not a division by zero."""
    story, run = evaluation("test", {"m00": 2, "m01": 1})
    key = TaskKey(run="e-1", kind="test", model="m00", partition=0)
    story.do(key, 0, TaskResult(rows=0, metrics={"accuracy": 0.0}))
    table = results.test_table(run, None, None)
    assert list(table["rows"]) == [0, 0]
    assert table["accuracy"].isna().all()


def test_predictions_are_one_table_indexed_by_row_id(volumes: Volumes) -> None:
    """Over all partitions, sorted; with several models keyed by model and id."""
    for models in ({"m00": 1}, {"m00": 1, "m01": 1}):
        story, run = evaluation("predict", models)
        for model in models:
            for partition, ids in enumerate((["c", "a"], ["b"])):
                output = f"{len(models)}-{model}-{partition}.arrow"
                volumes.shared.mkdir(parents=True, exist_ok=True)
                columns = {"id": ids, "prediction": [f"{model}{i}" for i in ids]}
                write_columns(volumes.shared / output, columns)
                story.do(
                    TaskKey(run="e-1", kind="predict", model=model, partition=partition),
                    partition,
                    TaskResult(rows=len(ids), output=output),
                )
        table = results.prediction_table(run, MountedFiles(volumes))
        if len(models) == 1:
            assert list(table.index) == ["a", "b", "c"]
            assert list(table["prediction"]) == ["m00a", "m00b", "m00c"]
        else:
            assert list(table.index) == [(m, i) for m in ("m00", "m01") for i in "abc"]
            assert table.loc[("m01", "b"), "prediction"] == "m01b"
