"""Mistakes in the steps are reported with the method, the value and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from cerebro import Ratio, StepSpec
from cerebro.errors import MetricError, NonFiniteMetricError, SpecError
from cerebro.usercode.checks import check_training_spec, defining_method
from tests.steps.training import Hopping, Steps

Sgd = torch.optim.SGD


def spec_with(**members: Any) -> Steps:
    """Return a `Steps` with these methods replaced."""
    spec: Steps = type("Mine", (Steps,), members)()
    return spec


def loss_of(models: list[Any], batch: Any) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(models[0](batch[0]), batch[1])


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda self, m, b, h: None, r"training_step\(\) returned None, expected the loss, a tensor"),
        (
            lambda self, m, b, h: loss_of(m, b).item(),
            r"training_step\(\) returned a float, expected the loss",
        ),
        (lambda self, m, b, h: {"accuracy": 1.0}, r"a dict without 'loss' \(accuracy\), expected the loss"),
        (lambda self, m, b, h: {"loss": 1.0}, r"training_step\(\) returned a float, expected the loss"),
        (lambda self, m, b, h: m[0](b[0]), r"a loss of shape \(8, 3\), expected one element: take its mean"),
        (lambda self, m, b, h: loss_of(m, b).detach(), r"a loss that needs no gradient: compute it from the"),
    ],
)
def test_a_wrong_loss_is_reported(step: Callable[..., Any], message: str, partitions: list[Path]) -> None:
    with pytest.raises(SpecError, match=message):
        Hopping(spec_with(training_step=step), partitions).train()


class Empty:
    """Neither an optimizer nor a scheduler."""


def of_another(models: list[Any]) -> Any:
    return torch.optim.lr_scheduler.ConstantLR(Sgd(models[0].parameters()))


@pytest.mark.parametrize(
    ("configure", "message"),
    [
        (lambda m: None, r"configure_optimizers\(\) returned a NoneType, expected an optimizer"),
        (lambda m: Sgd, r"configure_optimizers\(\) returned a SGD, expected an optimizer"),
        (lambda m: [], r"returned 0 objects \(\), expected an optimizer"),
        (lambda m: [Sgd(m[0].parameters())] * 2, r"2 objects \(SGD, SGD\).*For several optimizers define train\(\)"),
        (lambda m: (Sgd(m[0].parameters()), Empty()), r"returned a Empty as the scheduler, expected"),
        (lambda m: (Sgd(m[0].parameters()), of_another(m)), r"a scheduler of another optimizer: make both together"),
        (
            lambda m: (o := Sgd(m[0].parameters()), torch.optim.lr_scheduler.ReduceLROnPlateau(o)),
            r"a ReduceLROnPlateau, which needs a validation metric.*dataloader\.validation",
        ),
    ],
)  # fmt: skip
def test_wrong_optimizers_are_reported(
    configure: Callable[[Any], Any], message: str, partitions: list[Path]
) -> None:
    spec = spec_with(configure_optimizers=lambda self, models, hyperparams: configure(models))
    with pytest.raises(SpecError, match=message):
        Hopping(spec, partitions).train()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"accumulate": 0}, "the hyperparameter accumulate is 0, expected a whole number of batches from 1"),
        ({"accumulate": 2.0}, "accumulate is 2.0, expected a whole number"),
        ({"clip_norm": 0}, "clip_norm is 0, expected a number above 0, or None"),
        ({"clip_norm": float("nan")}, "clip_norm is nan, expected a number above 0"),
        ({"precision": "16"}, "precision is '16', expected 'float32', 'bf16' or 'fp16'"),
        ({"precision": ["bf16"]}, "precision is .'bf16'., expected 'float32', 'bf16' or 'fp16'"),
        ({"compile": "yes"}, "compile is 'yes', expected True or False"),
        ({"ema": 1}, "ema is 1, expected a decay between 0 and 1"),
    ],
)
def test_wrong_options_are_reported(option: dict[str, Any], message: str, partitions: list[Path]) -> None:
    """As hyperparameters and as attributes of the class."""
    with pytest.raises(SpecError, match=message):
        Hopping(Steps(), partitions, **option).train()
    named = message.replace("the hyperparameter ", r"Mine\.")
    with pytest.raises(SpecError, match=named):
        Hopping(spec_with(**option), partitions).train()


def test_a_hyperparameter_has_precedence_over_the_attribute(partitions: list[Path]) -> None:
    Hopping(spec_with(accumulate=0), partitions, accumulate=1).train()


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (lambda labels: 0.5, r"validation_step\(\) returned a float, expected a dict"),
        (lambda labels: None, r"validation_step\(\) returned None, expected a dict"),
        (lambda labels: {"accuracy": labels[:5]}, r"a Tensor of shape \(5,\) for 'accuracy', expected one value"),
        (lambda labels: {"accuracy": "high"}, r"returned a str for 'accuracy', expected one value"),
        (
            lambda labels: {"accuracy": Ratio(1, 2) if len(labels) == 7 else 0.5},
            r"returned 'accuracy' as a Ratio in some batches only",
        ),
    ],
)  # fmt: skip
def test_wrong_validation_metrics_are_reported(
    metrics: Callable[[Any], Any], message: str, partitions: list[Path]
) -> None:
    spec = spec_with(validation_step=lambda self, models, batch, hyperparams: metrics(batch[1]))
    hopping = Hopping(spec, partitions)
    with pytest.raises((MetricError, SpecError), match=message):
        hopping.evaluate(hopping.trainee(None).state())


def test_a_loss_that_is_no_number_fails_the_model(partitions: list[Path]) -> None:
    def step(self: Any, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        return loss_of(models, batch) * float("nan")

    with pytest.raises(NonFiniteMetricError, match="loss became nan"):
        Hopping(spec_with(training_step=step), partitions).train()


# --- before a run starts ---------------------------------------------------------------------------------


def without(*names: str) -> StepSpec:
    members = {name: each for name, each in vars(Steps).items() if name not in names and "__" not in name}
    spec: StepSpec = type("Mine", (StepSpec,), members)()
    return spec


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (without("training_step"), r"no method 'training_step': define training_step\(self, models, batch"),
        (without("configure_optimizers"), r"no method 'configure_optimizers': define configure_optimizers\(self"),
        (without("create_models"), r"no method 'create_models'"),
        (without("validation_step"), r"no method 'validation_step': define validation_step\(self, models"),
        (spec_with(training_step=lambda self, batch: 1), r"Mine\.training_step cannot be called as workers"),
        (Steps, r"run_fit takes an object: pass Steps\(\) instead of Steps"),
    ],
)  # fmt: skip
def test_missing_steps_are_reported_before_a_run(spec: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_training_spec(spec, "run_fit", has_validation_split=True)


def test_steps_that_are_not_needed_may_be_missing() -> None:
    """A step is not needed without its split, or if its method is overridden."""
    check_training_spec(without("validation_step", "prediction_step"), "run_fit", has_validation_split=False)
    check_training_spec(Steps(), "run_fit", has_validation_split=True)
    tested = without("validation_step")
    type(tested).test = lambda self, models, checkpoint, dataloader, hyperparams: {}  # type: ignore[method-assign]
    check_training_spec(tested, "run_fit", has_validation_split=True)
    assert [defining_method(Steps(), name) for name in ("train", "test", "predict")] == [
        "training_step",
        "validation_step",
        "prediction_step",
    ]
    assert defining_method(tested, "test") == "test"
    assert defining_method(without("prediction_step"), "predict") == ""
