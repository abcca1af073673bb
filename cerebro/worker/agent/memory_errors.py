"""Which errors tell that memory ran out, and whose: by type, and by what the libraries below torch say."""

from __future__ import annotations

import errno

from cerebro.contract.parallel_plans import MemoryPlace
from cerebro.runtime.tracebacks import line_of, name_of

_OF_DEVICE = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "Cuda failure 2 'out of memory'",  # NCCL's own allocation
    "Cuda failure 'out of memory'",
)
"""What is said of lack of memory of a GPU by those that raise no `torch.OutOfMemoryError`."""
_OF_HOST = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Cannot allocate memory (12)",  # torch, of a file that it maps
)
"""And of the machine by those that raise no `MemoryError`."""
_OF_ONEDNN = "could not create a primitive"
"""All that oneDNN says when it gets no memory for its code or its buffers. What it cannot compute it says with more
words."""
_OF_THREADS = frozenset({"Resource temporarily unavailable", "can't start new thread", "std::bad_alloc"})
"""All that a `RuntimeError` says where torch or Python gets no memory for a thread, as gloo's when ranks meet, or C++
none at all. A thread is also refused where there are too many: then, too, less at a time helps."""


def whose_memory(error: BaseException) -> MemoryPlace | None:
    """Whose memory ran out; `None`: it is another error."""
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
