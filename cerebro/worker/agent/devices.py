"""A worker's devices, and the resources of a task that uses some.

The agent creates one `WorkerDevices` at its start and registers its devices; `execution` asks for the `Share` of a
task. The controller decides which devices a task gets. A device is a GPU or, on a machine without GPUs, a share of the
worker's cores. User code sees only its own GPUs and computes with their share of threads. So concurrent attempts share
neither GPU memory nor cores, and results are bit-for-bit independent of other attempts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cerebro.contract.records import MAX_DEVICES, Device
from cerebro.errors import ClusterError
from cerebro.runtime.usage.gpus import Gpu


@dataclass(frozen=True, kw_only=True)
class Share:
    """Resources of one task.

    Attributes:
        devices: the worker's device numbers; () for a task that needs no device.
        threads: number of compute threads.
        visible_gpus: value of ``CUDA_VISIBLE_DEVICES``; `None` keeps the worker's.
        memory_bytes: memory limit of the devices together, if they are CPU devices with a limit.
    """

    devices: tuple[int, ...] = (0,)
    threads: int
    visible_gpus: str | None = None
    memory_bytes: int | None = None


class WorkerDevices:
    """A worker's devices, numbered from 0.

    Args:
        cores: the worker's cores.
        wanted: number of devices; `None` means all GPUs, or one CPU device without GPUs.
        gpus: GPUs that the worker may use.
        memory_bytes: limit of a CPU device; `None` for no limit. Ignored for GPUs.

    Attributes:
        devices: devices as registered.
        gpus: names of the GPUs among them.

    Raises:
        ClusterError: the machine has fewer devices.
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
        """Return the resources of a task on these devices. Without devices: all cores and no GPU.

        Raises:
            LookupError: a device does not exist.
        """
        if devices and devices[-1] >= len(self.devices):
            raise LookupError(f"device {devices[-1]} is asked for, but this worker has {len(self.devices)}")
        threads = sum(self.devices[number].threads for number in devices) if devices else self._cores
        visible = ",".join(self._gpus[number].uuid for number in devices) if self._gpus else None
        memory = None if self._gpus else sum(self.devices[number].memory_bytes or 0 for number in devices)
        return Share(devices=devices, threads=threads, visible_gpus=visible, memory_bytes=memory or None)
