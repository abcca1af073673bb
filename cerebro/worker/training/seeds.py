"""Seeds from what a unit is, so that a unit done again, anywhere, draws the same numbers."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def model_seed(seed: int, model: str) -> int:
    """Seed of a model's initial weights."""
    return _derive(seed, model)


def unit_seed(seed: int, model: str, epoch: int, partition: int) -> int:
    """Seed of one unit: shuffling, dropout, augmentation."""
    return _derive(seed, model, epoch, partition)


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators, on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _derive(*parts: int | str) -> int:
    """63 bits that depend on every part; sums or products of seeds would be correlated."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
