"""`run_test` gives the exact metrics of one process on the whole split, for any number of workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from cerebro import figures
from cerebro.commands.planning import plan_evaluation
from cerebro.contract.events import RunRequested, RunStarted
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.runs import EvaluateRequest
from cerebro.contract.tasks.bodies import EvaluateTask
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult
from cerebro.data.loader import PartitionLoader
from cerebro.figures import Measured
from cerebro.runtime.volumes import Volumes
from cerebro.spec import DataLoader, Metrics, Ratio
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import numbers_of
from cerebro.worker.training.seeds import sub_epoch_seed
from cerebro.worker.training.sub_epoch import create, evaluate
from cerebro.worker.training.trainee import Trainee
from controller.decisions import tasks
from model_hopper.handler import Handler
from tests.state.stories import DATASET, Story
from tests.worker.training.handlers import ROWS, Linear, handler_of, volumes_in, write_split

BATCH = 8
CPU = torch.device("cpu")


class Ranking(Linear):
    """Scores rows, with metrics that are not means over rows."""

    def test(
        self,
        models: list[Any],
        checkpoint: MutableMapping[str, Any],
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> Metrics:
        batches = [(models[0](inputs)[:, 0], labels) for inputs, labels in dataloader]
        scores, labels = (torch.cat(column) for column in zip(*batches, strict=True))
        guesses = scores > scores.median()
        hits = int((guesses & (labels == 1)).sum())
        above = scores[labels == 1][:, None] > scores[labels == 0][None]
        return {
            "auc": above.double().mean().item(),
            "f1": 2 * hits / (int(guesses.sum()) + int((labels == 1).sum())),
            "precision": Ratio(((scores > 0) & (labels == 1)).sum(), (scores > 0).sum()),
            "loss": sum(float(s.sum()) for s, _ in batches) / dataloader.num_rows,
        }


@pytest.fixture
def trainee() -> Trainee:
    return create(Ranking(), {"batch_size": BATCH}, seed=0, model="m00", device=CPU)


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[Handler]:
    """A worker's handler with the spec."""
    with handler_of(Ranking(), volumes_in(tmp_path / "cluster")) as task_handler:
        yield task_handler


def run_test(
    handler: Handler,
    saved: CheckpointRef,
    sizes: Mapping[int, int],
    split: str,
) -> list[Measured]:
    """Run a test request to its table, with one handler for all tasks."""
    story = Story(workers=len(sizes))
    story.etl(workers=len(sizes), splits={"train": 10, "test": 10})
    story.state.datasets[DATASET].rows.update({(split, p): rows for p, rows in sizes.items()})
    story.fit(epochs=1, partitions=1, hyperparams={"m00": {"batch_size": BATCH}})
    sub_epoch = "fit-1/train/m00/e1/p0"
    story.do(story.run.find(sub_epoch).key, 0, TaskResult(rows=10, metrics={"loss": 1.0}, checkpoint=saved))
    request = EvaluateRequest(kind="test", fit="fit-1", split=split)
    story.append(
        RunRequested(run="test-1", request=request),
        RunStarted(run="test-1", plan=plan_evaluation(story.state, request)),
    )
    run = story.state.runs["test-1"]
    record = ExperimentRecord(name="one", locators=Locators(test=Locator(metadata="test.csv")))
    for task in list(run.tasks.by_key.values()):
        body = tasks.body(record, story.state, run, task.key)
        assert isinstance(body, EvaluateTask)
        story.do(task.key, 0, handler.handle(body, 1))
    assert run.is_complete()
    return figures.tested(run)


def save(volumes: Volumes, trainee: Trainee) -> CheckpointRef:
    volumes.model_checkpoints("one", "fit-1", "m00").mkdir(parents=True)
    return checkpoints.save(volumes.checkpoints, "one/fit-1/m00/u0.pt", trainee.state())


def in_one_process(trainee: Trainee, folders: Sequence[Path]) -> dict[str, float]:
    loader = PartitionLoader(folders, batch_size=BATCH, seed=None)
    seed = sub_epoch_seed(0, "m00", 1, -1)
    feed = InstrumentedLoader(loader)
    return numbers_of(evaluate(Ranking(), trainee, feed, {"batch_size": BATCH}, seed=seed))


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5])
def test_metrics_equal_a_test_in_one_process(
    workers: int, tmp_path: Path, trainee: Trainee, handler: Handler
) -> None:
    """Compares AUC, F1 and a mean for a partition per worker and for one partition."""
    alone, cluster = volumes_in(tmp_path / "alone"), volumes_in(tmp_path / "cluster")
    write_split(alone, "test", 1)
    expected = in_one_process(trainee, [alone.partition(DATASET, "test", 0)])
    saved = save(cluster, trainee)
    (found,) = run_test(handler, saved, write_split(cluster, "test", workers), "test")
    assert found.metrics == expected
    assert (found.rows, found.parts) == (ROWS, 1)
    assert figures.averaged([found]) == ""


def test_a_test_of_training_data_in_parts_is_marked(
    tmp_path: Path, trainee: Trainee, handler: Handler
) -> None:
    """Training data stays on the workers' volumes, so the AUC is a mean over parts and marked as such.

    Ratios are exact.
    """
    alone, cluster = volumes_in(tmp_path / "alone"), volumes_in(tmp_path / "cluster")
    write_split(alone, "train", 1)
    expected = in_one_process(trainee, [alone.partition(DATASET, "train", 0)])
    saved = save(cluster, trainee)
    (found,) = run_test(handler, saved, write_split(cluster, "train", 3), "train")
    assert found.metrics["auc"] != pytest.approx(expected["auc"], abs=1e-4)
    assert found.metrics["loss"] == pytest.approx(expected["loss"])
    assert found.parts == 3
    assert found.metrics["precision"] == expected["precision"]
    assert "means over 3 parts" in figures.averaged([found])
    assert "(auc, f1, loss; the others are of all rows)" in figures.averaged([found])
