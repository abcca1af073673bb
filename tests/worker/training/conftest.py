"""Fixtures with a partition and settings for many small sub-epochs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from cerebro.data.mapped import MappedRows
from tests.data.rows import write_partition


@pytest.fixture(scope="module")
def light() -> Iterator[None]:
    """Skip fsync and use one thread, because tests write hundreds of files and models are small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> MappedRows:
    """A partition of 46 rows."""
    folder = tmp_path_factory.mktemp("partition")
    write_partition(folder, [20, 26])
    return MappedRows.open((folder,))
