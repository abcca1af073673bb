"""A model that needs more memory than any device has."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from cerebro import Parallelism
from cerebro.contract.events import TaskFailed
from cerebro.contract.tasks.failures import FailureKind
from cerebro.state import ModelState
from tests.e2e.conftest import MakeLab
from tests.e2e.test_parallel_plans import SETTINGS, SPACE, Descent

pytestmark = pytest.mark.slow

MIB = 1 << 20


class Greedy(Descent):
    """The model with the larger rate allocates 400 MiB while it trains."""

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        taken = torch.ones(400 * MIB if hyperparams["lr"] == 0.1 else 1, dtype=torch.uint8)
        found = super().train(models, checkpoint, dataloader, hyperparams)
        assert taken.sum() > 0
        return found


def test_a_model_too_large_for_all_devices_is_retried_once_and_fails(own_lab: MakeLab) -> None:
    """Not all attempts are used, and the other model trains. The estimate is the observed peak plus 10 %."""
    lab = own_lab(workers=2, CEREBRO_DEVICE_MEMORY="200MiB")
    experiment = lab.prepared()
    experiment.run_fit(
        Greedy(), SPACE, parallelism=Parallelism(techniques=["single"], trials="never"), **SETTINGS
    )
    log = lab.log(experiment)
    models = log.state().runs["fit-1"].models
    assert [model.state for model in models.values()] == [ModelState.FINISHED, ModelState.FAILED]
    failed = [event for event in log.read() if isinstance(event, TaskFailed)]
    assert Counter(event.task for event in failed).most_common() == [(failed[0].task, 2)]
    for event in failed:
        assert (event.failure.kind, event.failure.memory_kind) == (FailureKind.OUT_OF_MEMORY, "device")
        assert event.failure.limit_bytes == 200 * MIB
        assert event.failure.peak_bytes > 400 * MIB
    failure = models["m01"].failures.final
    assert failure is not None
    assert "m01 needs about 0." in failure.message
    assert "has is 0.1953Gi (worker-" in failure.message
    assert "CEREBRO_DEVICE_MEMORY" in failure.message
