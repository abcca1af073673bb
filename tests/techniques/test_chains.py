"""Whatever ways a model is trained by, one unit after another: it is the model that one device trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cerebro.contract.ways import SINGLE, Way
from tests.techniques.cases import Case, chain, content, distance, threads
from tests.techniques.ranks import Ranks


def way(technique: str, size: int = 1, **params: Any) -> Way:
    return Way(technique=technique, size=size, params=params)


SHARED = [
    way("ddp", 2),
    way("ddp", 3),
    way("fsdp", 2),
    way("fsdp", 3),
    way("fsdp", 2, reshard=False, checkpointing=True),
    way("tensor", 2),
    way("pipeline", 2),
    way("pipeline", 3, parts=4, checkpointing=True),
]
ONLY = {"tensor": ["gpt"], "pipeline": ["mlp"]}
"""Technique -> the models that it can train, if not all."""
EXACT = [SINGLE, way("checkpointing"), way("offload"), way("offload", checkpointing=True, activations=True)]


@pytest.mark.parametrize(
    ("chosen", "model"),
    [(way, model) for way in SHARED for model in ONLY.get(way.technique, ["mlp", "cnn", "gpt"])],
    ids=lambda each: each.label if isinstance(each, Way) else each,
)
def test_a_unit_on_several_devices(
    model: str, chosen: Way, partition: Path, tmp_path: Path, ranks: Ranks
) -> None:
    """It is the unit of one device, with batches that ranks cannot share evenly, and so is the unit that follows."""
    case = Case(model=model, batch_size=9, clip=1.0, average=True, tracked=model != "cnn")
    with threads(1):
        expected, metrics = chain([None, None, None], case, partition, tmp_path, ranks)
        found, same = chain([SINGLE, chosen, SINGLE], case, partition, tmp_path, ranks)
    assert distance(content(tmp_path, found), content(tmp_path, expected)) < 1e-10
    assert distance(same[2], metrics[2]) < 1e-10
    assert found.size == expected.size


@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt"])
@pytest.mark.parametrize("chosen", EXACT, ids=lambda each: each.label)
def test_a_unit_on_one_device(model: str, chosen: Way, partition: Path, tmp_path: Path, ranks: Ranks) -> None:
    """Its file is the one that it has without a way, to the bit."""
    case = Case(model=model, batch_size=9, clip=1.0, average=True, dtype="float32")
    with threads(1):
        expected, _ = chain([None, None], case, partition, tmp_path, ranks)
        found, _ = chain([chosen, chosen], case, partition, tmp_path, ranks)
    assert distance(content(tmp_path, found), content(tmp_path, expected)) == 0
    assert found.checksum == expected.checksum
