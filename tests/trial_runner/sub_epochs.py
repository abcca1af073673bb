"""Trials on the tests' ranks, and specs with wrong losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks.bodies import TrialTask
from cerebro.contract.trials import DeviceKind, TrialOutcome
from cerebro.data.mapped import MappedRows
from cerebro.spec import Checkpoint, DataLoader, SubEpochSpec
from cerebro.techniques import Group, Technique, resolve
from cerebro.techniques.ranks import Alone
from cerebro.worker.child.device_memory import DeviceMemory
from tests.state.stories import SHA
from tests.techniques.cases import TOKENS, WIDE, Case, CaseSpec, threads
from trial_runner import stopwatch
from trial_runner.trial import Trial


class Shift(nn.Module):
    """Adds one number to all logits, which softmax cancels."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given + self.shift


class Wrong(SubEpochSpec):
    """A user's loop with dropout and gradient clipping, and a selectable loss."""

    def __init__(self, loss: str) -> None:
        self.loss = loss

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        norm = [nn.BatchNorm1d(WIDE)] if self.loss == "norm" else []
        last = [Shift()] if self.loss.startswith(("shift", "little")) else []
        hidden = [nn.Linear(WIDE, WIDE), *norm, nn.Tanh(), nn.Dropout(0.2)]
        return [nn.Sequential(*hidden, nn.Linear(WIDE, TOKENS), *last)]

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        (network,) = models
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
        checkpoint.track(optimizer=optimizer)
        if self.loss == "schedule":
            for group in optimizer.param_groups:
                group["lr"] = 1.0 / dataloader.num_rows
        for _, outputs in dataloader:
            rows = outputs.reshape(-1, 1)
            found = network(torch.sin(rows * torch.arange(1, WIDE + 1) * 0.37).float())
            labels = rows[:, 0] % TOKENS
            if self.loss == "sum":
                loss = functional.cross_entropy(found, labels, reduction="sum")
            elif self.loss == "contrastive":
                alike = functional.normalize(found) @ functional.normalize(found).T
                loss = functional.cross_entropy(alike, torch.arange(len(found)))
            elif self.loss.startswith("ordered"):  # later rows have more weight
                each = functional.cross_entropy(found, labels, reduction="none")
                loss = (each * (1 + float(self.loss.split()[1]) * torch.arange(len(each)))).mean()
            elif self.loss.startswith("little"):  # its gradient is so small that the row order matters
                share, noise = map(float, self.loss.split()[1:])
                each = labels * (1 + noise * (torch.arange(len(labels)) % 2))
                loss = functional.cross_entropy(found, labels) + share * (each * network[-1].shift).mean()
            elif self.loss == "tokens":
                loss = functional.cross_entropy(found, labels.masked_fill(rows[:, 0] % 3 == 0, -100))
            else:
                loss = functional.cross_entropy(found, labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(network.parameters(), 0.01)
            optimizer.step()
        return {"loss": 0.0}


@dataclass(frozen=True, kw_only=True)
class TrialRequest:
    """A trial to run, optionally with a technique that replaces the plan's."""

    spec: SubEpochSpec
    parallel_plan: ParallelPlan
    partition: Path
    root: Path
    batch_size: int = 8
    technique: type[Technique] | None = None


def tried(group: Group | None, trial_request: TrialRequest) -> TrialOutcome:
    """Run a trial on every rank, with as few timed batches as possible."""
    technique = trial_request.technique() if trial_request.technique else resolve(trial_request.parallel_plan)
    alone = Alone(("cpu",) * trial_request.parallel_plan.size)
    try:
        body = task_of(trial_request.parallel_plan, trial_request.batch_size)
        return tried_by(
            technique, group or alone, trial_request.spec, body, trial_request.partition, trial_request.root
        )
    finally:
        alone.leave()


def tried_by(
    technique: Technique,
    group: Group,
    spec: SubEpochSpec,
    body: TrialTask,
    partition: Path,
    root: Path,
    device_memory: DeviceMemory | None = None,
) -> TrialOutcome:
    """Run a trial with the given technique."""
    rows = MappedRows.open((partition,))
    trial = Trial(spec, body, technique, group, rows, device_memory=device_memory)
    with (
        threads(1),
        mock.patch.multiple(stopwatch, MAX_BATCHES=stopwatch.MIN_BATCHES, SHORTEST_S=0.0, _BLOCK_S=0.0),
    ):
        return trial.run(root, "trial.pt")


def task_of(parallel_plan: ParallelPlan, batch_size: int) -> TrialTask:
    """Return a trial task as a worker receives it."""
    return TrialTask(
        key="fit-1/trial/g00/w",
        experiment="one",
        run="fit-1",
        model="m00",
        hyperparams={"batch_size": batch_size},
        code=SHA,
        dataset="d",
        seed=1,
        hang_timeout_s=60.0,
        group="g00",
        id="w",
        parallel_plan=parallel_plan,
        device=DeviceKind(kind="cpu", name="1 core"),
        partition=0,
    )


def spec_of(case: Case) -> SubEpochSpec:
    """Return a user's spec that is right with every technique."""
    return CaseSpec(case)
