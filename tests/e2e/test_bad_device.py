"""A worker whose device fails every sub-epoch is quarantined and no model is lost."""

from __future__ import annotations

from typing import cast

import pytest

from cerebro import Experiment
from cerebro.cli import main
from cerebro.client.results import FitResult
from cerebro.contract.events import TaskFailed, WorkerRemoved
from cerebro.contract.stored.health import CONTROLLER, ReleaseRequest
from cerebro.contract.tasks.failures import FailureKind
from tests.e2e.conftest import MakeLab
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyTraining
from tests.e2e.test_scaling import shards, trained_by

BAD = "worker-1"


def on_both(lab: Lab, experiment: Experiment) -> FitResult:
    """Train, and block each worker until the other one trains as well."""
    spec = TinyTraining(gate=lab.gate.port, holds=[(tag, 0) for tag in "abcd"])
    fit = lab.fit(experiment, spec, tags="abcd", epochs=1)
    assert {lab.gate.knock().worker for _ in range(2)} == {"worker-0", BAD}
    lab.gate.open()
    return cast(FitResult, lab.result(fit, experiment))


@pytest.mark.slow
def test_a_bad_device_is_quarantined_and_the_grid_completes(
    own_lab: MakeLab, capsys: pytest.CaptureFixture[str]
) -> None:
    """After at most two failures the worker checks itself, and the other worker takes both partitions.

    After its release the worker gets tasks again.
    """
    lab = own_lab()
    experiment = lab.prepared()
    tags = "abcd"
    spec = TinyTraining(trouble=dict.fromkeys(tags, f"ecc at {BAD}"))
    result = lab.result(lab.fit(experiment, spec, tags=tags), experiment)
    assert result.failures() == {}
    run = lab.check(experiment)
    log = lab.log(experiment).read()
    failed = [event for event in log if isinstance(event, TaskFailed)]
    assert {event.worker for event in failed} == {BAD}
    assert {event.failure.kind for event in failed} == {FailureKind.DEVICE}
    lost = next(n for n, event in enumerate(log) if event.type == "WorkerLost")
    # One more task may have been queued behind the second one; it is revoked or fails.
    assert len([event for event in failed if event in log[:lost]]) <= 2, lab.timeline(experiment)
    assert len(failed) <= 3
    assert all(sub_epoch.worker != BAD for model in run.models.values() for sub_epoch in model.sub_epochs)

    health = lab.kvs.workers_health()
    known = health.of(BAD)
    assert known.is_quarantined
    assert known.quarantine is not None
    assert known.quarantine.by == CONTROLLER
    # The worker was asked to check its machine.
    assert known.check is not None
    assert {each.what for each in health.incidents} >= {"quarantined"}
    assert main(["status", "--home", str(lab.home.path)]) == 0
    assert f"quarantined: {known.quarantine.reason[:40]}" in capsys.readouterr().out

    assert main(["quarantine", "worker-0", "--reason", "mine", "--home", str(lab.home.path)]) == 1
    assert "worker-0 is the last worker that trains" in capsys.readouterr().err
    assert main(["quarantine", "worker-7", "--reason", "mine", "--home", str(lab.home.path)]) == 1
    assert "no worker 'worker-7' is registered; there is: worker-0, worker-1" in capsys.readouterr().err
    assert main(["release", BAD, "--home", str(lab.home.path)]) == 0
    assert on_both(lab, experiment).failures() == {}
    newest = lab.check(experiment)
    assert {sub_epoch.worker for model in newest.models.values() for sub_epoch in model.sub_epochs} == {
        "worker-0",
        BAD,
    }


@pytest.mark.slow
def test_the_partition_of_a_quarantined_pod_is_rebuilt_bit_identically(pods: Lab) -> None:
    """In pods, the ETL container of the quarantined worker still has the partition, but no worker can read it.

    The other pod rebuilds the partition from the same rows.
    """
    experiment = pods.prepared()
    before = shards(pods, BAD, 1)
    spec = TinyTraining(trouble=dict.fromkeys("abc", f"ecc at {BAD}"))
    assert pods.result(pods.fit(experiment, spec, tags="abc"), experiment).failures() == {}
    assert pods.kvs.workers_health().quarantined() == {BAD}
    assert shards(pods, "worker-0", 1) == before
    assert trained_by(pods.check(experiment), "worker-0") == {0, 1}
    log = pods.log(experiment).read()
    removed = {event.worker for event in log if isinstance(event, WorkerRemoved)}
    assert removed == {BAD, f"{BAD}-etl"}
    pods.kvs.release_worker(BAD, ReleaseRequest(by="ada"))
    assert on_both(pods, experiment).failures() == {}
    assert trained_by(pods.check(experiment), BAD)
