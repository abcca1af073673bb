"""The memory of a device that is a share of a machine's cores: so many bytes as its worker was told.

It has none of its own, so what an attempt takes is counted: by how much the resident memory of its process exceeded at
its peak what was resident when the attempt began to make its model. The kernel keeps that peak (``VmHWM``, proc(5)),
and what is mapped from files is not counted. It is looked at between batches. So nothing is refused in the middle of a
computation, as a GPU does: the batch that takes too much is computed, and its attempt ends before the next one.

Not by ``RLIMIT_DATA``: that limit counts what is reserved, such as stacks of threads, and libraries that meet it end
the process as often as they raise an error.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import NoReturn

from cerebro.runtime.usage import memory
from cerebro.runtime.usage.memory import own_resident


class OutOfMemoryError(RuntimeError):
    """An attempt took more than its device has; named like torch's, which is told of a GPU.

    Attributes:
        peak_gpu_bytes: that it took.
    """

    def __init__(self, message: str, peak_gpu_bytes: int) -> None:
        super().__init__(message)
        self.peak_gpu_bytes = peak_gpu_bytes


class DeviceMemory:
    """What one process may take for its attempt. Used by the thread that does the task.

    Args:
        limit: bytes; `None`: nothing is counted.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit, self._is_counted = limit, limit is not None
        self._before = self._files = self._peak = 0

    @property
    def is_limited(self) -> bool:
        """Whether the device has less memory than the host, as far as was told."""
        return self._limit is not None

    def begin(self, *, is_on_host: bool = False) -> None:
        """The model of an attempt is made next: count from here. What earlier attempts left behind, and what was
        imported, is not the attempt's.

        Args:
            is_on_host: it takes nothing of the device, so nothing is counted.
        """
        self._peak, self._is_counted = 0, self.is_limited and not is_on_host
        if not self._is_counted:
            return
        gc.collect()
        with suppress(AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)
        if not memory.reset_peak():
            self._limit, self._is_counted = None, False  # the kernel does not count
            return
        self._before, self._files = own_resident()

    def count_peak_anew(self) -> None:
        """What the attempt has stays counted; what it had at most until now does not."""
        self._peak = 0
        if self._is_counted:
            memory.reset_peak()

    def taken(self) -> int:
        """The most bytes that the attempt had at once until now; 0 where nothing is counted."""
        if self._is_counted:
            _, files = own_resident()
            self._peak = max(self._peak, memory.peak_bytes() - self._before - max(0, files - self._files))
        return self._peak

    def check(self) -> None:
        """Called between batches, and after the last.

        Raises:
            OutOfMemoryError: the attempt has taken more than there is.
        """
        if self._limit is not None and self._is_counted and self.taken() > self._limit:
            self._refuse(self._limit)

    def _refuse(self, limit: int) -> NoReturn:
        raise OutOfMemoryError(
            f"the attempt took {self._peak / 2**20:.0f} MiB of its device, which has {limit / 2**20:.0f} MiB "
            "(CEREBRO_DEVICE_MEMORY)",
            self._peak,
        )
