"""Rank groups: processes that train one model together by torch.distributed.

`model_hopper.rank_setup` and `trial_runner.handler` join a group for a task, as do `repetition` and `conformance` in
`cerebro.worker.training.ranks`. The agent starts the processes; this module only connects them. Ranks on one machine
meet through a file in a private folder, which needs no free port, and communicate over the loopback interface. A group
lasts for one task. Ranks of several workers form a *wide* group: they meet at a free port and use the interface with
their worker's address. Their traffic is not authenticated.
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
    """A group that `join` returns. A process is in one group at a time, because torch has one default group."""

    def __init__(self, rank: int, size: int, device: str, *, is_of_several_workers: bool = False) -> None:
        self.rank, self.size, self.device, self.devices = rank, size, device, (device,)
        self.is_of_several_workers = is_of_several_workers
        self._mesh: DeviceMesh | None = None

    @classmethod
    def join(
        cls, folder: Path | None, *, rank: int, size: int, device: str, timeout_s: float = _LONG_S
    ) -> RankGroup:
        """Join a group and wait for all ranks. A new group needs a new folder.

        Args:
            folder: existing folder, private to the group; `None` for a single process.
            rank: number of this process, from 0.
            size: number of ranks.
            device: device of this rank, such as `cuda:0` (of the process's visible devices) or `cpu`.
            timeout_s: timeout of each collective call. It exceeds the agent's limit for hangs, because the agent ends
                hanging sub-epochs.

        Raises:
            ConflictError: this process is already in a group.
            StorageFullError: the folder's volume is full.
            RuntimeError: from torch: a rank did not join in time, or died.
        """
        timeout = timedelta(seconds=timeout_s)

        def store() -> Store:
            new_store = HashStore() if folder is None else FileStore(str(folder / "ranks"), size)
            new_store.set_timeout(timeout)
            return new_store

        with _full_volume_named(folder):
            return cls(rank, size, device)._meet(store, "lo", timeout)

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
        """Join a group of ranks on several workers, as `join` does.

        torch does not authenticate connections; the cluster's network policies must keep others away.

        Args:
            address: address of this rank's worker, as other workers reach it.
            say_where: on rank 0, publishes the `HOST:PORT` of the group.
            hear_where: on other ranks, waits for this `HOST:PORT`.

        Raises:
            ConflictError, RuntimeError: as `join`.
            ValueError: no interface of this machine has the address.
        """
        timeout = timedelta(seconds=timeout_s)

        def store() -> Store:
            if rank > 0:
                host, _, port_text = hear_where().rpartition(":")
                return TCPStore(host, int(port_text), size, False, timeout, wait_for_workers=False)
            # Without this, torch listens on all interfaces.
            listener = socket.create_server((address, 0), family=_family(address))
            port = listener.getsockname()[1]
            new_store = TCPStore(
                address,
                port,
                size,
                True,
                timeout,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
            say_where(f"{address}:{port}")
            return new_store

        group = cls(rank, size, device, is_of_several_workers=True)
        return group._meet(store, interface_of(address), timeout)

    def _meet(self, store: Callable[[], Store], interface: str, timeout: timedelta) -> Self:
        """Wait for the other ranks and make the group torch's default.

        Args:
            store: returns the store through which the ranks meet.
            interface: network interface to use.
            timeout: timeout of each collective call.
        """
        if dist.is_initialized():
            raise ConflictError("this process is already in a rank group; leave it first")
        device = torch.device(self.device)
        is_gpu = device.type == "cuda"
        if is_gpu:
            torch.cuda.set_device(device)
        opened_store = store()
        with _interface(interface):
            # Use gloo together with NCCL, because some state is on the host with any device (pytorch#148532).
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if is_gpu else "gloo",
                store=opened_store,
                rank=self.rank,
                world_size=self.size,
                timeout=timeout,
                device_id=device if is_gpu else None,
            )
            self.barrier()
        return self

    def largest(self, value: int) -> int:
        """Return the largest value of all ranks."""
        largest = torch.tensor(value, dtype=torch.int64)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest)

    @property
    def mesh(self) -> DeviceMesh:
        """One-dimensional mesh over all ranks."""
        if self._mesh is None:
            # Always name the type: torch would take the accelerator it finds (pytorch#132471).
            self._mesh = init_device_mesh(torch.device(self.device).type, (self.size,))
        return self._mesh

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.summed(0.0)

    def gathered(self, value: Any) -> list[Any]:
        """Return each rank's value."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def summed(self, value: float) -> float:
        """Return the sum over the ranks, in float64."""
        if self.size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64)  # on the host, by gloo
        dist.all_reduce(total)
        return float(total)

    def operations(self) -> int:
        """Return the number of collective operations that this rank has begun.

        Ranks that keep up have the same number. Not collective, and safe in any thread.
        """
        world: Any = dist.group.WORLD
        return 0 if world is None else int(world._get_sequence_number_for_group())

    def leave(self) -> None:
        """Leave the group."""
        self._mesh = None
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def _full_volume_named(folder: Path | None) -> Iterator[None]:
    """Raise StorageFullError for a full volume, which torch reports as a failed store."""
    try:
        yield
    except RuntimeError as error:
        error_text = next((text for text in _FULL if text in str(error)), None)
        if error_text is None or folder is None:
            raise
        raise StorageFullError(
            f"no space to write in {folder}, the rendezvous folder of the ranks: {error_text}. "
            "Free space on this volume"
        ) from error


class Alone(Group):
    """A group of one process that uses all devices of the sub-epoch."""

    def __init__(self, devices: tuple[str, ...]) -> None:
        self.device, self.devices = devices[0], devices
        self._ranks: RankGroup | None = None

    @property
    def mesh(self) -> DeviceMesh:
        """Mesh of this process; torch's group is created on first use."""
        if self._ranks is None:
            self._ranks = RankGroup.join(None, rank=0, size=1, device=self.device)
        return self._ranks.mesh

    def barrier(self) -> None:
        """Return at once."""

    def gathered(self, value: Any) -> list[Any]:
        """Return the value in a list."""
        return [value]

    def summed(self, value: float) -> float:
        """Return the value."""
        return value

    def leave(self) -> None:
        """Leave torch's group if it exists."""
        if self._ranks is not None:
            self._ranks.leave()
            self._ranks = None


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def interface_of(address: str) -> str:
    """Return the name of this machine's interface with an address.

    Raises:
        ValueError: no interface has the address.
    """
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return str(name)
    raise ValueError(
        f"no interface of this machine has the address {address}. Set CEREBRO_ADDRESS to an address of this machine "
        "that other workers reach"
    )


@contextmanager
def _interface(name: str) -> Iterator[None]:
    """Make gloo and NCCL use an interface, without changing the environment of user code.

    Both read the variables once.
    """
    original = {variable: os.environ.get(variable) for variable in _INTERFACES}
    os.environ.update(dict.fromkeys(_INTERFACES, name))
    try:
        yield
    finally:
        for variable, value in original.items():
            if value is None:
                del os.environ[variable]
            else:
                os.environ[variable] = value
