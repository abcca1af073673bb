"""Scaling worker pairs during a run loses no data and changes no bit."""

from __future__ import annotations

import argparse

import pytest

from cerebro.cli.administration import scale as cli_scale
from cerebro.contract.events import TaskCommitted
from cerebro.state import Run
from tests.e2e.harness import DEADLINE_S, Lab
from tests.e2e.specs import TinyTraining


def scale(lab: Lab, workers: int) -> None:
    """Run ``cerebro scale``."""
    options = argparse.Namespace(home=str(lab.home.path), workers=workers, timeout=DEADLINE_S, pause=False)
    assert cli_scale.run_scale(options) == 0


def shards(lab: Lab, volume: str, partition: int) -> list[bytes]:
    """List the shards of a training partition in order; their names have a random part."""
    (folder,) = lab.home.shards(volume).glob(f"datasets/*/train/partition-{partition:04d}")
    found = [path.read_bytes() for path in sorted(folder.glob("shard-*.arrow"))]
    assert found
    return found


def trained_by(run: Run, worker: str) -> set[int]:
    """Return the partitions that a worker trained on."""
    sub_epochs = (sub_epoch for model in run.models.values() for sub_epoch in model.sub_epochs)
    return {sub_epoch.partition for sub_epoch in sub_epochs if sub_epoch.worker == worker}


@pytest.mark.slow
def test_the_partition_of_a_removed_pod_is_rebuilt_bit_identically(pods: Lab) -> None:
    """`cerebro scale` removes a pod during a run.

    The other pod rebuilds its partition from the same rows, and the weights equal a replay.
    """
    experiment = pods.prepared()
    log = pods.log(experiment)
    fit = pods.fit(experiment, TinyTraining(gate=pods.gate.port, holds=[("a", 1)]), tags="ab")
    pods.gate.knock()
    before = shards(pods, "worker-1", 1)
    scale(pods, 1)
    log.until_type("WorkerRemoved", worker="worker-1")
    event = log.until_type("TaskCommitted", task="fit-1/etl/train/p1")
    pods.gate.open()
    assert pods.result(fit, experiment).failures() == {}
    assert isinstance(event, TaskCommitted)
    assert event.worker == "worker-0-etl"
    assert shards(pods, "worker-0", 1) == before
    assert trained_by(pods.check(experiment), "worker-0") == {0, 1}
    assert {status.record.worker for status in pods.kvs.workers()} == {"worker-0", "worker-0-etl"}


@pytest.mark.slow
def test_a_pod_that_joins_during_a_run_trains(pods: Lab) -> None:
    """It gets a replica with the same bits and trains on it."""
    experiment = pods.prepared()
    log = pods.log(experiment)
    # First sub-epochs wait for the replica, so it cannot come too late.
    spec = TinyTraining(gate=pods.gate.port, holds=[(tag, 0) for tag in "abcd"])
    fit = pods.fit(experiment, spec, tags="abcd", epochs=2)
    pods.gate.knock()
    scale(pods, 3)
    commit = log.until(lambda event: event.type == "TaskCommitted" and "fit-1/etl" in event.task, "a copy")
    log.until_type("TaskStarted", worker="worker-2")
    pods.gate.open()
    assert pods.result(fit, experiment).failures() == {}
    assert isinstance(commit, TaskCommitted)
    assert commit.worker == "worker-2-etl"
    partition = int(commit.task.removeprefix("fit-1/etl/train/p"))
    assert shards(pods, "worker-2", partition) == shards(pods, f"worker-{partition}", partition)
    assert partition in trained_by(pods.check(experiment), "worker-2")
