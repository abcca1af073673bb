"""Partitions for stacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.worker.training.fused.groups import write_partitions


@pytest.fixture(scope="session")
def partitions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of two partitions of pictures."""
    return write_partitions(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
