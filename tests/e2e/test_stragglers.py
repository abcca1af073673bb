"""A worker that is four times slower than the others, live."""

from __future__ import annotations

import os
import shutil
import time
from typing import Any

import pytest

from cerebro.contract.events import Event, TaskCommitted, TaskStarted
from cerebro.state import TaskKey
from tests.e2e.conftest import MakeLab
from tests.e2e.specs import TinyTraining

_SUB_EPOCH_S, _SLOWER, _MODELS, _EPOCHS = 0.25, 4.0, 8, 4


class Dawdling(TinyTraining):
    """A sub-epoch takes four times as long on worker-1."""

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        """See `SubEpochSpec`."""
        slower = _SLOWER if os.environ.get("CEREBRO_WORKER") == "worker-1" else 1.0
        time.sleep(_SUB_EPOCH_S * slower)
        return super().train(models, checkpoint, dataloader, hyperparams)


def _making_s(events: list[Event]) -> list[float]:
    """What it took to make each partition first, with the start of its process."""
    began = {each.task: each.time for each in events if isinstance(each, TaskStarted)}
    ended = [each for each in events if isinstance(each, TaskCommitted) and "/etl/train/" in each.task]
    return [round(each.time - began[each.task], 1) for each in ended]


@pytest.mark.slow
def test_a_slow_workers_partition_is_trained_on_by_others_too(own_lab: MakeLab) -> None:
    """It would take 32 s for its own sub-epochs alone; its partition is made elsewhere while the run goes on."""
    lab = own_lab(workers=3)
    disk = shutil.disk_usage(lab.folder)
    if disk.free < 0.22 * disk.total:
        pytest.skip("no copies are made where a fifth of the disk, or less, is free: free some of it")
    experiment = lab.prepared()
    log = lab.log(experiment)
    fit = lab.fit(experiment, Dawdling(), tags="abcdefgh"[:_MODELS], epochs=_EPOCHS)
    assert lab.result(fit, experiment).failures() == {}
    state = log.state()
    run = state.runs["fit-1"]
    committed = (event for event in log.read() if isinstance(event, TaskCommitted))
    made = [e.worker for e in committed if e.task.startswith("fit-1/etl/train/")]
    assert made, f"a partition took {_making_s(log.read())} s to be made: is a copy worth that?"
    visits = [visit for model in run.models.values() for visit in model.visits]
    key = next(k for k in map(TaskKey.parse, run.tasks) if k.kind == "etl")
    trained_by = {visit.worker for visit in visits if visit.partition == key.partition}
    assert len(trained_by) > 1
    # In sub-epochs: what they take beside their pauses is the machine's.
    assert sum(visit.worker == "worker-1" for visit in visits) <= 0.75 * _MODELS * _EPOCHS
    lab.check(experiment)
