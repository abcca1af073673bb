"""Seconds of the examples with ``--small``, each with the start and end of a separate cluster.

The figures also show the CPU time of all processes: half of this time is the minimum on two idle cores.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.figure import Figure
from cerebro.local import cluster
from cerebro.local.supervision import processes

COMMANDS = {
    "digits": ("--output", "results"),
    "criteo": ("--small",),
    "imagenet": ("--small",),
    "coco": ("--small",),
    "gpt": ("--small",),
    "transfer": (),
}
"""Options of each example; digits and transfer are small without options."""
BAR_S = 60.0
_EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def benchmark() -> list[Figure]:
    """Measure each example."""
    return [_measured(name, options) for name, options in COMMANDS.items()]


def _measured(name: str, options: tuple[str, ...]) -> Figure:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder).resolve() / "home"
        variables = {key: text for key, text in os.environ.items() if not key.startswith("CEREBRO_")}
        before, began = _ended_children_s(), time.monotonic()
        try:
            command = [sys.executable, str(_EXAMPLES / f"{name}.py"), *options]
            done = subprocess.run(
                command,
                cwd=folder,
                env={**variables, "CEREBRO_HOME": str(home)},
                capture_output=True,
                text=True,
                check=False,
            )
            took = time.monotonic() - began
            processor_s = _cluster_s(home) + _ended_children_s() - before
        finally:
            cluster.stop(home)
    if done.returncode:
        raise RuntimeError(f"{name} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return Figure(
        what=f"examples/{name}.py {' '.join(options) if name != 'digits' else ''}".strip(),
        measured=f"{took:.0f} s; {processor_s:.0f} s of processors; load average before {load:.1f}",
        ratio=took,
        bar=BAR_S,
        sense="at most",
        measure="s",
    )


def _cluster_s(home: Path) -> float:
    """Return the CPU seconds of the cluster's processes, including ended ones."""
    total = 0.0
    for process in processes.marked(home):
        try:
            total += sum(psutil.Process(process.pid).cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def _ended_children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
