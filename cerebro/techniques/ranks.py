"""Rank groups: the processes that train one model together, joined by torch.distributed on one machine.

They find each other by a file in a folder of theirs, so there is no port to race for, and speak over the loopback
interface. A group outlives a sub-epoch: joining takes longer than a small sub-epoch does. Ranks of several workers, a
*wide* group, find each other at a port that is free, and speak over the interface that their worker is reached by.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, HashStore, Store, TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from cerebro.errors import ConflictError, StorageFullError
from cerebro.techniques.base import Group

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_LONG_S = 24 * 3600.0
_FULL = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT)))


class RankGroup(Group):
    """Made by `join`. A process is in one group at a time: torch knows one *default* group."""

    def __init__(
        self, rank: int, size: int, device: str, folder: Path | None, *, is_of_several_workers: bool = False
    ) -> None:
        self.rank, self.size, self.device, self.devices = rank, size, device, (device,)
        self.folder, self.is_of_several_workers = folder, is_of_several_workers
        self._mesh: DeviceMesh | None = None

    @classmethod
    def join(
        cls, folder: Path | None, *, rank: int, size: int, device: str, timeout_s: float = _LONG_S
    ) -> RankGroup:
        """Wait for all ranks, and be one of them. A fresh group needs a fresh folder.

        Args:
            folder: private to the group and there already; `None`: this process is alone.
            device: this rank's, such as ``cuda:0`` (of the devices that the process sees) or ``cpu``.
            timeout_s: of each collective call. Longer than a hanging sub-epoch is waited for: who ends it is the agent.

        Raises:
            ConflictError: this process is in a group already.
            StorageFullError: there is no room in the folder for what ranks tell each other there.
            RuntimeError: of torch: a rank did not come in time, or has gone.
        """
        timeout = timedelta(seconds=timeout_s)

        def store() -> Store:
            made = HashStore() if folder is None else FileStore(str(folder / "ranks"), size)
            made.set_timeout(timeout)
            return made

        with _full_named(folder):
            return cls(rank, size, device, folder)._met(store, "lo", timeout)

    @classmethod
    def join_several_workers(
        cls,
        address: str,
        *,
        rank: int,
        size: int,
        device: str,
        say_where: Callable[[str], None],
        hear_where: Callable[[], str],
        timeout_s: float = _LONG_S,
    ) -> RankGroup:
        """As `join`, for ranks of several workers. torch makes sure of nobody who connects: the cluster's network
        policies have to keep others away.

        Args:
            address: of this rank's worker, as the others reach it.
            say_where, hear_where: rank 0 says ``HOST:PORT`` where it is to be found, the others wait to hear of it.

        Raises:
            ConflictError, RuntimeError: as `join`.
            ValueError: no interface of this machine has the address.
        """
        timeout = timedelta(seconds=timeout_s)

        def store() -> Store:
            if rank > 0:
                host, _, found = hear_where().rpartition(":")
                return TCPStore(host, int(found), size, False, timeout, wait_for_workers=False)
            # torch by itself listens on all interfaces.
            listener = socket.create_server((address, 0), family=_family(address))
            port = listener.getsockname()[1]
            made = TCPStore(
                address,
                port,
                size,
                True,
                timeout,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
            say_where(f"{address}:{port}")
            return made

        group = cls(rank, size, device, None, is_of_several_workers=True)
        return group._met(store, interface_of(address), timeout)

    def _met(self, store: Callable[[], Store], interface: str, timeout: timedelta) -> Self:
        """Wait for the other ranks; returns the group, which is torch's default from then on.

        Args:
            store: makes or finds what ranks tell each other by.
            interface: that they speak over.
            timeout: of each collective call.
        """
        if dist.is_initialized():
            raise ConflictError("this process is in a rank group already: leave it first")
        device = torch.device(self.device)
        is_gpu = device.type == "cuda"
        if is_gpu:
            torch.cuda.set_device(device)
        found = store()
        with _interface(interface):
            # gloo beside NCCL: some state lies on the host whatever the device (pytorch#148532).
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if is_gpu else "gloo",
                store=found,
                rank=self.rank,
                world_size=self.size,
                timeout=timeout,
                device_id=device if is_gpu else None,
            )
            self.barrier()
        return self

    def largest(self, value: int) -> int:
        """Of what the ranks gave."""
        most = torch.tensor(value, dtype=torch.int64)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        return int(most)

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


@contextmanager
def _full_named(folder: Path | None) -> Iterator[None]:
    """Have a full volume told as such: torch tells it as a store that failed, as if another rank had gone."""
    try:
        yield
    except RuntimeError as error:
        said = next((text for text in _FULL if text in str(error)), None)
        if said is None or folder is None:
            raise
        raise StorageFullError(
            f"no space to write in {folder}, where the ranks meet: {said}. Free space on this volume"
        ) from error


class Alone(Group):
    """One process that uses all devices of the sub-epoch: a group of one, which nobody is waited for."""

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


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def interface_of(address: str) -> str:
    """Name of the interface of this machine with an address.

    Raises:
        ValueError: none has it.
    """
    import psutil

    for name, found in psutil.net_if_addrs().items():
        if any(each.address == address for each in found):
            return str(name)
    raise ValueError(
        f"no interface of this machine has the address {address}: set CEREBRO_ADDRESS to one that it has and that "
        "other workers reach"
    )


@contextmanager
def _interface(name: str) -> Iterator[None]:
    """Have gloo and NCCL, which look at it once, speak over an interface; user code may need another."""
    before = {variable: os.environ.get(variable) for variable in _INTERFACES}
    os.environ.update(dict.fromkeys(_INTERFACES, name))
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                del os.environ[variable]
            else:
                os.environ[variable] = value
