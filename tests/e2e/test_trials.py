"""Trials of parallel plans during training; a later run uses their results."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn

from cerebro import Experiment, Parallelism, SubEpochSpec
from cerebro.contract.events import Event, TaskAssigned, TaskCommitted, TrialsRecalled
from cerebro.runtime.usage import cores
from cerebro.techniques import Ddp, Technique
from tests.e2e.conftest import MakeLab
from tests.e2e.harness import Lab
from tests.e2e.specs import FEATURES

pytestmark = pytest.mark.slow

BATCH_S, EPOCHS = 0.25, 1000
"""Seconds per batch, and enough epochs that a trial pays off until the run is stopped."""


class Slow(SubEpochSpec):
    """A small network with slow batches."""

    def create_models(self, hyperparams: Any) -> list[Any]:
        return [nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 3))]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        (network,) = models
        optimizer = torch.optim.SGD(network.parameters(), lr=hyperparams["lr"])
        checkpoint.track(optimizer=optimizer)
        for inputs, labels in dataloader:
            loss = nn.functional.cross_entropy(network(inputs), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            threading.Event().wait(BATCH_S)
        return {"loss": 0.0}


def is_trained(event: Event, run: str) -> bool:
    return isinstance(event, TaskCommitted) and event.task.startswith(f"{run}/train/")


def started(lab: Lab, experiment: Any) -> Any:
    """Start a fit with plans for one and two devices; one plan needs a trial."""
    techniques: list[str | Technique] = ["single", Ddp(unused_parameters=False, checkpointing=False)]
    mine = Experiment.attach(experiment.name)  # the test's own client must not be used from another thread
    return lab.spawn(
        lambda: mine.run_fit(
            Slow(),
            {"lr": [0.05], "batch_size": 5},
            epochs=EPOCHS,
            metric="loss",
            mode="min",
            seed=3,
            progress=False,
            parallelism=Parallelism(techniques=techniques, gpus=[1, 2]),
        )
    )


def stopped(lab: Lab, experiment: Any, fit: Any) -> None:
    experiment.stop()
    with pytest.warns(UserWarning, match="was stopped by"):
        lab.result(fit, experiment)


def test_a_fit_reuses_the_trials_of_an_earlier_fit(own_lab: MakeLab) -> None:
    """The ranks verify the two-device plan, and `cerebro trials` shows the result.

    The next fit of the same code reuses it from the log without a trial.
    """
    if cores.available() < 2:
        pytest.skip("two devices need two cores")
    lab = own_lab(workers=1, CEREBRO_DEVICES="2")
    experiment = lab.prepared(locators=lab.tables(train=40))
    log = lab.log(experiment)
    first = started(lab, experiment)
    tried = log.until(lambda e: isinstance(e, TaskCommitted) and "/trial/" in e.task, "the trial")
    assert isinstance(tried, TaskCommitted)
    outcome = tried.result.trial
    assert outcome is not None
    assert (outcome.is_verified, outcome.is_usable) == (True, True), outcome
    assert outcome.batch_s > 0
    log.until(lambda e: is_trained(e, "fit-1"), "a sub-epoch after it")
    stopped(lab, experiment, first)

    log.skip()
    second = started(lab, experiment)
    recalled = log.until(lambda e: isinstance(e, TrialsRecalled), "what is known")
    assert isinstance(recalled, TrialsRecalled)
    assert outcome.batch_s in [each.batch_s for each in recalled.outcomes.values()]
    for _ in range(2):
        log.until(lambda e: is_trained(e, "fit-2"), "a sub-epoch of the second run")
    stopped(lab, experiment, second)
    given = [event.task for event in log.read() if isinstance(event, TaskAssigned)]
    assert [task for task in given if task.startswith("fit-1/trial/")] == [tried.task]
    assert [task for task in given if task.startswith("fit-2/trial/")] == []

    command = [sys.executable, "-m", "cerebro.cli", "trials", experiment.name]
    for run in ("fit-1", "fit-2"):
        stdout = subprocess.run([*command, "--run", run], capture_output=True, text=True, check=True).stdout
        (line,) = [line for line in stdout.splitlines() if "ddp" in line]
        assert "measured" in line, stdout
