"""`test` cannot change `checkpoint`; `train` has the newest validation metrics, also in a replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from cerebro.contract.records import ExperimentRecord, Hyperparameters, Locator, Locators
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.tasks.bodies import TrainTask
from cerebro.errors import SpecError
from cerebro.state import Model
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.checkpoints import comparison
from cerebro.worker.training.ranks.repetition import Repeat
from cerebro.worker.training.sub_epoch import create, evaluate, predicting
from controller.decisions import tasks
from tests.state.stories import DATASET, Story, joined, sub_epoch
from tests.worker.training.handlers import Linear, handler_of, volumes_in, write_split
from tests.worker.training.test_sub_epoch import Rows

WORKERS, EPOCHS = 2, 3


# --- writes in test ------------------------------------------------------------------------------------


class Reader(Linear):
    """Runs a given action in `test` and `predict`."""

    def __init__(self, action: Callable[[Any], object]) -> None:
        self.action = action

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        self.action(checkpoint)
        return {}

    def predict(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Any:
        self.action(checkpoint)
        yield 1


def _kept_state() -> dict[str, Any]:
    return {"list": [1], "tensor": torch.zeros(2), "inner": {"a": 1}}


@pytest.mark.parametrize(
    "action",
    [
        lambda checkpoint: checkpoint.__setitem__("new", 1),
        lambda checkpoint: checkpoint.update(new=1),
        lambda checkpoint: checkpoint.setdefault("new", 1),
        lambda checkpoint: checkpoint.__ior__({"new": 1}),
        lambda checkpoint: checkpoint.pop("list"),
        lambda checkpoint: checkpoint.popitem(),
        lambda checkpoint: checkpoint.clear(),
        lambda checkpoint: checkpoint.__delitem__("list"),
        lambda checkpoint: checkpoint["list"].append(2),
        lambda checkpoint: checkpoint["tensor"].add_(1),
        lambda checkpoint: checkpoint["inner"].update(a=2),
    ],
    ids=["set", "update", "setdefault", "or", "pop", "popitem", "clear", "delete", "append", "add", "inner"],
)  # fmt: skip
def test_writes_of_test_into_checkpoint_are_refused(action: Callable[[Any], object]) -> None:
    """Covers all methods and in-place changes, which would be lost. `train` may write again."""
    spec = Reader(action)
    trainee = create(spec, {}, seed=0, model="m00", device=torch.device("cpu"))
    trainee.checkpoint.update(_kept_state())
    with pytest.raises(SpecError, match=r"test\(\) writes into checkpoint.*dataloader.validation"):
        evaluate(spec, trainee, Rows(), {}, seed=0)
    trainee.checkpoint.update(_kept_state())
    with (
        pytest.raises(SpecError, match=r"predict\(\) writes into checkpoint"),
        predicting(spec, trainee, Rows(), {}, seed=0) as returned,
    ):
        list(returned)  # type: ignore[call-overload]
    trainee.checkpoint["new"] = 1


def test_test_may_read_checkpoint() -> None:
    """It may also restore tracked objects."""

    def reading(checkpoint: Any) -> None:
        assert checkpoint.setdefault("list", []) == checkpoint.get("list") == [1]
        assert {**checkpoint} == checkpoint | {}
        network = torch.nn.Linear(1, 1)
        checkpoint.track(network=network)
        assert float(network.weight) == 5.0

    spec = Reader(reading)
    trainee = create(spec, {}, seed=0, model="m00", device=torch.device("cpu"))
    trainee.checkpoint.update(list=[1], network={"weight": torch.full((1, 1), 5.0), "bias": torch.zeros(1)})
    evaluate(spec, trainee, Rows(), {}, seed=0)


# --- validation metrics in train -------------------------------------------------------------------------


class Plateau(Linear):
    """SGD with ReduceLROnPlateau; records the validation metrics of each sub-epoch."""

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        optimizer = torch.optim.SGD(models[0].parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        checkpoint.track(optimizer=optimizer, schedule=schedule)
        validation = dataloader.validation
        if validation is not None and validation.epoch != checkpoint.get("validated"):
            schedule.step(validation.metrics["loss"])
            checkpoint["validated"] = validation.epoch
        known = None if validation is None else (validation.epoch, validation.metrics["loss"])
        checkpoint.setdefault("had", []).append(known)
        for inputs, labels in dataloader:
            optimizer.zero_grad()
            torch.autograd.backward((models[0](inputs)[:, 0] - labels).square().mean())
            optimizer.step()
        checkpoint.setdefault("rates", []).append(optimizer.param_groups[0]["lr"])
        return {"loss": 1.0}


RECORD = ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="train.csv")))


def fitted(
    sizes: Mapping[int, int],
    hyperparams: Hyperparameters | None = None,
) -> Story:
    story = Story(workers=0)
    for number in range(WORKERS):
        story.append(joined(number))
    story.fit(epochs=EPOCHS, partitions=WORKERS, hyperparams={"m00": hyperparams or {"batch_size": 8}})
    assert isinstance(story.run.plan, FitPlan)
    story.run.plan = story.run.plan.model_copy(update={"partitions": dict(sizes)})
    return story


def next_task(story: Story, partition: int) -> TrainTask:
    body = tasks.body(RECORD, story.state, story.run, sub_epoch(story.model().epoch, partition))
    assert isinstance(body, TrainTask)
    return body


@pytest.mark.parametrize("seed", range(3))
def test_train_and_replay_use_the_newest_validation(tmp_path: Path, seed: int) -> None:
    """Validations arrive at random times.

    The log has the epoch for each sub-epoch, and the weights are bit-identical.
    """
    volumes, random = volumes_in(tmp_path), Random(seed)
    sizes = write_split(volumes, "train", WORKERS)
    story = fitted(sizes)
    model, expected, due = story.model(), [], list[int]()
    with handler_of(Plateau(), volumes) as handler:
        while not model.is_trained:
            while due and random.random() < 0.5:
                epoch = due.pop(0)
                model.validate(epoch, {"loss": 0.1 * epoch + 1 / 3})
            body = next_task(story, random.choice(model.remaining))
            newest = max((epoch for epoch in model.validation.metrics if epoch < body.epoch), default=0)
            expected.append((newest - 1, 0.1 * newest + 1 / 3) if newest else None)
            completed = model.completed_epochs
            story.do(sub_epoch(body.epoch, body.partition), body.partition, handler.handle(body, 1))
            due += [model.completed_epochs] if model.completed_epochs > completed else []
    for epoch in due:
        model.validate(epoch, {"loss": 9.0})  # after all sub-epochs, so none has it
    assert [completed_sub_epoch.validated - 1 for completed_sub_epoch in model.sub_epochs] == [
        -1 if validation is None else validation[0] for validation in expected
    ]
    saved = checkpoints.load(volumes.checkpoints, model.sub_epochs[-1].checkpoint.ref(), "cpu")
    assert saved["checkpoint"]["had"] == expected
    assert (
        list(comparison.differences(repeated(story, model, volumes_in(tmp_path), sizes, tmp_path), saved))
        == []
    )


def repeated(
    story: Story,
    model: Model,
    volumes: Any,
    sizes: Mapping[int, int],
    folder: Path,
    spec: Linear | Any = None,
) -> dict[str, Any]:
    request = story.run.request
    assert isinstance(request, FitRequest)
    repeat = Repeat(
        technique=str, spec=spec or Plateau(), code="", request=request, rows=sizes, archive="", cores=1,
        is_single=False,
        folders={number: volumes.partition(DATASET, "train", number) for number in sizes},
    )  # fmt: skip
    return repeat.train(model, folder).state()


def test_a_growing_validation_loss_reduces_the_rate(tmp_path: Path) -> None:
    """A growing loss halves the rate once per epoch, not once per sub-epoch."""
    volumes = volumes_in(tmp_path)
    story = fitted(write_split(volumes, "train", WORKERS))
    model = story.model()
    with handler_of(Plateau(), volumes) as handler:
        while not model.is_trained:
            body = next_task(story, model.remaining[0])
            story.do(sub_epoch(body.epoch, body.partition), body.partition, handler.handle(body, 1))
            if not model.progress.trained % WORKERS:
                model.validate(model.completed_epochs, {"loss": float(model.completed_epochs)})
    saved = checkpoints.load(volumes.checkpoints, model.sub_epochs[-1].checkpoint.ref(), "cpu")
    assert saved["checkpoint"]["rates"] == [0.1, 0.1, 0.1, 0.1, 0.05, 0.05]
