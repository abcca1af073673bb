"""Ranks with parts of a model share one frozen-weights file across parallel plans."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.data.files.base_file import is_base
from cerebro.errors import StorageFullError, VolumeError
from cerebro.spec import SubEpochSpec
from cerebro.techniques import Group, resolve
from cerebro.worker.training.checkpoints import frozen as freezing
from cerebro.worker.training.checkpoints.checkpoint import check, load, read, save
from cerebro.worker.training.ranks.grouped import prepare
from cerebro.worker.training.sub_epoch import restore
from cerebro.worker.training.trainee import Trainee
from tests.techniques.cases import distance
from tests.techniques.ranks import Ranks

WIDTH = 150
"""A row count that two ranks divide evenly and four do not."""
TENSOR = 4 * WIDTH * WIDTH
FSDP, DDP = (ParallelPlan(technique=name, size=2) for name in ("fsdp", "ddp"))
THREE, SINGLE = ParallelPlan(technique="fsdp", size=3), None


class Spec(SubEpochSpec):
    """A spec of which only the hints are used."""

    def create_models(self, hyperparams: Any) -> list[Any]:
        return [network()]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        raise NotImplementedError


def network() -> nn.Sequential:
    """Four layers; three are frozen, and two of the frozen ones share a weight."""
    torch.manual_seed(5)
    module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    module[1].weight = module[0].weight
    for layer in list(module)[:3]:
        layer.requires_grad_(False)
    return module


def sub_epoch(
    group: Group | None,
    parallel_plan: ParallelPlan | None,
    root: Path,
    written: str,
    before: CheckpointRef | None,
    changes: str,
) -> tuple[CheckpointRef | None, str]:
    """Run a sub-epoch: change the trained weights, and the frozen layer `changes` if named."""
    freezing.LEAST_BYTES, freezing._LEAST_TENSOR = TENSOR, TENSOR
    trainee = Trainee(modules=[network()])
    if before is not None:
        restore(trainee, read(check(root, before), "cpu"))
    if group is not None and parallel_plan is not None:
        trainee = prepare(Spec(), trainee, resolve(parallel_plan), parallel_plan.params, group)
    trainee.frozen.is_wanted = True
    (module,) = trainee.modules
    with torch.no_grad():
        module[3].weight.mul_(0.5)  # type: ignore[index]
        if changes:
            module.get_submodule(changes).weight.data.mul_(1.5)  # type: ignore[operator]
    try:
        reference = trainee.save(root, written)
    except (OSError, StorageFullError, VolumeError) as error:
        return None, f"{error}, {getattr(error, 'needs_bytes', 0)}"
    state = trainee.state()
    if trainee.rank == 0:
        plain = save(root, "plain", state)
        assert reference is not None
        assert (plain.checksum, plain.size) == (reference.checksum, reference.size)
        (root / "plain").unlink()
    return reference, ""


def attempt(parallel_plan: ParallelPlan | None, ranks: Ranks, *args: Any) -> CheckpointRef:
    """Run one sub-epoch in as many processes as its plan needs."""
    reference = (
        ranks.run(parallel_plan.size, sub_epoch, parallel_plan, *args)[0]
        if parallel_plan
        else sub_epoch(None, None, *args)
    )[0]
    assert reference is not None
    return reference


def bases(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if is_base(path.name)]


@pytest.fixture(autouse=True)
def _as_before() -> Any:
    before = freezing.LEAST_BYTES, freezing._LEAST_TENSOR
    yield
    freezing.LEAST_BYTES, freezing._LEAST_TENSOR = before


@pytest.mark.parametrize(
    "parallel_plans",
    [(FSDP, SINGLE, THREE, DDP, FSDP), (SINGLE, FSDP, DDP), (DDP, SINGLE, FSDP), (THREE, FSDP)],
)
def test_parallel_plans_share_one_frozen_weights_file(
    parallel_plans: Any, tmp_path: Path, ranks: Ranks
) -> None:
    """No temporary file remains."""
    before = None
    for number, parallel_plan in enumerate(parallel_plans):
        before = attempt(parallel_plan, ranks, tmp_path, f"u{number:05d}-e001-p0000-a1.pt", before, "")
        assert (tmp_path / before.name).stat().st_size < 2 * TENSOR
    (base,) = bases(tmp_path)
    assert (
        2 * TENSOR <= (tmp_path / base).stat().st_size < 2 * TENSOR + 64
    )  # tensors start at multiples of 64 bytes
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize("parallel_plan", [FSDP, DDP])
def test_frozen_weights_changed_by_ranks_are_saved_with_the_checkpoint(
    parallel_plan: ParallelPlan, tmp_path: Path, ranks: Ranks
) -> None:
    """User code changes `.data`, which torch's version counters do not record."""
    before = attempt(parallel_plan, ranks, tmp_path, "u0.pt", None, "")
    after = attempt(parallel_plan, ranks, tmp_path, "u1.pt", before, "2")
    one, other = (load(tmp_path, each, "cpu") for each in (before, after))
    assert torch.equal(other["models"][0]["2.weight"], one["models"][0]["2.weight"] * 1.5)
    assert distance({"w": one["models"][0]["0.weight"]}, {"w": other["models"][0]["0.weight"]}) == 0
    assert len(bases(tmp_path)) == 1
    assert (tmp_path / after.name).stat().st_size > 2 * TENSOR


