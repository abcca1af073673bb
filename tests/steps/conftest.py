"""Partitions for step specs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.steps.training import write_partitions


@pytest.fixture(scope="session")
def partitions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of two partitions of pictures."""
    return write_partitions(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(autouse=True)
def _light(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Skip fsync and use one thread: the tests write many files, and models are small."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
