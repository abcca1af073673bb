"""Checkpoints round-trip bit-identically, damage is detected, and a failed save keeps the old file."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.data.files import durable
from cerebro.data.files.checkpoint_files import outdated
from cerebro.errors import CheckpointCorruptError, StorageFullError, VolumeError
from cerebro.runtime.isolation.process_exit import fork
from cerebro.runtime.volumes import checkpoint_file
from cerebro.worker.training.checkpoints.checkpoint import State, load, save
from cerebro.worker.training.checkpoints.storable import state_bytes

CPU = torch.device("cpu")


def state(seed: int = 0) -> State:
    """Return the state of two modules and an optimizer after one step."""
    torch.manual_seed(seed)
    modules = [torch.nn.Linear(3, 4), torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))]
    optimizer = torch.optim.Adam([p for module in modules for p in module.parameters()])
    inputs = torch.randn(8, 3)
    for module in modules:
        inputs = module(inputs)
    torch.autograd.backward(inputs.sum())
    optimizer.step()
    kept = {
        "optimizer": optimizer.state_dict(),
        "step": 3,
        "losses": [0.5, 1.5],
        "name": "ü",
        "rng": torch.get_rng_state(),
    }
    return {"models": [module.state_dict() for module in modules], "checkpoint": kept}


def assert_equal(one: Any, other: Any) -> None:
    """Check that values are bit-identical in the same structure."""
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for first, second in zip(one, other, strict=True):
            assert_equal(first, second)
    else:
        assert one == other


def test_a_state_is_restored_bit_identically(tmp_path: Path) -> None:
    """Covers buffers, parameters, optimizer state, numbers, strings and a generator's state."""
    given = state()
    (tmp_path / "one/fit-1/m00").mkdir(parents=True)
    reference = save(tmp_path, "one/fit-1/m00/u0.pt", given)
    assert_equal(load(tmp_path, reference, CPU), given)
    assert reference.size == (tmp_path / reference.name).stat().st_size


def test_scalars_on_the_host_stay_there(tmp_path: Path) -> None:
    """Adam's step would otherwise be copied from the GPU at each step; other tensors move to the device."""
    reference = save(tmp_path, "u0.pt", state())
    found = load(tmp_path, reference, torch.device("meta"))  # in place of a GPU
    for saved in found["checkpoint"]["optimizer"]["state"].values():
        assert saved["step"].item() == 1
        assert saved["exp_avg"].is_meta or saved["exp_avg"].numel() == 1
    assert all(each.is_meta for saved in found["models"] for each in saved.values())


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.bool, torch.complex64]
)
def test_every_dtype_is_restored(tmp_path: Path, dtype: torch.dtype) -> None:
    """Covers scalars, empty tensors and views."""
    tensor = torch.arange(12).reshape(3, 4).to(dtype)
    given: State = {
        "models": [{"w": tensor, "part": tensor[1:, ::2]}],
        "checkpoint": {"one": tensor[0, 0], "none": tensor[:0]},
    }
    assert_equal(load(tmp_path, save(tmp_path, "u0.pt", given), CPU), given)


def test_the_same_state_has_the_same_bytes(tmp_path: Path) -> None:
    """A repeated sub-epoch must recreate the lost checkpoint."""
    first, second = save(tmp_path, "a.pt", state()), save(tmp_path, "b.pt", state())
    assert (first.checksum, first.size) == (second.checksum, second.size)
    assert save(tmp_path, "c.pt", state(seed=1)).checksum != first.checksum


