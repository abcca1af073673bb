"""A learning-rate schedule over the whole training is the same in workers, in any order, and in replay.

Workers have different numbers of threads; a replay uses each worker's number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.tasks.bodies import TrainTask
from cerebro.spec import DataLoader
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.checkpoints import comparison
from cerebro.worker.training.ranks.repetition import Repeat
from cerebro.worker.training.trainee import Trainee
from controller.decisions import tasks
from model_hopper.handler import Handler
from tests.state.stories import DATASET, Story, sub_epoch
from tests.worker.training.handlers import ROWS, Linear, handler_of, volumes_in, write_split

BATCH, EPOCHS, WORKERS = 8, 2, 3


class Cosine(Linear):
    """A cosine learning rate; records the position at each batch."""

    def train(
        self,
        models: list[Any],
        checkpoint: MutableMapping[str, Any],
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        notes = checkpoint.setdefault("notes", [])
        for inputs, labels in dataloader:
            rate = 0.1 * (1 + math.cos(math.pi * dataloader.step / dataloader.total_steps)) / 2
            loss = (models[0](inputs)[:, 0] - labels).square().mean()
            models[0].zero_grad()
            loss.backward()
            with torch.no_grad():
                for parameter in models[0].parameters():
                    parameter.sub_(rate * parameter.grad)
            where = (dataloader.epoch, dataloader.epochs, dataloader.sub_epoch, dataloader.sub_epochs)
            checkpoint.setdefault("threads", []).append(torch.get_num_threads())
            notes.append([*where, dataloader.step, dataloader.total_steps, *dataloader.ids])
        return {"loss": loss.item()}


@pytest.fixture(autouse=True)
def _threads_stay() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[Handler]:
    with handler_of(Cosine(), volumes_in(tmp_path)) as task_handler:
        yield task_handler


@pytest.mark.parametrize("seed", [0, 1])
def test_steps_continue_across_sub_epochs_and_are_replayed(
    tmp_path: Path, handler: Handler, seed: int
) -> None:
    """Partitions differ in size; each batch has its own step and knows its rows."""
    volumes, random = volumes_in(tmp_path), Random(seed)
    sizes = write_split(volumes, "train", WORKERS)
    assert len(set(sizes.values())) == WORKERS
    story = Story(workers=WORKERS)
    story.fit(epochs=EPOCHS, partitions=WORKERS, hyperparams={"m00": {"batch_size": BATCH}})
    assert isinstance(story.run.plan, FitPlan)
    assert isinstance(story.run.request, FitRequest)
    story.run.plan = story.run.plan.model_copy(update={"partitions": sizes})
    record = ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="train.csv")))
    model = story.model()
    while not model.is_trained:
        key = sub_epoch(model.epoch, random.choice(model.remaining))
        body = tasks.body(record, story.state, story.run, key)
        assert isinstance(body, TrainTask)
        handler._context.cores = body.partition + 1
        story.do(key, body.partition, handler.handle(body, 1))
    saved = checkpoints.load(volumes.checkpoints, model.sub_epochs[-1].checkpoint.ref(), "cpu")

    notes = saved["checkpoint"]["notes"]
    per_epoch = sum(-(-rows // BATCH) for rows in sizes.values())
    assert [note[4] for note in notes] == list(range(EPOCHS * per_epoch))
    assert {(note[1], note[3], note[5]) for note in notes} == {(EPOCHS, EPOCHS * WORKERS, EPOCHS * per_epoch)}
    for epoch in range(EPOCHS):
        ids = [row for note in notes if note[0] == epoch for row in note[6:]]
        assert sorted(ids) == list(range(ROWS))

    folders = {number: volumes.partition(DATASET, "train", number) for number in sizes}

    request = story.run.request
    assert isinstance(request, FitRequest)

    def repeated(cores: int) -> Trainee:
        repeat = Repeat(
            technique=str,
            spec=Cosine(),
            code="",
            request=request,
            folders=folders,
            rows=sizes,
            archive="",
            cores=cores,
            is_single=False,
        )
        return repeat.train(model, tmp_path)

    again = repeated(7)
    assert list(comparison.differences(again.state(), saved)) == []

    # An old log without the thread counts.
    model.sub_epochs.recent[:] = [completed._replace(cores=0) for completed in model.sub_epochs]
    again = repeated(2)
    assert set(again.state()["checkpoint"]["threads"]) == {2}
