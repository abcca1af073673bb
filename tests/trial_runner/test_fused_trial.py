"""Trials of stacks: verified gradients, times per model, refusals; and groups of models for stacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from cerebro import StepSpec
from cerebro.contract.parallel_plans import ParallelPlan, TechniqueChoice
from cerebro.contract.trials import TrialOutcome
from cerebro.errors import NotApplicableError
from cerebro.runtime.volumes import Volumes
from cerebro.spec import SubEpochSpec
from tests.trial_runner.test_handler import Trained, handler_of, inspection, trial
from tests.worker.training.handlers import volumes_in, write_split

FUSED = ParallelPlan(technique="fused", params={"models": 4}, processes="one")


class Steps(StepSpec):
    """A small network with dropout and clipping; `wrong` reads a number of a tensor."""

    clip_norm = 0.01
    wrong = False

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        rate = hyperparams.get("dropout", 0.3)
        return [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(rate), nn.Linear(4, 2))]

    def training_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        loss = functional.cross_entropy(models[0](batch[0]), batch[1])
        return loss * (1.0 if not self.wrong else loss.item())

    def configure_optimizers(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Any:
        return torch.optim.Adam(models[0].parameters(), lr=hyperparams.get("lr", 0.01))


class WrongSteps(Steps):
    """Cannot be stacked."""

    wrong = True


@pytest.fixture
def volumes(tmp_path: Path) -> Volumes:
    roots = volumes_in(tmp_path)
    write_split(roots, "train", 1)
    return roots


def outcome_of(spec: SubEpochSpec, volumes: Volumes) -> TrialOutcome:
    with handler_of(spec, volumes) as handler:
        found = handler.handle(trial(FUSED), 1).trial
    assert found is not None
    return found


def test_a_stack_has_the_gradient_of_one_device(volumes: Volumes) -> None:
    """The trial compares the gradient, although the spec clips and drops, and measures one model's time."""
    found = outcome_of(Steps(), volumes)
    assert found.is_usable, found.reason
    assert found.is_verified
    assert found.error is not None
    assert found.error < 1e-5
    assert found.state_bytes > 0
    assert not [path for path in volumes.checkpoints.rglob("*") if path.is_file()]


@pytest.mark.parametrize(("spec", "reason"), [(WrongSteps(), r"item\(\)"), (Trained(), "use a StepSpec")])
def test_what_cannot_be_stacked_is_ruled_out(spec: SubEpochSpec, reason: str, volumes: Volumes) -> None:
    """The failure has the reason, which the controller records against the plan."""
    with pytest.raises(NotApplicableError, match=reason):
        outcome_of(spec, volumes)


def groups(spec: SubEpochSpec, models: Mapping[str, dict[str, Any]], volumes: Volumes, *names: str) -> Any:
    choices = tuple(TechniqueChoice(name=name) for name in names) or None
    body = inspection().model_copy(update={"models": dict(models), "techniques": choices})
    with handler_of(spec, volumes) as handler:
        found = handler.handle(body, 1).inspection
    assert found is not None
    return found.groups


MODELS: dict[str, dict[str, Any]] = {
    "m00": {"batch_size": 4, "lr": 0.1, "dropout": 0.1},
    "m01": {"batch_size": 4, "lr": 0.2, "dropout": 0.1},
    "m02": {"batch_size": 4, "lr": 0.2, "dropout": 0.5},
    "m03": {"batch_size": 4, "lr": 0.3, "dropout": 0.1},
}


def test_groups_for_stacks_have_equal_settings(volumes: Volumes) -> None:
    """Models with another rate of dropout are in another group, but only if stacks are wanted."""
    assert [each.models for each in groups(Steps(), MODELS, volumes, "single", "fused")] == [
        ("m00", "m01", "m03"),
        ("m02",),
    ]
    assert [each.models for each in groups(Steps(), MODELS, volumes)] == [("m00", "m01", "m02", "m03")]


def test_a_model_without_others_alike_is_not_stacked(volumes: Volumes) -> None:
    """The plan applies to groups of several models, and has the reason for others."""
    many, alone = groups(Steps(), MODELS, volumes, "fused")
    assert [(each.parallel_plan.params, each.reason) for each in many.parallel_plans] == [
        ({"models": 16}, "")
    ]
    assert [each.reason for each in alone.parallel_plans] == [
        "no other model of the run has the same modules and batch size"
    ]
    (own_loop,) = groups(Trained(), {"m00": {"batch_size": 4}}, volumes, "fused")
    assert all("use a StepSpec" in each.reason for each in own_loop.parallel_plans)
