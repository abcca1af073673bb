"""Memory limit of a CPU device, which is a share of a machine's cores.

`model_hopper` and `trial_runner` start counting before they create a model, and `Context.listen` checks the limit at
each batch. GPUs need none: torch raises when their memory is full. A CPU device has no memory of its own, so usage is
counted: the peak resident memory of the process above its resident memory just before the model was created. The kernel
keeps that peak (``VmHWM``, proc(5)); file mappings are not counted. The check runs between batches: unlike on a GPU,
the batch that exceeds the limit completes, and the attempt ends before the next one. ``RLIMIT_DATA`` is unsuitable: it
counts reserved memory such as thread stacks, and libraries that reach it abort as often as they raise.
"""

from __future__ import annotations

import gc
from typing import NoReturn

from cerebro.runtime.usage import memory
from cerebro.runtime.usage.memory import own_resident


class OutOfMemoryError(RuntimeError):
    """Memory use above the device's limit. Named like torch's error for a GPU.

    Attributes:
        peak_gpu_bytes: peak bytes of the attempt.
    """

    def __init__(self, message: str, peak_gpu_bytes: int) -> None:
        super().__init__(message)
        self.peak_gpu_bytes = peak_gpu_bytes


class DeviceMemory:
    """Memory counter of one process, for the thread that executes the task.

    Args:
        limit: bytes; `None` disables counting.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit, self._is_counted = limit, limit is not None
        self._resident_before = self._files_before = self._peak = 0

    @property
    def is_limited(self) -> bool:
        """True if the device has a known memory limit."""
        return self._limit is not None

    def begin(self, *, is_on_host: bool = False) -> None:
        """Start counting before an attempt creates its model. Excludes imports and earlier attempts.

        Args:
            is_on_host: True if the attempt uses no device memory, so nothing is counted.
        """
        self._peak, self._is_counted = 0, self.is_limited and not is_on_host
        if not self._is_counted:
            return
        gc.collect()
        memory.trim_heap()
        if not memory.reset_peak():
            self._limit, self._is_counted = None, False  # this kernel does not count
            return
        self._resident_before, self._files_before = own_resident()

    def count_peak_anew(self) -> None:
        """Reset the peak; memory still in use stays counted."""
        self._peak = 0
        if self._is_counted:
            memory.reset_peak()

    def taken(self) -> int:
        """Return the attempt's peak bytes, or 0 if not counted."""
        if self._is_counted:
            _, files = own_resident()
            grown_files = max(0, files - self._files_before)
            self._peak = max(self._peak, memory.peak_bytes() - self._resident_before - grown_files)
        return self._peak

    def check(self) -> None:
        """Check the limit. Called between batches and after the last.

        Raises:
            OutOfMemoryError: the attempt exceeds the limit.
        """
        if self._limit is not None and self._is_counted and self.taken() > self._limit:
            self._refuse(self._limit)

    def _refuse(self, limit: int) -> NoReturn:
        raise OutOfMemoryError(
            f"the attempt took {self._peak / 2**20:.0f} MiB of its device, which has {limit / 2**20:.0f} MiB "
            "(CEREBRO_DEVICE_MEMORY)",
            self._peak,
        )
