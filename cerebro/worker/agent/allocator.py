"""How the child's C allocator treats memory that training frees: it keeps it for the next step.

A training step allocates and frees the same tensors again and again. By default glibc gives the freed end of its heap
back to the kernel and takes it anew in the next step, page by page: a fault and 4 KiB of zeros each. With raised
thresholds it keeps that memory, and with huge pages what it does take comes 2 MiB at a time. Why these values:
`docs/decisions/0022-malloc-of-the-child.md`; measurements: the benchmark ``allocator``.

Other C libraries ignore these variables; so does a glibc before 2.35 the huge pages.
"""

from __future__ import annotations

from collections.abc import Mapping

MIB = 1 << 20
_MMAP_THRESHOLD = 32 * MIB
"""Larger blocks are mapped and unmapped one by one. glibc's own adaptive threshold ends here, too: with a higher one,
blocks that have to be aligned, as torch's are, left holes in the heap that were not used again."""
_MOST_KEPT, _SHARE_KEPT = 512 * MIB, 16
"""Of the freed end of the heap at most so many bytes are kept, and at most this part of the memory there is."""

DECIDED_BY_USER = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""Whoever sets one of these, even to nothing, has chosen: nothing is added."""


def tuned(environment: Mapping[str, str], memory_bytes: int) -> dict[str, str]:
    """Variables to add to a child's environment; none where its user has set some of their own.

    Args:
        environment: what the child gets otherwise.
        memory_bytes: the limit of the container, or the machine's memory where it has none.
    """
    if any(name in environment for name in DECIDED_BY_USER):
        return {}
    return {
        "MALLOC_MMAP_THRESHOLD_": str(_MMAP_THRESHOLD),
        "MALLOC_TRIM_THRESHOLD_": str(min(_MOST_KEPT, memory_bytes // _SHARE_KEPT)),
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    }
