"""Rank memory: growth of each of two ranks while they save or gather a sharded state.

8 tensors of 16 MiB under FSDP. `save_together` writes one file from the parts: neither rank may need room for the rows
of the other. `gather_full` gathers the state on rank 0: only rank 0 may grow with it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import tempfile
from pathlib import Path

from torch import nn

from benchmarks.figure import Figure
from cerebro.spec import Hints
from cerebro.techniques import Fsdp, Group
from cerebro.worker.training.checkpoints.checkpoint import State
from cerebro.worker.training.checkpoints.joint_write import save_together
from cerebro.worker.training.ranks.full_tensors import gather_full
from tests.techniques.ranks import Ranks

_MIB = 1 << 20
_COUNT, _SIZE = 8, 16 * _MIB
SAVING_BAR, GATHERING_BAR = 8.0, 16.0
"""Mebibytes: half a tensor of any rank; one tensor of rank 1."""


def measure() -> dict[str, float]:
    """Peak growth in MiB: of the larger rank while saving, of rank 1 and of rank 0 while gathering."""
    with Ranks() as ranks, tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder:
        saving = ranks.run(2, _peak_of_saving, Path(folder))
        first, second = ranks.run(2, _peak_of_gathering)
    return {"saving_mib": max(saving), "gathering_mib": second, "gathering_first_mib": first}


def benchmark() -> list[Figure]:
    """`measure` as lines of the table."""
    found = measure()
    state = _COUNT * _SIZE // _MIB
    return [
        Figure(
            what=f"two ranks save a state of {state} MiB together: growth of the larger one",
            measured=f"{found['saving_mib']:.1f} MiB",
            ratio=found["saving_mib"],
            bar=SAVING_BAR,
            sense="at most",
            measure="MiB",
        ),
        Figure(
            what=f"rank 0 gathers a state of {state} MiB: growth of rank 1",
            measured=f"{found['gathering_mib']:.1f} MiB; rank 0 {found['gathering_first_mib']:.1f} MiB",
            ratio=found["gathering_mib"],
            bar=GATHERING_BAR,
            sense="at most",
            measure="MiB",
        ),
    ]


def _peak_of_saving(group: Group, root: Path) -> float:
    state = _sharded(group)
    before = _resident_now()
    save_together(root, "together.pt", state, group)
    return (_memory("VmHWM") - before) / _MIB


def _peak_of_gathering(group: Group) -> float:
    state = _sharded(group)
    before = _resident_now()
    gather_full(state, group)
    return (_memory("VmHWM") - before) / _MIB


def _sharded(group: Group) -> State:
    module = nn.Sequential(*(nn.Linear(1024, _SIZE // 4096, bias=False) for _ in range(_COUNT)))
    Fsdp().prepare([module], group, {}, Hints())
    state: State = {"models": [module.state_dict()], "checkpoint": {}}
    group.barrier()
    return state


def _resident_now() -> int:
    """Return the resident bytes of this process, and restart its peak."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # freed memory would be taken again unseen
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    for line in Path(f"/proc/{os.getpid()}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)
