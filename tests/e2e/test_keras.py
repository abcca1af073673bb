"""Keras models: a killed worker does not affect the weights, and a replay gives the same weights."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from cerebro import KerasSubEpochSpec
from cerebro.contract.events import TaskCommitted
from cerebro.spec import Metrics
from tests.e2e.harness import Lab
from tests.e2e.specs import FEATURES, knock
from tests.keras.models import require_keras


class TinyKeras(KerasSubEpochSpec):
    """A small network with dropout; one sub-epoch stops at the gate after its first batch."""

    keras_backend = "torch"

    def __init__(self, gate: int) -> None:
        self.gate = gate

    def create_models(self, hyperparams: Any) -> Any:
        import keras
        from keras import layers

        network = keras.Sequential(
            [
                keras.Input((FEATURES,)),
                layers.Dense(16, "relu"),
                layers.Dropout(0.3),
                layers.Dense(3, "softmax"),
            ]
        )
        network.compile(
            keras.optimizers.Adam(hyperparams["lr"]), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
        return network

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Metrics:
        """Train as the template does, but stop in the middle."""
        if hyperparams["tag"] == "b" and dataloader.sub_epoch == 2:
            knock(self.gate, "b 2")
        return super().train(models, checkpoint, dataloader, hyperparams)


@pytest.mark.slow
def test_a_killed_worker_leaves_no_trace_in_keras_models(lab: Lab, prepared: str) -> None:
    """Each sub-epoch is committed once; a replay in another process has the same weights and optimizer states."""
    require_keras("torch")
    experiment = lab.attach(prepared)
    fit: Any = lab.fit(experiment, TinyKeras(lab.gate.port), "ab")  # type: ignore[arg-type]
    lab.kill(lab.gate.knock().worker)
    lab.gate.open()
    result = lab.result(fit, experiment)
    assert result.failures() == {}
    commits = Counter(
        event.task
        for event in lab.log(experiment).read()
        if isinstance(event, TaskCommitted) and event.task.startswith(f"{result.run}/train/")
    )
    assert len(commits) == 2 * 2 * 2
    assert set(commits.values()) == {1}
    command = [sys.executable, "-m", "cerebro.cli", "replay", experiment.name, "--run", result.run]
    done = subprocess.run(
        [*command, "--home", str(lab.home.path)],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("equal to the bit") == 2
    (network,) = result.best.modules()
    assert type(network).__module__.startswith("keras.")
