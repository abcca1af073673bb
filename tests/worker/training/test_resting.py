"""An idle process holds no model and no rows, and its next task works as usual."""

from __future__ import annotations

import gc
from pathlib import Path

import torch

from cerebro.contract.tasks.bodies import EvaluateTask
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.worker.training.trainee import Trainee
from model_hopper.handler import Handler
from tests.state.stories import DATASET, SHA
from tests.worker.training.handlers import volumes_in, write_split
from tests.worker.training.test_whole_split import BATCH, handler, save, trainee

__all__ = ["handler", "trainee"]


def validation(checkpoint: CheckpointRef) -> EvaluateTask:
    return EvaluateTask(
        kind="valid",
        key="fit-1/valid/m00/e1",
        experiment="one",
        run="fit-1",
        model="m00",
        hyperparams={"batch_size": BATCH},
        code=SHA,
        dataset=DATASET,
        seed=0,
        hang_timeout_s=60.0,
        epoch=1,
        split="valid",
        partitions=(0,),
        checkpoint=checkpoint,
    )


def live_modules() -> list[torch.nn.Module]:
    gc.collect()
    return [found for found in gc.get_objects() if issubclass(type(found), torch.nn.Module)]


def test_an_idle_handler_keeps_no_large_objects(tmp_path: Path, trainee: Trainee, handler: Handler) -> None:
    """It drops the last task's objects and the data read ahead."""
    volumes = volumes_in(tmp_path / "cluster")
    write_split(volumes, "valid", 1)
    task = validation(save(volumes, trainee))
    before = live_modules()  # kept, so that modules of other tests do not end meanwhile
    first = handler.handle(task, 1)
    handler.preload(task)
    handler.free_memory()
    handler.free_memory()
    assert len(live_modules()) == len(before)
    assert (handler._preloaded, handler._mapped) == (None, {})
    assert handler.handle(task, 1).metrics == first.metrics
