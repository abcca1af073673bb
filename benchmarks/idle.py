"""Idle: resident memory of a new local cluster of two workers, without TensorBoard.

Resident sizes are summed over the supervisor and all its processes, so shared pages count several times; the notes have
the proportional sizes, which count them once.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.figure import Figure
from cerebro.local import cluster
from cerebro.local.supervision import processes

BAR = 400.0
"""Megabytes (10^6 bytes)."""
_WORKERS = 2
_SETTLE_S = 5.0


def measure() -> dict[str, float]:
    """Return resident and proportional megabytes in total, and resident ones per service."""
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder:
        home = Path(folder) / "home"
        try:
            info = cluster.start(home, workers=_WORKERS, tensorboard=False)
            time.sleep(
                _SETTLE_S
            )  # a heartbeat of each worker and a read by the controller: memory does not grow afterwards
            pids = {s.name: s.process.pid for s in info.services if s.process}
            pids["supervisor"] = info.supervisor.pid
            family = {info.supervisor.pid, *(process.pid for process in processes.marked(info.home))}
            resident = {f"mb_{name}": _mb(pid, "Rss") for name, pid in pids.items()}
            total = sum(_mb(pid, "Rss") for pid in family)
            proportional = sum(_mb(pid, "Pss") for pid in family)
        finally:
            cluster.stop(home)
    return {"rss_mb": total, "pss_mb": proportional, **resident, "ratio": total / BAR, "bar": BAR}


def benchmark() -> Figure:
    """Measure the total."""
    found = measure()
    each = ", ".join(f"{name[3:]} {mb:.0f}" for name, mb in found.items() if name.startswith("mb_"))
    return Figure(
        what="the idle local cluster, no run yet, TensorBoard aside: resident memory in all",
        measured=f"{found['rss_mb']:.0f} MB resident, {found['pss_mb']:.0f} MB with shared pages counted once",
        ratio=found["rss_mb"],
        bar=BAR,
        sense="at most",
        measure="MB",
        notes=(f"MB by process: {each}",),
    )


def _mb(pid: int, field: str) -> float:
    """Return ``Rss`` or ``Pss`` of a process in megabytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def main() -> None:
    """Print the figures."""
    print(benchmark())


if __name__ == "__main__":
    main()
