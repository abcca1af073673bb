"""Ranks share the reading of a checkpoint and detect damage as if each had read it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.data.files import durable
from cerebro.errors import CheckpointCorruptError
from cerebro.techniques import Group
from cerebro.worker.training.checkpoints import joint_read as reading
from cerebro.worker.training.checkpoints import verified_file as checking
from cerebro.worker.training.checkpoints.checkpoint import State, check, load, save
from cerebro.worker.training.checkpoints.joint_read import Unchecked, load_together, read_together
from tests.techniques.cases import distance
from tests.techniques.ranks import Ranks
from tests.techniques.test_sharded import MIB

NAME = "u0.pt"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture
def reference(root: Path) -> CheckpointRef:
    """The reference of an 18 MB file whose blocks do not divide evenly."""
    state: State = {
        "models": [{"w": torch.arange(4_000_000.0).reshape(4000, 1000), "few": torch.ones(3)}],
        "checkpoint": {"m": torch.rand(500_000), "n": 3},
        "hyperparams": {},
        "made": {},
    }
    return save(root, NAME, state)


def found(
    group: Group, root: Path, reference: CheckpointRef, has_memory: bool, is_checked: bool
) -> tuple[State, int]:
    """Load the state on a rank; return it with the number of bytes read."""
    source = check(root, reference) if is_checked else Unchecked(root / reference.name, reference)
    count = 0

    def counted(file: Any, buffer: memoryview) -> memoryview:
        nonlocal count
        filled = durable.fill(file, buffer)
        count += len(filled)
        return filled

    def refused(*args: Any) -> int:
        raise PermissionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checking, "fill", counted)
        patch.setattr(reading, "fill", counted)
        if not has_memory:
            patch.setattr(os, "memfd_create", refused)
        state = read_together(source, group, "cpu")
    group.barrier()
    state["models"][0]["w"][0, 0] = group.rank + 7  # a different value per rank
    group.barrier()
    assert state["models"][0]["w"][0, 0] == group.rank + 7
    state["models"][0]["w"][0, 0] = 0.0
    return state, count


@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize(("size", "has_memory"), [(3, True), (2, False)])
def test_each_rank_reads_its_share_and_has_the_whole_state(
    size: int, has_memory: bool, is_checked: bool, root: Path, reference: CheckpointRef, ranks: Ranks
) -> None:
    """States are bit-identical, with or without a previous check.

    Without shared memory each rank reads the whole file.
    """
    expected_state = load(root, reference, "cpu")
    answers = ranks.run(size, found, root, reference, has_memory, is_checked)
    assert all(distance(state, expected_state) == 0 for state, _ in answers)
    counts = [count for _, count in answers]
    if has_memory:
        assert sum(counts) == reference.size
        assert max(counts) - min(counts) <= 2 * durable.BLOCK_BYTES
    else:
        assert min(counts) >= reference.size


def noticed(group: Group, root: Path, reference: CheckpointRef) -> str:
    """Return a rank's error for a file that was damaged after its check."""
    checked = check(root, reference)
    group.barrier()
    if group.rank == 0:
        with (root / NAME).open("r+b") as file:
            file.seek(17 * MIB)
            file.write(b"\xff" * 9)
    group.barrier()
    try:
        read_together(checked, group, "cpu")
    except CheckpointCorruptError as error:
        return str(error)
    return ""


def test_all_ranks_report_damage_after_the_check(root: Path, reference: CheckpointRef, ranks: Ranks) -> None:
    """This includes ranks that did not read the damaged block."""
    for says in ranks.run(2, noticed, root, reference):
        assert "was damaged between bytes" in says


def error_of_rank(group: Group, root: Path, reference: CheckpointRef) -> str:
    """Return a rank's error for an unchecked file."""
    try:
        load_together(lambda: Unchecked(root / reference.name, reference), group, "cpu")
    except CheckpointCorruptError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("place", [5, 9 * MIB, 17 * MIB, None])
def test_all_ranks_report_a_damaged_or_missing_checkpoint(
    place: int | None, root: Path, reference: CheckpointRef, ranks: Ranks
) -> None:
    """Any rank may have read the damaged block or noticed missing ones."""
    with (root / NAME).open("r+b") as file:
        if place is None:
            file.truncate(10 * MIB)
        else:
            file.seek(place)
            file.write(b"\xff" * 9)
    for says in ranks.run(2, error_of_rank, root, reference):
        assert f"expected {reference.checksum}" in says
    (root / NAME).unlink()
    for says in ranks.run(2, error_of_rank, root, reference):
        assert "cannot be read" in says
