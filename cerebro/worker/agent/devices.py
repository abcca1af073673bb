"""The devices of a worker, and what a task that takes some of them may use.

A device is a GPU, or on a machine without GPUs a share of the worker's cores. User code sees the GPUs of its own
devices and no others, whatever it asks torch for, and computes with their share of the threads. So attempts side by
side meet neither in a GPU's memory nor on a core, and bits do not depend on what runs beside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cerebro.contract.records import MAX_DEVICES, Device
from cerebro.errors import ClusterError
from cerebro.runtime.usage.gpus import Gpu


@dataclass(frozen=True, kw_only=True)
class Share:
    """What one task may use.

    Attributes:
        devices: of the worker; none for a task that needs no device.
        threads: to compute with.
        visible_gpus: ``CUDA_VISIBLE_DEVICES``; `None`: as the worker itself has it.
        memory_bytes: of the devices together, where they are shares of cores that were told to have so much.
    """

    devices: tuple[int, ...] = (0,)
    threads: int
    visible_gpus: str | None = None
    memory_bytes: int | None = None


class WorkerDevices:
    """What a worker has to compute with, numbered from 0.

    Args:
        cores: of the worker.
        wanted: how many devices; `None`: all GPUs, or one where there are none.
        gpus: that the worker may use.
        memory_bytes: that a share of cores is to have; `None`: as much as there is. A GPU has its own.

    Attributes:
        devices: as they are registered.
        gpus: names of those that are devices.

    Raises:
        ClusterError: there are not as many.
    """

    def __init__(
        self,
        cores: int,
        wanted: int | None = None,
        gpus: Sequence[Gpu] = (),
        memory_bytes: int | None = None,
    ) -> None:
        most, of_what = (len(gpus), "GPUs") if gpus else (cores, "cores")
        number = wanted or (len(gpus) or 1)
        if number > min(most, MAX_DEVICES):
            raise ClusterError(
                f"CEREBRO_DEVICES is {number}, but this worker has {most} {of_what}: set at most "
                f"{min(most, MAX_DEVICES)}, or leave it out"
            )
        self._cores, self._gpus = cores, tuple(gpus[:number])
        self.gpus = tuple(gpu.name for gpu in self._gpus)
        threads = max(1, cores // number)
        if gpus:
            self.devices = tuple(
                Device(kind="gpu", name=gpu.name, memory_bytes=gpu.memory_bytes, threads=threads)
                for gpu in self._gpus
            )
        else:
            name = f"{threads} core{'s' if threads > 1 else ''}"
            device = Device(kind="cpu", name=name, threads=threads, memory_bytes=memory_bytes)
            self.devices = (device,) * number

    def share(self, devices: tuple[int, ...]) -> Share:
        """What a task of these devices may use. One of none has all cores, and no GPU.

        Raises:
            LookupError: there is no such device.
        """
        if devices and devices[-1] >= len(self.devices):
            raise LookupError(f"device {devices[-1]} is asked for, but this worker has {len(self.devices)}")
        threads = sum(self.devices[number].threads for number in devices) if devices else self._cores
        visible = ",".join(self._gpus[number].uuid for number in devices) if self._gpus else None
        memory = None if self._gpus else sum(self.devices[number].memory_bytes or 0 for number in devices)
        return Share(devices=devices, threads=threads, visible_gpus=visible, memory_bytes=memory or None)
