"""Settings of the child's C allocator: keep freed memory for the next training step.

`ChildProcess` adds `tuned` to the environment of each child. The agent and user-set variables are not changed.

A training step allocates and frees the same tensors repeatedly. By default glibc returns the freed end of its heap to
the kernel and the next step faults it in again, page by page, with 4 KiB of zeros each. Higher thresholds keep that
memory; huge pages allocate 2 MiB at a time. Reasons for the values:
`docs/decisions/0022-c-allocator-of-child-processes.md`; measurements: the benchmark ``allocator``.

Other C libraries ignore these variables; glibc before 2.35 ignores the huge pages.
"""

from __future__ import annotations

from collections.abc import Mapping

MIB = 1 << 20
_MMAP_THRESHOLD = 32 * MIB
"""Size above which a block is mapped on its own; also the limit of glibc's adaptive threshold.

With a higher value, aligned blocks such as torch's left holes in the heap that were not reused.
"""
_MAX_KEPT, _SHARE_KEPT = 512 * MIB, 16
"""Maximum bytes to keep at the freed end of the heap, and the divisor of memory that limits them."""

DECIDED_BY_USER = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""Variables that a user sets to choose allocator settings, even to "". Then nothing is added."""


def tuned(environment: Mapping[str, str], memory_bytes: int) -> dict[str, str]:
    """Return variables to add to a child's environment, or nothing if the user chose settings.

    Args:
        environment: the child's environment.
        memory_bytes: the container's limit, else the machine's memory.
    """
    if any(name in environment for name in DECIDED_BY_USER):
        return {}
    return {
        "MALLOC_MMAP_THRESHOLD_": str(_MMAP_THRESHOLD),
        "MALLOC_TRIM_THRESHOLD_": str(min(_MAX_KEPT, memory_bytes // _SHARE_KEPT)),
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    }
