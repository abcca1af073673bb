"""Options of a `StepSpec`'s loop: read from the class and the hyperparameters, and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cerebro.errors import SpecError
from cerebro.steps.spec import StepSpec

PRECISIONS = ("float32", "bf16", "fp16")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Checked options; see `StepSpec`."""

    accumulate: int
    clip_norm: float | None
    precision: Literal["float32", "bf16", "fp16"]
    compile: bool
    ema: float | None


def options_of(spec: StepSpec, hyperparams: Mapping[str, Any]) -> Options:
    """Return the options of one model.

    Raises:
        SpecError: an option has an invalid value.
    """
    values = {name: hyperparams.get(name, getattr(spec, name)) for name in Options.__dataclass_fields__}
    for name, (is_valid, expected) in _CHECKS.items():
        if not is_valid(values[name]):
            where = "the hyperparameter" if name in hyperparams else f"{type(spec).__name__}."
            raise SpecError(
                f"{where}{' ' if name in hyperparams else ''}{name} is {values[name]!r}, expected {expected}"
            )
    return Options(**values)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


_CHECKS: Mapping[str, tuple[Any, str]] = {
    "accumulate": (lambda value: type(value) is int and value > 0, "a whole number of batches from 1"),
    "clip_norm": (
        lambda value: value is None or (_is_number(value) and value > 0),
        "a number above 0, or None for no clipping",
    ),
    "precision": (lambda value: value in PRECISIONS, "'float32', 'bf16' or 'fp16'"),
    "compile": (lambda value: isinstance(value, bool), "True or False"),
    "ema": (
        lambda value: value is None or (_is_number(value) and 0 < value < 1),
        "a decay between 0 and 1, such as 0.999, or None for no average",
    ),
}
