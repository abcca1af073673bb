"""Sub-epochs resume from savepoints and reach the same weights."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import torch
from torch import nn

from cerebro.contract.events import PreemptionRequested, SubEpochSaved, TaskCommitted, TaskFailed, TaskStarted
from cerebro.contract.tasks.failures import FailureKind
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyTraining, knock
from tests.waiting import until

pytestmark = pytest.mark.slow


class Halting(TinyTraining):
    """Supports savepoints; stops at the gate before given batches of the third sub-epoch.

    Args:
        batches: tag of a model -> batch numbers.
    """

    def __init__(self, *, gate: int, batches: dict[str, list[int]]) -> None:
        super().__init__(gate=gate)
        self.batches = batches

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        """Train as `TinyTraining`; its manual momentum is put into the checkpoint before a savepoint."""
        (network,) = models
        weights, first = list(network.parameters()), dataloader.step
        momenta = checkpoint.get("momenta") or [torch.zeros_like(weight) for weight in weights]
        total = dataloader.progress({"loss": 0.0})
        dataloader.savepoint(lambda: checkpoint.update(momenta=momenta))
        for inputs, labels in dataloader:
            tag, batch = hyperparams["tag"], dataloader.step - first
            if dataloader.sub_epoch == 2 and batch in self.batches.get(tag, ()):
                knock(self.gate, f"{tag} {batch}")
            loss = nn.functional.cross_entropy(network(inputs), labels)
            slopes = torch.autograd.grad(loss, weights)
            for weight, momentum, slope in zip(weights, momenta, slopes, strict=True):
                momentum.mul_(0.9).add_(slope)
                weight.data.sub_(momentum, alpha=hyperparams["lr"])
            total["loss"] += loss.item()
        checkpoint["momenta"] = momenta
        return {"loss": total["loss"]}


def until_asked(lab: Lab, worker: str, task: str) -> None:
    """Wait until the task's process has the leave request."""
    said = f"the process was asked to leave {task}"
    until(lambda: said in lab.home.log(worker).read_text(), f"{worker} says: {said}")


def test_a_stopped_and_killed_sub_epoch_resumes_in_its_middle(lab: Lab, prepared: str) -> None:
    """The model is stopped before the third batch, resumed, and its process killed.

    The first two batches and the current one are trained once, and the weights equal a plain training.
    """
    experiment = lab.attach(prepared)
    spec = Halting(gate=lab.gate.port, batches={"b": [2, 3]})
    fit = lab.fit(experiment, spec)
    third, log = lab.gate.knock(), lab.log(experiment)
    log.skip()
    experiment.stop_model("m01")
    release_request = log.until(
        lambda event: isinstance(event, PreemptionRequested), "its sub-epoch is asked for"
    )
    assert isinstance(release_request, PreemptionRequested)
    until_asked(lab, release_request.worker, release_request.task)
    third.let_through()
    saved = log.until(lambda event: isinstance(event, SubEpochSaved), "it is saved")
    assert isinstance(saved, SubEpochSaved)
    assert (saved.task, saved.savepoint.batch) == (release_request.task, 3)
    failed = log.until_type("TaskFailed", task=release_request.task)
    assert isinstance(failed, TaskFailed)
    assert failed.failure.kind is FailureKind.PREEMPTED
    experiment.resume_model("m01")
    fourth = lab.gate.knock()
    assert fourth.what == "b 3"
    lab.kill(fourth.pid)
    again = lab.gate.knock()
    assert again.what == "b 3"
    lab.gate.open()
    assert lab.result(fit, experiment).failures() == {}
    run = lab.check(experiment)
    assert run.models["m01"].sub_epochs[2].resumed_rows == 15
    assert [
        path.name for path in lab.volumes.checkpoints.rglob("*.s*.pt") if experiment.name in path.parts
    ] == []


def test_a_worker_that_ends_saves_its_sub_epoch(lab: Lab, prepared: str) -> None:
    """The next process repeats no batch. Another model occupies the other worker."""
    experiment = lab.attach(prepared)
    spec = Halting(gate=lab.gate.port, batches={"a": [0], "b": [1]})
    fit = lab.fit(experiment, spec)
    held = {each.what: each for each in (lab.gate.knock(), lab.gate.knock())}
    second, log = held["b 1"], lab.log(experiment)
    log.skip()
    run = log.state().active_run()
    assert run is not None
    lab.send(second.worker, signal.SIGTERM)
    until_asked(lab, second.worker, f"{run.id}/train/m01/e2")
    second.let_through()
    saved = log.until(lambda event: isinstance(event, SubEpochSaved), "its sub-epoch is saved")
    assert isinstance(saved, SubEpochSaved)
    assert saved.savepoint.batch == 2
    log.until_type("TaskFailed", task=saved.task)
    started = log.until_type("TaskStarted", task=saved.task)
    assert isinstance(started, TaskStarted)
    committed = log.until_type("TaskCommitted", task=saved.task, attempt=started.attempt)
    assert isinstance(committed, TaskCommitted)
    assert (committed.result.rows, committed.result.resumed_rows) == (20, 10)
    lab.gate.open()
    assert lab.result(fit, experiment).failures() == {}
    lab.check(experiment)
