"""Whatever ways a model is trained by, one unit after another: it is the model that one device trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.contract.ways import SINGLE, Way
from tests.data.rows import write_partition
from tests.techniques.cases import Case, chain, content, distance, threads
from tests.techniques.ranks import Ranks


@pytest.fixture(scope="session")
def partition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """46 rows: batches of 8 leave 6, of 9 leave 1."""
    folder = tmp_path_factory.mktemp("partition")
    write_partition(folder, [20, 26])
    return folder


@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_unit_by_ddp(model: str, size: int, partition: Path, tmp_path: Path, ranks: Ranks) -> None:
    """It is the unit of one device, with batches that its ranks cannot share evenly."""
    case = Case(model=model, batch_size=9, clip=1.0)
    with threads(1):
        expected, metrics = chain([None, None], case, partition, tmp_path, ranks)
        found, same = chain([Way(technique="ddp", size=size), SINGLE], case, partition, tmp_path, ranks)
    assert distance(content(tmp_path, found), content(tmp_path, expected)) < 1e-10
    assert distance(same[1], metrics[1]) < 1e-10
