"""Errors that indicate exhausted host or device memory, by type and by library messages.

The task loop classifies failures with `whose_memory`; `model_hopper` and `trial_runner` use it to react to a lack of
memory. A kill by the kernel leaves no exception: the agent's `KernelKills` finds it.
"""

from __future__ import annotations

import errno
import re

from cerebro.contract.parallel_plans import MemoryKind
from cerebro.runtime.tracebacks import line_of, name_of

_OF_DEVICE = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",  # NCCL's own allocation
    "Cuda failure 'out of memory'",
)
"""Messages of exhausted GPU memory from libraries that do not raise `torch.OutOfMemoryError`."""
_OF_HOST = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Cannot allocate memory (12)",  # torch, of a file that it maps
)
"""Messages of exhausted host memory from libraries that do not raise `MemoryError`."""
_OF_ONEDNN = "could not create a primitive"
"""oneDNN's entire message if it gets no memory. Unsupported computations have longer messages."""
_OF_THREADS = frozenset({"Resource temporarily unavailable", "can't start new thread", "std::bad_alloc"})
"""Entire messages of a `RuntimeError` if a thread (as in gloo's rendezvous) or C++ gets no memory.

A limit on threads has the same message; then, too, running less at a time helps.
"""


_REQUEST = re.compile(r"Tried to allocate (\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def refused_bytes(error: BaseException) -> int:
    """Return the size of the request that a GPU had no memory for; 0 if unknown."""
    found = _REQUEST.search(line_of(error))
    return round(float(found[1]) * _UNITS[found[2]]) if found is not None else 0


def whose_memory(error: BaseException) -> MemoryKind | None:
    """Return the kind of memory that ran out; `None` for another error."""
    message = line_of(error)
    if name_of(error) == "OutOfMemoryError" or any(text in message for text in _OF_DEVICE):
        return "device"
    is_of_host = (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and message.removeprefix("RuntimeError: ") in _OF_THREADS)
        or message.endswith(_OF_ONEDNN)
        or any(text in message for text in _OF_HOST)
    )
    return "host" if is_of_host else None
