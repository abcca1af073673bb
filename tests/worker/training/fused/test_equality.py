"""A stack trains each model as separate training does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cerebro.worker.training.metrics import kinds_of, numbers_of
from tests.worker.training.fused.groups import Steps, Training

NETWORKS = ("mlp", "cnn", "lstm", "gru", "rnn", "transformer")
VARIED: tuple[dict[str, Any], ...] = (
    {"lr": 0.01, "weight_decay": 0.0},
    {"lr": 0.003, "weight_decay": 0.1},
    {"lr": 0.02, "weight_decay": 0.01},
)

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"schedule": True},
    {"clip_norm": 0.5},
    {"accumulate": 3, "clip_norm": 0.5},
    {"ema": 0.9},
)


def with_all(**options: Any) -> list[dict[str, Any]]:
    return [{**each, **options} for each in VARIED]


def assert_close(one: Training, other: Training, tolerance: float = 1e-5) -> None:
    """Require equal weights, buffers, optimizers and metrics of all models, relative to the largest element."""
    for found, expected in zip(one.models, other.models, strict=True):
        assert found.error is None
        assert found.warnings == expected.warnings == []
        for here, there in zip(found.metrics, expected.metrics, strict=True):
            assert numbers_of(here) == pytest.approx(numbers_of(there), rel=tolerance, abs=tolerance)
            assert kinds_of(here) == kinds_of(there)
        assert found.state is not None
        assert expected.state is not None
        for name, (left, right) in paired(found.state, expected.state).items():
            scale = max(float(right.abs().max()), 1e-3)
            assert float((left - right).abs().max()) <= tolerance * scale, (found.name, name)


def paired(one: Any, other: Any, path: str = "") -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return the tensors of both states by path; both must have the same structure."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        found: dict[str, Any] = {}
        for key, value in one.items():
            found |= paired(value, other[key], f"{path}/{key}")
        return found
    if isinstance(one, list | tuple):
        assert len(one) == len(other), path
        found = {}
        for number, value in enumerate(one):
            found |= paired(value, other[number], f"{path}/{number}")
        return found
    if isinstance(one, torch.Tensor):
        return {path: (one.double(), other.double())}
    assert one == pytest.approx(other) if isinstance(one, float) else one == other, path
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("network", ["mlp", "cnn", "lstm", "transformer"])
def test_a_stack_equals_separate_training(network: str, partitions: list[Path]) -> None:
    """After an epoch, states have the same structure and equal numbers up to rounding, dropout included."""
    hyperparams = with_all(network=network, optimizer="sgd")
    stacked = Training(Steps(), partitions, hyperparams).stacks([0, 1, 2], sub_epochs=2)
    assert_close(stacked, Training(Steps(), partitions, hyperparams).alone(2))


@pytest.mark.parametrize("network", NETWORKS)
def test_rounding_explains_all_differences(network: str, partitions: list[Path]) -> None:
    """In float64, they are a million times smaller."""
    hyperparams = with_all(network=network, optimizer="sgd", double=True)
    stacked = Training(Steps(), partitions, hyperparams).stacks([0, 1, 2], sub_epochs=2)
    assert_close(stacked, Training(Steps(), partitions, hyperparams).alone(2), 1e-10)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        *(("adamw", options) for options in OPTIONS),
        *(pytest.param("sgd", options, marks=pytest.mark.slow) for options in OPTIONS),
        *(
            pytest.param(kind, {}, marks=pytest.mark.slow)
            for kind in ("adam", "amsgrad", "nesterov", "rmsprop")
        ),
    ],
    ids=str,
)
def test_each_member_has_its_own_optimizer(
    optimizer: str, options: dict[str, Any], partitions: list[Path]
) -> None:
    """Rates, decays, momenta, schedules and clipping differ between members as in separate training."""
    hyperparams = with_all(optimizer=optimizer, double=True, **options)
    hyperparams[0]["momentum"] = 0.0
    stacked = Training(Steps(), partitions, hyperparams).stacks([0, 1, 2])
    assert_close(stacked, Training(Steps(), partitions, hyperparams).alone(), 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("network", ["cnn", "lstm"])
def test_the_other_members_do_not_matter(network: str, partitions: list[Path]) -> None:
    """A member gets the same numbers, with the same dropout masks, in a stack of three, of two and of one."""
    hyperparams = with_all(network=network, double=True)
    three = Training(Steps(), partitions, hyperparams).stacks([0, 1, 2], sub_epochs=2)
    assert_close(three, Training(Steps(), partitions, hyperparams).stacks([2, 0], [1], sub_epochs=2), 1e-10)
