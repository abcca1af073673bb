"""Failed rows as a table and as text, for finished and failed runs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cerebro import Experiment
from cerebro.cli.experiments.failed_rows import lines
from cerebro.client.files import MountedFiles
from cerebro.client.results import EtlResult, failed_table
from cerebro.client.session import Session
from cerebro.contract.events import RunFinished, RunRequested, RunStarted
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.runs import EtlRequest
from cerebro.contract.tasks.failures import FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import NotFoundError, RunFailedError
from cerebro.runtime.volumes import Volumes
from cerebro.state import TaskKey
from tests.state.stories import DATASET, SHA, Story, etl_plan


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    return Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})


def wrote(
    volumes: Volumes, split: str, partition: int, ids: list[Any], total: int | None = None, run: str = "etl-1"
) -> None:
    """Write the failed rows of a partition as its worker does."""
    path = volumes.failed_rows(DATASET, split, partition)
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"id": each, "error": f"ValueError: {each}\nmore", "traceback": f"Traceback\n  {each}\n"}
        for each in ids
    ]
    whose = {"experiment": "one", "run": run}
    path.write_text(json.dumps({**whose, "total": len(ids) if total is None else total, "rows": rows}))


def test_failed_rows_are_a_table(volumes: Volumes) -> None:
    """Split, id, error and traceback over all partitions; partitions without failures have no file."""
    story = Story()
    story.etl(splits={"train": 10, "valid": 4})
    wrote(volumes, "train", 1, [7, 3])
    wrote(volumes, "valid", 0, ["a"], total=2_000)
    result = EtlResult.from_run(
        story.state.datasets[DATASET], story.state.runs["etl-1"], MountedFiles(volumes)
    )
    table = result.failed_rows()
    assert table[["split", "id"]].to_numpy().tolist() == [["train", 7], ["train", 3], ["valid", "a"]]
    assert table["error"][0] == "ValueError: 7\nmore"
    assert table.attrs["total"] == 2_002
    assert list(lines("etl-1", table, with_traceback=False)) == [
        "  SPLIT  ID  ERROR",
        "  train  7   ValueError: 7",
        "  train  3   ValueError: 3",
        "  valid  a   ValueError: a",
        "2,002 rows of etl-1 failed; the first 3 are shown.",
    ]
    assert "      7" in list(lines("etl-1", table, with_traceback=True))


def test_a_run_that_failed_for_its_rows_explains_how_to_list_them(volumes: Volumes) -> None:
    """The error says how to list them; the table works without a complete data set."""
    story = Story()
    plan = etl_plan(2, {"train": 10})
    story.append(
        RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)),
        RunStarted(run="etl-1", plan=plan),
    )
    key = TaskKey(run="etl-1", kind="etl", split="train", partition=0)
    story.fail(key, 0, FailureKind.DATA, "2 of the 10 rows failed")
    story.append(RunFinished(run="etl-1", outcome="failed", error="2 of the 10 rows failed"))
    wrote(volumes, "train", 0, [1, 2])
    kvs = SimpleNamespace(
        events=lambda name, after, **_: tuple(story.log[after:]),
        snapshot=lambda name, of_format: None,
        live=lambda name, after: (),
        append=lambda name, event: None,
    )
    connection: Any = SimpleNamespace(kvs=kvs, files=MountedFiles(volumes))
    session = Session(
        connection, ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="m.csv")))
    )
    requested = RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA))
    session.new_run = lambda request, **options: requested  # type: ignore[method-assign]
    left = "etl-1 ended before 2 of its 2 partitions were complete: more of their rows may fail"
    with pytest.raises(
        RunFailedError, match=rf"2 of the 10 rows failed\n{left}.\n.*_rows\(\) or `cerebro failed-rows one`"
    ):
        session.complete(EtlRequest(code=SHA, code_fingerprint=SHA), progress=False)
    experiment = Experiment.__new__(Experiment)
    experiment._session = session
    assert list(experiment.failed_rows()["id"]) == [1, 2]
    assert list(experiment.failed_rows("etl-1")["id"]) == [1, 2]
    with pytest.raises(NotFoundError, match="no run 'etl-9'"):
        experiment.failed_rows("etl-9")


def test_a_run_does_not_show_failed_rows_of_a_later_run(volumes: Volumes) -> None:
    """Both runs made the same data set and the later one replaced the files; the result says so."""
    story = Story()
    plan = etl_plan(3, {"train": 10})
    for run in ("etl-1", "etl-2"):
        story.append(
            RunRequested(run=run, request=EtlRequest(code=SHA, code_fingerprint=SHA)),
            RunStarted(run=run, plan=plan),
        )
        done, failing = (TaskKey(run=run, kind="etl", split="train", partition=p) for p in (0, 1))
        story.do(done, 0, TaskResult(rows=9, rows_failed=1))
        story.fail(failing, 1, FailureKind.DATA, "rows failed")
        story.append(RunFinished(run=run, outcome="failed", error="rows failed"))
    wrote(volumes, "train", 0, [1], run="etl-2")
    wrote(volumes, "train", 1, [2, 3], run="etl-2")
    files = MountedFiles(volumes)
    left = "ended before 2 of its 3 partitions were complete: more of their rows may fail."

    newest = failed_table(plan, files, experiment="one", run=story.state.runs["etl-2"])
    assert list(newest["id"]) == [1, 2, 3]
    assert list(lines("etl-2", newest, with_traceback=False))[4:] == [
        "3 rows of etl-2 failed.",
        f"etl-2 {left}",
    ]
    earlier = failed_table(plan, files, experiment="one", run=story.state.runs["etl-1"])
    assert list(earlier["id"]) == [1]
    assert list(lines("etl-1", earlier, with_traceback=False))[2:] == [
        "1 row of etl-1 failed.",
        "Failed rows of train 1 were replaced: a later run preprocessed the same data set.",
        f"etl-1 {left}",
    ]
