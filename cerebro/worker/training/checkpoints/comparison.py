"""Compare two states of a model bit for bit.

`cerebro replay` compares a replayed state with a checkpoint, and `model_hopper.verification` a re-executed sub-epoch
with the committed one. Only replays may use a tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import itemgetter

import torch
import xxhash

from cerebro.worker.training.checkpoints.checkpoint import State


def differences(one: object, other: object, where: str = "state", *, tolerance: float = 0.0) -> Iterator[str]:
    """List differences of two states in shapes, dtypes, values and types, bit for bit.

    With a tolerance, tensors may differ by that fraction of their norm, and numbers by that fraction.
    """
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        # Compare bits rather than values, so that -0.0 and NaN are exact.
        same = one.dtype == other.dtype and one.shape == other.shape
        if not same or not (torch.equal(_bits(one), _bits(other)) or _is_close(one, other, tolerance)):
            yield where
    elif isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from differences(one.get(key), other.get(key), f"{where}[{key!r}]", tolerance=tolerance)
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for position, (first, second) in enumerate(zip(one, other, strict=True)):
            yield from differences(first, second, f"{where}[{position}]", tolerance=tolerance)
    elif isinstance(one, float) and isinstance(other, float) and tolerance:
        if not math.isclose(one, other, rel_tol=tolerance):
            yield where
    elif type(one) is not type(other) or _text(one) != _text(other):
        yield where


def digest(state: object) -> str:
    """Return 16 hexadecimal digits that are equal for states without `differences`."""
    found = xxhash.xxh3_64()
    for part in _parts(state):
        found.update(part)
    return found.hexdigest()


def trained(state: State) -> State:
    """Return the trained part of a state, without the hyperparameters."""
    return {name: state[name] for name in ("models", "checkpoint")}


def _parts(value: object) -> Iterator[bytes | memoryview]:
    """Yield a state's content as bytes, with a prefix for each item."""
    if isinstance(value, torch.Tensor):
        yield f"tensor {value.dtype} {tuple(value.shape)}".encode()
        yield _bits(value).numpy().data
    elif isinstance(value, dict):
        yield f"dict {len(value)}".encode()
        # Sorted, because the order of insertion does not matter.
        for name, part in sorted(((repr(name), part) for name, part in value.items()), key=itemgetter(0)):
            yield name.encode()
            yield from _parts(part)
    elif isinstance(value, list | tuple):
        yield f"list {len(value)}".encode()
        for part in value:
            yield from _parts(part)
    else:
        yield f"{type(value).__name__} {_text(value)}".encode()


def _text(value: object) -> str:
    """Return equal texts for equal plain values. Processes iterate over equal sets in different orders."""
    return repr(sorted(map(repr, value)) if isinstance(value, set) else value)


def _is_close(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> bool:
    if not tolerance or not one.is_floating_point():
        return False
    first, second = (each.detach().cpu().double() for each in (one, other))
    return bool((first - second).norm() <= tolerance * first.norm())


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
