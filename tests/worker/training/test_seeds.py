"""Seeding gives torch's own numbers, without the stack traces that `torch.manual_seed` formats for devices."""

from __future__ import annotations

import random
import traceback

import numpy as np
import pytest
import torch

from cerebro.worker.training.seeds import has_cpu_only, seed_everything

SEED = 2**62 + 3


def test_a_seed_determines_the_numbers_of_each_library(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(SEED)
    expected = torch.rand(3)
    if has_cpu_only():
        monkeypatch.setattr(
            traceback, "format_stack", lambda: pytest.fail("a stack trace for devices that aren't there")
        )
    seed_everything(SEED)
    assert torch.equal(torch.rand(3), expected)
    assert torch.initial_seed() == SEED
    assert random.random() == random.Random(SEED).random()
    assert np.random.rand() == np.random.RandomState(SEED % 2**32).rand()
