"""Inspections and trials on a real worker, with ranks that verify a parallel plan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from cerebro.contract.events import TaskCommitted, TaskFailed
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks.bodies import InspectTask, TrialTask
from cerebro.contract.tasks.failures import FailureKind
from cerebro.contract.tasks.results import TaskResult
from cerebro.contract.trials import AvailableDevices, DeviceKind
from cerebro.spec import Checkpoint, DataLoader, SubEpochSpec
from tests.state.stories import DATASET
from tests.worker.agent.agents import LIMIT_S, Agents
from tests.worker.training.handlers import volumes_in, write_split

pytestmark = pytest.mark.slow

DEVICE = DeviceKind(kind="cpu", name="2 cores")


class Trained(SubEpochSpec):
    """Two layers on the three inputs of a row."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return [torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))]

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        optimizer = torch.optim.Adam(models[0].parameters(), lr=0.01)
        checkpoint.track(optimizer=optimizer)
        for inputs, labels in dataloader:
            loss = (models[0](inputs).squeeze(1) - labels).pow(2).mean()
            if hyperparams.get("sum"):
                loss = loss * len(labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {"loss": 0.0}


def common(code: str) -> dict[str, Any]:
    """Return the fields of both kinds of tasks."""
    return {"experiment": "one", "run": "fit-1", "code": code, "dataset": DATASET, "seed": 1}


def trial(code: str, parallel_plan: ParallelPlan, **hyperparams: Any) -> TrialTask:
    """Return a trial with a batch size that two ranks divide evenly."""
    return TrialTask(
        key=f"fit-1/trial/g0{len(hyperparams)}/{parallel_plan.technique}-{parallel_plan.size}",
        **common(code),
        model="m00",
        hyperparams={"batch_size": 8, **hyperparams},
        hang_timeout_s=4 * LIMIT_S,
        group=f"g0{len(hyperparams)}",
        id=f"{parallel_plan.technique}-{parallel_plan.size}",
        parallel_plan=parallel_plan,
        device=DEVICE,
        partition=0,
    )


def result_of(agents: Agents, key: str) -> TaskResult:
    """Return the result of the commit."""
    event = agents.end_of(key)
    assert isinstance(event, TaskCommitted), event
    return event.result


def test_a_worker_inspects_models_and_its_ranks_verify_parallel_plans(agents: Agents, tmp_path: Path) -> None:
    """The processes are new, and a summed loss is ruled out."""
    agents.start(devices=2, handler="trial_runner")
    write_split(volumes_in(tmp_path), "train", 1)
    code = agents.learn(Trained())
    device_kinds = (AvailableDevices(device=DEVICE, max_devices=2),)
    inspection = InspectTask(
        key="fit-1/inspect", **common(code), models={"m00": {"batch_size": 8}}, device_kinds=device_kinds
    )
    agents.assign(inspection, attempt=1, devices=())
    found = result_of(agents, inspection.key).inspection
    assert found is not None
    parallel_plans = {known.id: known for known in found.groups[0].parallel_plans}
    assert not parallel_plans["ddp-2"].reason
    assert parallel_plans["ddp-2"].cache_key
    for technique in ("ddp", "fsdp"):
        task = trial(code, ParallelPlan(technique=technique, size=2))
        agents.assign(task, attempt=1, devices=(0, 1))
        outcome = result_of(agents, task.key).trial
        assert outcome is not None
        assert outcome.is_verified, outcome
        assert outcome.is_usable
        assert outcome.start_s > 0
        assert outcome.host_bytes > 0
    wrong = trial(code, ParallelPlan(technique="ddp", size=2), sum=True)
    agents.assign(wrong, attempt=1, devices=(0, 1))
    struck = result_of(agents, wrong.key).trial
    assert struck is not None
    assert struck.cause == "gradient"


class Marking(Trained):
    """Records its process and parent, and changes made by an earlier trial."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        found = f"{os.getpid()} {os.getppid()} {getattr(torch, 'marked', False)}\n"
        with self.notes.open("a") as notes:
            notes.write(found)
        torch.marked = True  # type: ignore[attr-defined]
        return super().create_models(hyperparams)


def test_trials_run_in_fresh_forks_with_imports_done(agents: Agents, tmp_path: Path) -> None:
    """Each trial forks from a process with the imports done."""
    agents.start(handler="trial_runner")
    write_split(volumes_in(tmp_path), "train", 1)
    notes = tmp_path / "notes"
    code = agents.learn(Marking(notes))
    observed = []
    for number in range(3):
        notes.unlink(missing_ok=True)
        task = trial(code, ParallelPlan(technique="single"), **{f"number{number}": 1})
        task = task.model_copy(update={"key": f"fit-1/trial/g1{number}/single", "group": f"g1{number}"})
        agents.assign(task, attempt=1, devices=(0,))
        assert result_of(agents, task.key).trial is not None
        observed.append(notes.read_text().splitlines()[0].split())
    processes, parents, marks = zip(*observed, strict=True)
    assert len(set(processes)) == 3
    assert len(set(parents)) == 1
    assert set(marks) == {"False"}


def test_failed_ranks_have_ended_before_the_next_trial(agents: Agents, tmp_path: Path) -> None:
    """Each rank reports that the technique does not apply; later trials fork from new processes."""
    agents.start(devices=2, handler="trial_runner")
    write_split(volumes_in(tmp_path), "train", 1)
    notes = tmp_path / "notes"
    code = agents.learn(Marking(notes))
    parents = []
    for technique in ("ddp", "nothing", "fsdp"):
        task = trial(code, ParallelPlan(technique=technique, size=2))
        agents.assign(task, attempt=1, devices=(0, 1))
        if technique == "nothing":
            event = agents.end_of(task.key)
            assert isinstance(event, TaskFailed)
            assert event.failure.kind is FailureKind.NOT_APPLICABLE
        else:
            assert result_of(agents, task.key).trial is not None
        parents.append({line.split()[1] for line in notes.read_text().splitlines()})
    assert len(parents[0]) == 2
    assert len(parents[2]) == 4
