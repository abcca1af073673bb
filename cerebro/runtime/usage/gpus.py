"""NVIDIA's GPUs through the library of their driver (NVML). The only importer of `pynvml`.

The agent lists GPUs at its start (`worker.agent.__main__`), `meter` measures them, and `machine_checks` asks for
problems. It never changes a GPU. Other vendors' GPUs are not found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cerebro.contract.records import GpuUsage


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU, or a part of one (MIG)."""

    name: str
    uuid: str
    """Identity of the GPU in ``CUDA_VISIBLE_DEVICES``, independent of the order of CUDA and the driver."""
    memory_bytes: int | None


_SLOWING = {0x8: "hardware slowdown", 0x40: "heat", 0x80: "the power brake"}
"""Bit of nvmlClocksThrottleReasons -> reason why a GPU with work is slowed down."""


@dataclass(frozen=True, kw_only=True)
class GpuProblem:
    """A problem of a GPU, reported by its driver.

    Attributes:
        is_broken: True if its results are wrong or missing; False if only people need to know.
    """

    text: str
    is_broken: bool


class Gpus:
    """The GPUs that this process may use, from NVIDIA's driver; no GPUs without a driver.

    Args:
        visible: ``CUDA_VISIBLE_DEVICES``; `None` for all. Numbers count in the driver's order.
        library: NVML; another one for tests.

    Attributes:
        found: the GPUs, in the order of `visible`.
    """

    def __init__(self, visible: str | None = None, library: Any = None) -> None:
        self._nvml = library or _nvml()
        self._handles: list[Any] = []
        self.found: tuple[Gpu, ...] = ()
        if self._nvml is None:
            return
        try:
            self._nvml.nvmlInit()
            self._handles = list(self._open(visible))
            self.found = tuple(map(self._gpu, self._handles))
        except self._nvml.NVMLError:  # no driver, or it does not answer
            self._handles = []

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the GPUs, such as their model."""
        return tuple(gpu.name for gpu in self.found)

    def used_share(self, number: int) -> float | None:
        """Return the fraction of recent time that a GPU computed; `None` if unknown."""
        return self._used_share(self._handles[number]) if number < len(self._handles) else None

    def measure(self) -> tuple[GpuUsage, ...]:
        """Measure each GPU, except GPUs that fell off the bus."""
        return tuple(self._measure())

    def problems(self, expected: int) -> tuple[GpuProblem, ...]:
        """Return the problems of the GPUs.

        Args:
            expected: expected number of GPUs.
        """
        if self._nvml is None:
            return ()
        found = [
            each
            for name, handle in zip(self.names, self._handles, strict=True)
            for each in self._of(name, handle)
        ]
        if len(self._handles) < expected:
            message = f"{expected} GPUs were registered, the driver tells of {len(self._handles)}"
            found.append(GpuProblem(text=message, is_broken=True))
        return tuple(found)

    def _of(self, name: str, handle: Any) -> Iterator[GpuProblem]:
        nvml = self._nvml
        try:
            nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError as error:
            yield GpuProblem(text=f"{name} does not answer: {error}", is_broken=True)
            return
        with suppress(nvml.NVMLError, AttributeError):  # older GPUs, or parts of one, remap no rows
            _, _, is_pending, has_failed = nvml.nvmlDeviceGetRemappedRows(handle)
            if has_failed:
                yield GpuProblem(text=f"{name} could not remap a broken row of its memory", is_broken=True)
            elif is_pending:
                yield GpuProblem(
                    text=f"{name} remaps a broken row of its memory at its next reset", is_broken=True
                )
        with suppress(nvml.NVMLError, AttributeError):
            count = nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            )
            if count:
                text = (
                    f"{name} has had {count} uncorrectable errors of its memory since its driver was loaded"
                )
                yield GpuProblem(text=text, is_broken=False)
        with suppress(nvml.NVMLError, AttributeError):
            reasons = int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
            if slow := [why for bit, why in _SLOWING.items() if reasons & bit]:
                yield GpuProblem(text=f"{name} is slowed down by {', '.join(slow)}", is_broken=False)

    def _measure(self) -> Iterator[GpuUsage]:
        for name, handle in zip(self.names, self._handles, strict=True):
            try:
                memory = self._memory(handle)
            except self._nvml.NVMLError:
                continue
            yield GpuUsage(
                name=name,
                used_share=self._used_share(handle),
                memory_bytes=int(memory.used),
                memory_total_bytes=int(memory.total),
            )

    def _memory(self, handle: Any) -> Any:
        """Return used and total bytes. Drivers before 510 count memory that the driver reserves as used."""
        with suppress(self._nvml.NVMLError, AttributeError):
            return self._nvml.nvmlDeviceGetMemoryInfo(handle, version=self._nvml.nvmlMemory_v2)
        return self._nvml.nvmlDeviceGetMemoryInfo(handle)

    def _used_share(self, handle: Any) -> float | None:
        try:
            return float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100
        except self._nvml.NVMLError:  # a part of a GPU (MIG) has no counter
            return None

    def _gpu(self, handle: Any) -> Gpu:
        try:
            memory = int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total)
        except self._nvml.NVMLError:
            memory = None
        return Gpu(
            name=_text(self._nvml.nvmlDeviceGetName(handle)),
            uuid=_text(self._nvml.nvmlDeviceGetUUID(handle)),
            memory_bytes=memory,
        )

    def _open(self, visible: str | None) -> Iterator[Any]:
        """Yield the handles of the visible GPUs. As in CUDA, the list ends at the first invalid entry."""
        count = self._nvml.nvmlDeviceGetCount()
        wanted = [str(i) for i in range(count)] if visible is None else visible.split(",")
        for entry in map(str.strip, wanted):
            if entry.isdecimal() and int(entry) < count:
                yield self._nvml.nvmlDeviceGetHandleByIndex(int(entry))
            elif entry.startswith(("GPU-", "MIG-")):
                yield self._nvml.nvmlDeviceGetHandleByUUID(entry)
            else:
                return


def _text(found: object) -> str:
    """Return text; older versions of the library return bytes."""
    return found.decode() if isinstance(found, bytes) else str(found)


def _nvml() -> Any:
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return None
    return pynvml
