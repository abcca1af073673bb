"""Rank groups: the processes that train one model together, joined by torch.distributed on one machine.

They find each other by a file in a folder of theirs, so there is no port to race for, and speak over the loopback
interface. A group outlives a unit: joining takes longer than a small unit does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from cerebro.errors import ConflictError
from cerebro.techniques.base import Group

_INTERFACES = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
_LONG_S = 24 * 3600.0


class RankGroup(Group):
    """Made by `join`. A process is in one group at a time: torch knows one *default* group."""

    def __init__(self, rank: int, size: int, device: str, folder: Path | None) -> None:
        self.rank, self.size, self.device, self.devices = rank, size, device, (device,)
        self.folder = folder
        self._mesh: DeviceMesh | None = None

    @classmethod
    def join(
        cls, folder: Path | None, *, rank: int, size: int, device: str, timeout_s: float = _LONG_S
    ) -> RankGroup:
        """Wait for all ranks, and be one of them. A fresh group needs a fresh folder.

        Args:
            folder: private to the group and there already; `None`: this process is alone.
            device: this rank's, such as ``cuda:0`` (of the devices that the process sees) or ``cpu``.
            timeout_s: of each collective call. Longer than a hanging unit is waited for: who ends it is the agent.

        Raises:
            ConflictError: this process is in a group already.
            RuntimeError: of torch: a rank did not come in time, or has gone.
        """
        if dist.is_initialized():
            raise ConflictError("this process is in a rank group already: leave it first")
        kind = torch.device(device).type
        if kind == "cuda":
            torch.cuda.set_device(torch.device(device))
        timeout = timedelta(seconds=timeout_s)
        store = HashStore() if folder is None else FileStore(str(folder / "ranks"), size)
        store.set_timeout(timeout)
        group = cls(rank, size, device, folder)
        with _loopback():
            # gloo beside NCCL: some state lies on the host whatever the device (pytorch#148532).
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo",
                store=store,
                rank=rank,
                world_size=size,
                timeout=timeout,
                device_id=torch.device(device) if kind == "cuda" else None,
            )
            group.barrier()
        return group

    def is_for(self, folder: Path | None, *, rank: int, size: int, device: str) -> bool:
        """Whether it is the group that `join` would make of this, and can be kept."""
        return (self.folder, self.rank, self.size, self.device) == (folder, rank, size, device)

    @property
    def mesh(self) -> DeviceMesh:
        """One dimension over all ranks."""
        if self._mesh is None:
            # The type is always named: torch would take the accelerator it finds (pytorch#132471).
            self._mesh = init_device_mesh(torch.device(self.device).type, (self.size,))
        return self._mesh

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self.summed(0.0)

    def gathered(self, value: Any) -> list[Any]:
        """What each rank gave."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def summed(self, value: float) -> float:
        """The sum over the ranks, in float64."""
        if self.size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64)  # on the host: by gloo
        dist.all_reduce(total)
        return float(total)

    def operations(self) -> int:
        """How many collective operations this rank has begun; the same number as of the others where all keep up. Not
        collective; safe in any thread."""
        world: Any = dist.group.WORLD
        return 0 if world is None else int(world._get_sequence_number_for_group())

    def leave(self) -> None:
        """Let go of the other ranks."""
        self._mesh = None
        if dist.is_initialized():
            dist.destroy_process_group()


class Alone(Group):
    """One process that uses all devices of the unit: a group of one, which nobody is waited for."""

    def __init__(self, devices: tuple[str, ...]) -> None:
        self.device, self.devices = devices[0], devices
        self._ranks: RankGroup | None = None

    @property
    def mesh(self) -> DeviceMesh:
        """Of this process alone; torch's group for it is made when it is first asked for."""
        if self._ranks is None:
            self._ranks = RankGroup.join(None, rank=0, size=1, device=self.device)
        return self._ranks.mesh

    def barrier(self) -> None:
        """Nobody else is to come."""

    def gathered(self, value: Any) -> list[Any]:
        """The value."""
        return [value]

    def summed(self, value: float) -> float:
        """The value."""
        return value

    def leave(self) -> None:
        """Let go of torch's group, if there is one."""
        if self._ranks is not None:
            self._ranks.leave()
            self._ranks = None


@contextmanager
def _loopback() -> Iterator[None]:
    """Have gloo and NCCL, which look at it once, speak over the loopback interface; user code may need another."""
    before = {name: os.environ.get(name) for name in _INTERFACES}
    os.environ.update(_INTERFACES)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
