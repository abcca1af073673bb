"""What a gradient is, in few numbers, and how far two of them are apart.

Of each parameter's gradient its norm is kept, and eight sums: each entry is in one of them, with a sign, both drawn
from its place and the parameter's name, the same everywhere (a count sketch: Charikar, Chen and Farach-Colton, "Finding
frequent items in data streams", 2002, section 3). Of two gradients g and h, the squares of the differences of these
sums add up to |g - h|² on average over the draws. With eight it is very seldom far below that.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

SUMS = 8
_SLICE = 1 << 20
"""Entries that are looked at at once."""
_SMALL = 1e-2
"""Of the norm of the whole gradient. What is smaller is compared relative to that: what it is the sum of may be as
large as the others, and rounding errors with it."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Of the gradient of one parameter."""

    norm: float
    sums: tuple[float, ...]


Marks = Mapping[str, Mark | None]
"""Parameter -> its gradient; `None`: it has none."""


def mark_of(name: str, gradient: torch.Tensor) -> Mark:
    """What is kept of a gradient; takes memory for a slice of it.

    Args:
        name: of the parameter: each has signs of its own.
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
    """Bits that look random, the same on every device (the finalizer of MurmurHash3, in 32 bits of 64)."""
    mask = 0xFFFFFFFF
    number &= mask
    number = (number ^ (number >> 16)) * 0x85EBCA6B & mask
    number = (number ^ (number >> 13)) * 0xC2B2AE35 & mask
    return number ^ (number >> 16)


def differences(found: Marks, expected: Marks) -> dict[str, float]:
    """Of each parameter the relative difference of its gradient; infinite where one has a gradient and the other has
    none, or is not there."""
    whole = _norm(expected)
    errors: dict[str, float] = {}
    for name in sorted({*found, *expected}):
        error = math.inf
        if name in found and name in expected:
            error = _apart(found[name], expected[name], whole)
        errors[name] = math.inf if math.isnan(error) else error
    return errors


def is_rounding(name: str, of: Marks) -> bool:
    """Whether a parameter's gradient is so small beside the others that it may be rounding alone, as that of a bias
    before a normalisation is."""
    mark = of.get(name)
    return mark is not None and mark.norm <= _SMALL * _norm(of)


def _norm(marks: Marks) -> float:
    """Of the whole gradient."""
    return math.sqrt(sum(mark.norm**2 for mark in marks.values() if mark is not None))


def _apart(one: Mark | None, other: Mark | None, whole: float) -> float:
    if one is None or other is None:
        return 0.0 if one is other else math.inf
    scale = max(other.norm, _SMALL * whole)
    squares = [(a - b) ** 2 for a, b in zip(one.sums, other.sums, strict=True)]
    apart = max(math.sqrt(sum(squares)), abs(one.norm - other.norm))
    return apart / scale if scale else apart and math.inf
