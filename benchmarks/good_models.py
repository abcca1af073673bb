"""Good models early, on a real local cluster: `promising` with preemption, without it, and the default policy.

Six models train on two workers. The loss of two good ones falls soon, the loss of the others hardly. The good ones come
last in the search space. User code sleeps instead of computing, so a busy machine changes little. A sub-epoch takes
16 s, with a savepoint each second; without savepoints nothing is preempted. Each policy has a new cluster, and the
policies take turns. The time counts from the first assignment until a good model has reached 90 % of its decrease.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.figure import Figure
from benchmarks.training import CLASSES, FEATURES, preprocessed, run_events
from cerebro import Scheduling, SubEpochSpec
from cerebro.contract.events import TaskAssigned, TaskCommitted, TaskFailed
from cerebro.contract.tasks.failures import FailureKind
from cerebro.scheduling.policies import DEFAULT_POLICY

_WORKERS, _EPOCHS, _BATCHES, _SIZE, _PAUSE_S = 2, 2, 80, 4, 0.2
_POOR, _GOOD = 4, 2
_GOAL = 0.9
_ROUNDS = 1


class Falling(SubEpochSpec):
    """Reports a loss that falls exponentially with the steps, at a given rate."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[nn.Module]:
        """Create one small network."""
        return [nn.Linear(FEATURES, CLASSES)]

    def train(
        self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Mapping[str, Any]
    ) -> dict[str, float]:
        """Sleep in each batch, and change the weights."""
        (network,) = models
        loss = 1.0
        dataloader.savepoint()
        for _ in dataloader:
            time.sleep(_PAUSE_S)
            with torch.no_grad():
                network.bias += 0.001
            loss = math.exp(-hyperparams["rate"] * (dataloader.step + 1))
            dataloader.report(loss=loss)
        return {"loss": loss}


class _Outcome(NamedTuple):
    goal_s: float
    """Mean seconds until a good model has reached its goal."""
    end_s: float
    preempted: int


def _measure(policy: str, *, preempts: bool) -> _Outcome:
    steps = _WORKERS * _EPOCHS * _BATCHES
    space = [{"batch_size": _SIZE, "rate": rate} for rate in (0.1 / steps,) * _POOR + (6 / steps,) * _GOOD]
    variables = {"CEREBRO_SAVEPOINT_S": "1" if preempts else "0"}
    with preprocessed(
        "good", _WORKERS * _BATCHES * _SIZE, workers=_WORKERS, variables=variables
    ) as experiment:
        experiment.run_fit(
            Falling(),
            space,
            epochs=_EPOCHS,
            metric="loss",
            mode="min",
            scheduling=Scheduling(scheduler=policy, planner=False),
            progress=False,
        )
        events = run_events(experiment, "fit-1")
    began = next(event.time for event in events if isinstance(event, TaskAssigned))
    commits = [event for event in events if isinstance(event, TaskCommitted)]
    goals: dict[str, float] = {}
    for commit in commits:
        model = commit.task.split("/")[2]
        if commit.result.metrics["loss"] <= 1 - _GOAL * (1 - math.exp(-6)):
            goals.setdefault(model, commit.time - began)
    if len(goals) != _GOOD:
        raise RuntimeError(f"{len(goals)} of {_GOOD} good models reached their goal: {goals}")
    preempted = sum(
        isinstance(event, TaskFailed) and event.failure.kind is FailureKind.PREEMPTED for event in events
    )
    return _Outcome(statistics.mean(goals.values()), commits[-1].time - began, preempted)


def benchmark() -> list[Figure]:
    """Measure the mean time to the goal and the makespan of each policy."""
    kinds = {
        "preempting": ("promising", True),
        "waiting": ("promising", False),
        "default": (DEFAULT_POLICY, True),
    }
    found: dict[str, list[_Outcome]] = {name: [] for name in kinds}
    for _ in range(_ROUNDS):
        for name, (policy, preempts) in kinds.items():
            found[name].append(_measure(policy, preempts=preempts))
    goal = {name: statistics.mean(one.goal_s for one in all_) for name, all_ in found.items()}
    end = {name: statistics.mean(one.end_s for one in all_) for name, all_ in found.items()}
    preempted = sum(one.preempted for one in found["preempting"])
    return [
        Figure(
            what=f"{_GOOD} good models of {_GOOD + _POOR}, live: time to their goal by {DEFAULT_POLICY} over promising",
            measured=f"{goal['default']:.0f} s, promising {goal['preempting']:.0f} s with {preempted} preemptions",
            ratio=goal["default"] / goal["preempting"],
            bar=1.1,
            sense="at least",
        ),
        Figure(
            what="the same: promising without savepoints, so without preemption, over promising",
            measured=f"{goal['waiting']:.0f} s, with preemption {goal['preempting']:.0f} s",
            ratio=goal["waiting"] / goal["preempting"],
            bar=1.0,
            sense="at least",
        ),
        Figure(
            what=f"the same: makespan by promising over that by {DEFAULT_POLICY}",
            measured=f"{end['preempting']:.0f} s, {DEFAULT_POLICY} {end['default']:.0f} s",
            ratio=end["preempting"] / end["default"],
            bar=1.1,
            sense="at most",
        ),
    ]


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(figure)


if __name__ == "__main__":
    main()
