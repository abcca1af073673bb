"""Random numbers of sub-epochs: seeds, and states of generators to save and restore.

Every caller that trains or evaluates seeds with this module. Seeds follow from a sub-epoch's identity, so that a
re-execution anywhere draws the same numbers. Savepoints hold the states of the generators
(`cerebro.worker.training.checkpoints.savepoints`). Generators that user code makes itself are not covered.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from cerebro.worker.training.checkpoints.comparison import differences


def model_seed(seed: int, model: str) -> int:
    """Return the seed of a model's initial weights."""
    return _derive(seed, model)


def sub_epoch_seed(seed: int, model: str, epoch: int, partition: int) -> int:
    """Return the seed of one sub-epoch: dropout, augmentation."""
    return _derive(seed, model, epoch, partition)


def order_seed(seed: int, model: str, epoch: int, partition: int, *, is_shared: bool) -> int:
    """Return the seed of the order of a sub-epoch's batches.

    Args:
        is_shared: see `FitRequest.has_shared_order`.
    """
    if is_shared:
        return _derive(seed, "batches", epoch, partition)
    return sub_epoch_seed(seed, model, epoch, partition)


def rank_seed(seed: int, rank: int) -> int:
    """Return the seed of one rank's device for a sub-epoch's seed."""
    return _derive(seed, "rank", rank)


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators, on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if has_cpu_only():
        # torch.manual_seed() also formats a stack trace per kind of device, which makes a new process read source
        # files.
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def has_cpu_only() -> bool:
    """True if torch was built only for CPUs and no plug-in added a device. Initializes no driver."""
    is_cpu_build = torch.version.cuda is None and torch.version.hip is None and not torch.xpu._is_compiled()
    return is_cpu_build and torch.accelerator.current_accelerator() is None


def generator_states() -> dict[str, Any]:
    """Return the state of Python's, NumPy's and torch's generators on all devices, in storable types."""
    version, words, gauss = random.getstate()
    name, key, position, has_gauss, cached = np.random.get_state(legacy=True)
    assert isinstance(key, np.ndarray)
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, torch.from_numpy(key.astype(np.int64)), int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if _uses_gpu() else [],
    }


def restore_generator_states(state: Mapping[str, Any]) -> None:
    """Restore the state of all generators."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, key, *rest = state["numpy"]
    np.random.set_state((name, key.cpu().numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"].cpu())
    # Restore only devices that exist: a sub-epoch may continue without GPUs, though not bit for bit.
    for device, generator in zip(range(torch.cuda.device_count()), state["cuda"], strict=False):
        torch.cuda.set_rng_state(generator.cpu(), device)


def has_drawn(seed: int) -> bool:
    """True if random numbers were drawn since `seed_everything(seed)`."""
    now = generator_states()
    seed_everything(seed)
    seeded = generator_states()
    restore_generator_states(now)
    return any(differences(now, seeded))


def _uses_gpu() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch has no types here


def _derive(*parts: int | str) -> int:
    """Return 63 bits of a hash of all parts. (Sums or products of seeds would be correlated.)"""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
