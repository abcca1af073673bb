"""Verification finds a worker that computes wrong results without an error."""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest
import torch

from cerebro.state.tasks.verifications import VerificationState
from tests.e2e.conftest import MakeLab
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyTraining


class Wrong(TinyTraining):
    """On worker-1 the last bit of a weight flips after each sub-epoch, as with a broken adder."""

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        returned = super().train(models, checkpoint, dataloader, hyperparams)
        if os.environ.get("CEREBRO_WORKER") == "worker-1":
            weight = next(models[0].parameters()).data
            weight.view(torch.int32).reshape(-1)[0] ^= 1
        return returned


def hold_everything(lab: Lab, workers: int) -> None:
    """Copy all training partitions to every worker; workers scan their volume when they register."""
    roots = [lab.volumes.shards / f"worker-{number}" / "datasets" for number in range(workers)]
    folders = {path.relative_to(root): path for root in roots for path in root.glob("*/*/*") if path.is_dir()}
    for root in roots:
        for name, path in folders.items():
            if not (root / name).exists():
                shutil.copytree(path, root / name)
    for number in range(workers):
        lab.kill(f"worker-{number}")
    lab.recovered()


@pytest.mark.slow
def test_a_worker_that_flips_a_bit_is_found(own_lab: MakeLab) -> None:
    """Re-executed sub-epochs match bit by bit, except those by worker-1, which is quarantined after two workers
    disagree with it.
    """
    lab = own_lab(workers=3)
    experiment = lab.prepared()
    hold_everything(lab, 3)
    tags = "abcdef"
    spec = Wrong(gate=lab.gate.port, holds=[(tag, 0) for tag in tags])
    fit = lab.fit(experiment, spec, tags=tags, epochs=4, verify=1.0)
    # Each worker trains one of the first sub-epochs, so their verification precedes the last ones on any machine.
    assert len({lab.gate.knock().worker for _ in range(3)}) == 3
    lab.gate.open()
    assert lab.result(fit, experiment).failures() == {}
    verifications = lab.log(experiment).state().runs["fit-1"].verifications.known.values()
    done = [verification for verification in verifications if verification.reexecutions]
    assert all(verification.reexecutions[0].is_exact for verification in done)
    for verification in done:
        is_hers = "worker-1" in (verification.completed.worker, verification.reexecutions[0].worker)
        assert (verification.state is VerificationState.EQUAL) != is_hers
    assert {verification.wrong for verification in done} <= {"", "worker-1"}
    assert lab.kvs.workers_health().quarantined() == {"worker-1"}
    assert "worker-1 computed wrongly" in experiment.status()