def test_any_damaged_byte_is_found(tmp_path: Path) -> None:
    """Covers the start, the end and a hundred positions in between."""
    reference = save(tmp_path, "u0.pt", state())
    path = tmp_path / "u0.pt"
    whole = path.read_bytes()
    for place in {*range(0, len(whole), max(1, len(whole) // 100)), len(whole) - 1}:
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        with pytest.raises(CheckpointCorruptError, match=r"u0\.pt has checksum"):
            load(tmp_path, reference, CPU)
    path.write_bytes(whole)
    assert_equal(load(tmp_path, reference, CPU), state())


# --- crashes -----------------------------------------------------------------------------------------


def _die_while_saving(folder: Path, name: str, writes: int) -> None:
    """Save in a child process that exits at a later write, or at the flush."""
    write, left = durable.DurableFile.write, [writes]

    def dying(self: durable.DurableFile, data: Any) -> int:
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)
        return write(self, data)

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(durable.DurableFile, "write", dying)
        if writes > 1000:
            patches.setattr(os, "fsync", lambda descriptor: os._exit(9))
        save(folder, name, {"models": [{"w": torch.ones(1000)}], "checkpoint": {}})


@pytest.mark.parametrize("writes", [5, 9999])
@pytest.mark.commands
def test_a_process_that_dies_while_saving_keeps_the_previous_file(tmp_path: Path, writes: int) -> None:
    """Covers a crash between writes and before the flush; a temporary file remains."""
    first = checkpoint_file(sub_epoch=0, epoch=1, partition=0, attempt=1)
    reference = save(tmp_path, first, state())
    child = fork()
    if not child:
        try:
            _die_while_saving(tmp_path, first, writes)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert_equal(load(tmp_path, reference, CPU), state())
    assert len(list(tmp_path.iterdir())) == 2
    for leftover in outdated(tmp_path, 1, {first}):
        leftover.unlink()
    assert [path.name for path in tmp_path.iterdir()] == [first]


def test_a_deleted_folder_is_not_recreated(tmp_path: Path) -> None:
    """A revoked attempt may finish after its experiment was deleted, or after the volume was unmounted."""
    with pytest.raises(VolumeError, match="one/fit-1/m00") as raised:
        save(tmp_path, "one/fit-1/m00/u1.pt", state())
    assert raised.value.path == str(tmp_path / "one/fit-1/m00")
    assert list(tmp_path.iterdir()) == []


def test_a_volume_that_is_not_mounted_loses_no_checkpoint(tmp_path: Path) -> None:
    """The error is the volume's, so no sub-epoch is undone. One missing file is a lost checkpoint."""
    folder = tmp_path / "one/fit-1/m00"
    folder.mkdir(parents=True)
    reference = save(tmp_path, "one/fit-1/m00/u1.pt", state())
    (tmp_path / "one").rename(tmp_path / "unmounted")
    with pytest.raises(VolumeError, match="mounted") as raised:
        load(tmp_path, reference, CPU)
    assert raised.value.path == str(tmp_path / "one/fit-1")
    (tmp_path / "unmounted").rename(tmp_path / "one")
    assert_equal(load(tmp_path, reference, CPU), state())
    (tmp_path / reference.name).unlink()
    with pytest.raises(CheckpointCorruptError, match=r"u1\.pt"):
        load(tmp_path, reference, CPU)


def test_a_full_volume_keeps_the_previous_file_and_reports_the_needed_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partial file is removed, and the reported size is enough for the state."""
    reference = save(tmp_path, "u0.pt", state())

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    large: State = {"models": [{"w": torch.zeros(1 << 20)}], "checkpoint": {}}
    with pytest.raises(StorageFullError) as caught:
        save(tmp_path, "u1.pt", large)
    assert getattr(caught.value, "needs_bytes", 0) >= state_bytes(large) == 4 << 20
    assert [path.name for path in tmp_path.iterdir()] == ["u0.pt"]
    assert_equal(load(tmp_path, reference, CPU), state())


# --- content -----------------------------------------------------------------------------------------


def test_a_checkpoint_can_hold_no_code(tmp_path: Path) -> None:
    """A forged file with a valid checksum is not executed."""

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "executed",))

    path = tmp_path / "evil.pt"
    torch.save({"models": [], "checkpoint": {"x": Evil()}}, path)
    found = durable.checksum(path)
    reference = CheckpointRef(name="evil.pt", checksum=found.checksum, size=found.num_bytes)
    with pytest.raises(Exception, match=r"[Ww]eights.?only"):
        load(tmp_path, reference, CPU)
    assert not (tmp_path / "executed").exists()


PATCHED = """
import numpy, torch

def broken(*arguments, **options):
    raise RuntimeError("user code has replaced this")

torch.save = torch.load = torch.serialization.save = torch.serialization.load = broken
numpy.save = numpy.load = numpy.savez = json.dumps = json.loads = broken
"""


@pytest.mark.slow
@pytest.mark.processes
def test_functions_replaced_by_user_code_write_no_checkpoint(tmp_path: Path) -> None:
    """User code that patches `torch.save` affects no other model.

    Runs in a child process, to protect the test process.
    """
    script = f"""
import json, sys
from pathlib import Path
import torch
from cerebro.worker.protocol.channel import Channel
from cerebro.worker.protocol.messages import FROM_CHILD, TO_CHILD, Ready
from cerebro.worker.training.checkpoints import checkpoint
import socket
{PATCHED}
state = {{"models": [{{"w": torch.arange(4.0)}}], "checkpoint": {{"step": 3}}}}
reference = checkpoint.save(Path(sys.argv[1]), "one.pt", state)
read = checkpoint.load(Path(sys.argv[1]), reference, "cpu")
assert read["models"][0]["w"].tolist() == [0.0, 1.0, 2.0, 3.0], read
assert checkpoint._load is not torch.load
ours, theirs = socket.socketpair()
Channel(ours, TO_CHILD).send(Ready())
assert Channel(theirs, FROM_CHILD).receive() == Ready()
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "name", ["../../run/token", "/etc/passwd", "a/../b", "", "a//b", "a/./b", "a\nb", ".."]
)
def test_a_reference_cannot_leave_the_volume(name: str) -> None:
    """A child process may forge the reference."""
    with pytest.raises(ValidationError):
        CheckpointRef(name=name, checksum="-", size=1)
