"""A node check passes on a healthy machine and names faults."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from cerebro.errors import DeviceError
from cerebro.worker.training import node_check
from cerebro.worker.training.sub_epoch import default_device, require_gpu

CPU = torch.device("cpu")


@pytest.mark.slow
def test_a_healthy_machine_passes(tmp_path: Path) -> None:
    """Each probe runs or gives a reason, and the volumes are unchanged."""
    held = tmp_path / "datasets" / "d" / "train" / "partition-0000"
    held.mkdir(parents=True)
    (held / "shard.arrow").write_bytes(b"x" * 5000)
    found = list(node_check.probes(tmp_path, tmp_path, expects_gpu=False))
    assert [probe.name.split(" of ")[0] for probe in found][-5:] == [
        "arithmetic", "memory", "processor", "partition", "checkpoint volume",
    ]  # fmt: skip
    assert [probe.problem for probe in found] == [""] * len(found)
    assert all(probe.seconds is not None for probe in found)
    assert found[0].rate
    assert [path.name for path in tmp_path.iterdir()] == ["datasets"]


def test_arithmetic_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry of a product is off by one."""
    right = torch.Tensor.__matmul__

    def wrong(left: Any, other: Any) -> Any:
        product = right(left, other)
        product[3, 5] += 1
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", wrong)
    assert node_check.arithmetic(CPU, 0.0) == "1 of 1024 rows of a product of whole numbers came out wrong"


def test_a_memory_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word has a stuck bit."""
    full = torch.full

    def stuck(*arguments: Any, **options: Any) -> Any:
        words = full(*arguments, **options)
        words[7] |= 1 << 33
        return words

    monkeypatch.setattr(torch, "full", stuck)
    assert node_check.memory(CPU, 1 << 10).startswith("1 of 128 words")


def test_a_full_volume_is_no_fault_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write error is the machine's fault."""

    def failing(number: int) -> Any:
        def fails(*_: Any) -> None:
            raise OSError(number, "no")

        return fails

    monkeypatch.setattr("os.fsync", failing(errno.ENOSPC))
    probe = node_check._probe("checkpoint volume", lambda: node_check.volume(tmp_path, 1 << 20))
    assert (probe.problem, probe.seconds) == ("", None)
    assert "full" in probe.note
    monkeypatch.setattr("os.fsync", failing(errno.EIO))
    probe = node_check._probe("checkpoint volume", lambda: node_check.volume(tmp_path, 1 << 20))
    assert "OSError" in probe.problem
    assert list(tmp_path.iterdir()) == []


def test_a_lost_gpu_is_not_replaced_by_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds without CUDA and processes without a GPU are not checked."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert default_device() == CPU
    with pytest.raises(DeviceError, match="registered a GPU"):
        require_gpu(default_device())
    require_gpu(torch.device("cuda"))
    monkeypatch.setattr(torch.version, "cuda", None)
    require_gpu(default_device())


def test_registered_gpus_that_torch_does_not_find_fail_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check fails before any computation."""
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    first = next(iter(node_check.probes(tmp_path, tmp_path, expects_gpu=True)))
    assert first.problem == "the worker registered GPUs, but torch finds none"
