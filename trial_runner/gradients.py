"""Short summaries of gradients, and the difference of two gradients.

`train_observer` summarizes each parameter's gradient; `trial` compares a parallel plan's summaries with a single
device's. A summary has the norm of the gradient and eight signed sums, so a comparison needs no second copy of the
gradient. Each entry adds to one sum with a sign; both depend only on the entry's position and the parameter's name (a
count sketch: Charikar, Chen and Farach-Colton, "Finding frequent items in data streams", 2002, section 3). For
gradients g and h, the squared differences of the sums add up to |g - h|² in expectation. With eight sums the estimate
is rarely far too low.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

SUMS = 8
"""Number of signed sums of a summary."""
_SLICE = 1 << 20
"""Number of entries processed at a time."""
_SMALL = 1e-2
"""Share of the total norm below which a parameter's gradient is compared relative to it.

Such a gradient may be a small sum of large terms, with their rounding errors.
"""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Summary of one parameter's gradient."""

    norm: float
    sums: tuple[float, ...]


Marks = Mapping[str, Mark | None]
"""Parameter name -> summary; `None` for a parameter without a gradient."""


def mark_of(name: str, gradient: torch.Tensor) -> Mark:
    """Summarize a gradient; needs memory for one slice only.

    Args:
        name: name of the parameter, which determines the signs.
        gradient: tensor of any shape.
    """
    flat = gradient.detach().reshape(-1)
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    square, sums = 0.0, torch.zeros(SUMS, dtype=torch.float64)
    for start in range(0, flat.numel(), _SLICE):
        part = flat[start : start + _SLICE].to(torch.float64)
        bits = _mixed(torch.arange(start, start + part.numel(), device=flat.device) + seed)
        signs = ((bits >> 8) & 1) * 2 - 1
        square += float(part.dot(part))
        sums += torch.bincount(bits % SUMS, weights=part * signs, minlength=SUMS).cpu()
    return Mark(norm=math.sqrt(square), sums=tuple(sums.tolist()))


def _mixed(number: torch.Tensor) -> torch.Tensor:
    """Return pseudo-random bits, equal on every device (finalizer of MurmurHash3, in 32 of 64 bits)."""
    mask = 0xFFFFFFFF
    number &= mask
    number = (number ^ (number >> 16)) * 0x85EBCA6B & mask
    number = (number ^ (number >> 13)) * 0xC2B2AE35 & mask
    return number ^ (number >> 16)


def differences(actual: Marks, expected: Marks) -> dict[str, float]:
    """Return the relative difference of each parameter's gradient.

    It is infinite if only one side has the parameter or its gradient.
    """
    total_norm = _norm(expected)
    errors: dict[str, float] = {}
    for name in sorted({*actual, *expected}):
        error = math.inf
        if name in actual and name in expected:
            error = _difference(actual[name], expected[name], total_norm)
        errors[name] = math.inf if math.isnan(error) else error
    return errors


def is_rounding(name: str, marks: Marks) -> bool:
    """Return True if a parameter's gradient may consist of rounding errors only.

    An example is the gradient of a bias before a normalisation layer.
    """
    mark = marks.get(name)
    return mark is not None and mark.norm <= _SMALL * _norm(marks)


def _norm(marks: Marks) -> float:
    return math.sqrt(sum(mark.norm**2 for mark in marks.values() if mark is not None))


def _difference(one: Mark | None, other: Mark | None, total_norm: float) -> float:
    if one is None or other is None:
        return 0.0 if one is other else math.inf
    scale = max(other.norm, _SMALL * total_norm)
    squares = [(a - b) ** 2 for a, b in zip(one.sums, other.sums, strict=True)]
    difference = max(math.sqrt(sum(squares)), abs(one.norm - other.norm))
    return difference / scale if scale else difference and math.inf