def test_a_damaged_frozen_weights_file_prevents_a_checkpoint(tmp_path: Path, ranks: Ranks) -> None:
    """Rank 0 hashes the whole file and compares it with the recorded checksum."""
    before = attempt(FSDP, ranks, tmp_path, "u0.pt", None, "")
    answers = ranks.run(2, saved_on_damage, tmp_path, before)
    assert "was damaged after it was written" in answers[0]
    assert not (tmp_path / "u1.pt").exists()


def saved_on_damage(group: Group, root: Path, before: CheckpointRef) -> str:
    """Return the error if the frozen-weights file is damaged between reading and saving."""
    freezing.LEAST_BYTES, freezing._LEAST_TENSOR = TENSOR, TENSOR
    plain = Trainee(modules=[network()])
    restore(plain, read(check(root, before), "cpu"))
    trainee = prepare(Spec(), plain, resolve(FSDP), {}, group)
    trainee.frozen.is_wanted = True
    group.barrier()
    if group.rank == 0:
        with (root / bases(root)[0]).open("r+b") as file:
            file.seek(1000)
            file.write(b"damaged")
    group.barrier()
    try:
        trainee.save(root, "u1.pt")
    except Exception as error:  # noqa: BLE001 - it is the answer
        return str(error)
    return ""


def by_machines(group: Group, opens: bool, *args: Any) -> tuple[CheckpointRef | None, str]:
    """Run a sub-epoch by ranks on several machines, where only rank 0 may see a new file."""
    group.is_of_several_workers = True
    with pytest.MonkeyPatch.context() as patch:
        if group.rank > 0 and not opens:
            patch.setattr(Path, "open", refused)
        return sub_epoch(group, *args)


@pytest.mark.parametrize(("parallel_plan", "num_bases"), [(DDP, 1), (FSDP, 0)])
def test_ranks_on_several_machines_write_no_joint_frozen_weights_file(
    parallel_plan: ParallelPlan, num_bases: int, tmp_path: Path, ranks: Ranks
) -> None:
    """Network volumes may show new files late, so rank 0 writes only tensors that it has in full."""
    reference, frozen_file = ranks.run(2, by_machines, False, parallel_plan, tmp_path, "u0.pt", None, "")[0]
    assert (reference is not None, frozen_file) == (True, "")
    assert len(bases(tmp_path)) == num_bases


def refused(*args: Any) -> int:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def full(*args: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def failing(group: Group, root: Path, rank: int, pwrite: Any) -> str:
    """Return a rank's error if one rank cannot write its rows of a frozen-weights file."""
    with pytest.MonkeyPatch.context() as patch:
        if group.rank == rank:
            patch.setattr("os.pwrite", pwrite)
        return sub_epoch(group, FSDP, root, "u0.pt", None, "")[1]


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_report_a_failed_write_of_frozen_weights(rank: int, tmp_path: Path, ranks: Ranks) -> None:
    """No partial file remains. On a full volume each rank's error has the space needed by the next attempt."""
    assert all("Input/output error" in message for message in ranks.run(2, failing, tmp_path, rank, refused))
    for message in ranks.run(2, failing, tmp_path, rank, full):
        assert message.startswith("no space to write in")
        assert int(message.rpartition(", ")[2]) > (1 << 20) + 2 * 3 * TENSOR
    assert list(tmp_path.iterdir()) == []
