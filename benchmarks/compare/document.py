"""The generated parts of docs/comparison.md.

The text between the markers ``<!-- generated: NAME -->`` and ``<!-- end -->`` is replaced; the rest is prose.
"""

from __future__ import annotations

import datetime
import os
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.__main__ import machine
from benchmarks.compare import paper, simulation, task
from benchmarks.compare.simulation import Outcome
from benchmarks.compare.sitting import METHODS, Sitting

TARGET = Path(__file__).resolve().parents[2] / "docs" / "comparison.md"
SECTION = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)

SIMULATED: Mapping[str, tuple[str, Callable[[simulation.Workload, simulation.Cluster], Outcome]]] = {
    "hopping": ("Cerebro", simulation.hopping),
    "task-parallel": ("Task-parallel, all data on each worker (Celery)", simulation.task_parallel),
    "remote-reads": ("Task-parallel, all data read over the network", simulation.remote_reads),
    "averaging": ("Model averaging (TensorFlow)", simulation.averaging),
    "all-reduce": ("Data parallelism (Horovod)", simulation.all_reduce),
    "parameter-server": ("Asynchronous parameter server (TensorFlow)", simulation.parameter_server),
}

_EFFECTIVE = {
    "ddp": f"{task.BATCH}: {task.BATCH // task.WORKERS} of each rank",
    "ddp-larger-batch": f"{task.BATCH * task.WORKERS}: {task.BATCH} of each rank",
    "parameter-server": f"{task.BATCH} of one worker; weights are stale",
    "averaging": f"{task.BATCH} of one worker; weights averaged once",
}
_WHY = {
    "cerebro-again": "no process has to be started and nothing imported.",
    "task-parallel": "no model is saved and loaded between partitions. Each process needs all rows.",
    "ray-tune": "no model is saved and loaded between partitions. Each worker needs all rows.",
    "averaging": "weights are sent once in an epoch, and no model is saved between partitions. See its accuracy.",
    "ddp": "no model is saved between partitions, and gradients go through memory, not through a network.",
    "ddp-larger-batch": "it takes half as many steps. See its accuracy.",
    "parameter-server": "see its accuracy.",
}
"""Disadvantage of each method that is faster than Cerebro."""


def render(text: str, sitting: Sitting | None, batch_s: Mapping[int, float], state_s_per_byte: float) -> str:
    """Replace all generated parts.

    Args:
        sitting: the measurements; `None` keeps the earlier ones.
        batch_s: see `paper.criteo`.
        state_s_per_byte: cost of a hop without the network.
    """
    parts = {
        "simulated": lambda: _simulated(batch_s, state_s_per_byte),
        "inputs": lambda: _inputs(batch_s, state_s_per_byte),
    }
    if sitting is not None:
        parts |= {
            "measured": lambda: _measured(sitting),
            "sitting": lambda: _sitting(sitting),
            "faster": lambda: _faster(sitting),
        }
    return SECTION.sub(
        lambda found: f"{found[1]}\n{parts[found[2]]()}\n{found[3]}" if found[2] in parts else found[0], text
    )


def _measured(sitting: Sitting) -> str:
    rounds = len(sitting.outcomes["cerebro"])
    return (
        f"Measured on {sitting.date} in {rounds} rounds: {len(task.RATES)} models, {sitting.rows:,} rows to train on, "
        f"{task.HELD_OUT:,} held-out rows. {'. '.join(machine())}. "
        f"Load average {sitting.load[0]:.1f} before, {sitting.load[1]:.1f} at the end.\n"
    )


def _sitting(sitting: Sitting) -> str:
    rows = []
    for method, found in sitting.outcomes.items():
        accuracy = [statistics.median(each) for each in zip(*(o["accuracy"] for o in found), strict=True)]
        base = method.removesuffix("-tuned")
        each_round = ", ".join(f"{outcome['seconds']:.1f}" for outcome in found)
        rows.append(
            (
                METHODS[method].name,
                f"{sitting.seconds(method):.1f} ({each_round})",
                f"{sitting.ratio(method):.2f}",
                f"{sitting.held(method) / 1e6:.0f}",
                f"{statistics.median(outcome['moved'] for outcome in found) / 1e6:,.0f}",
                f"{max(accuracy):.3f}",
                f"{statistics.fmean(accuracy):.3f}",
                _EFFECTIVE.get(base, str(task.BATCH)),
            )
        )
    heads = (
        "method",
        "seconds (rounds)",
        "/ Cerebro",
        "rows held, MB",
        "moved, MB",
        "best",
        "mean",
        "rows of a step",
    )
    return _table(heads, rows)


def _faster(sitting: Sitting) -> str:
    lines = []
    for method in sitting.outcomes:
        if (ratio := sitting.ratio(method)) < 1:
            why = _WHY[method.removesuffix("-tuned")]
            lines.append(f"- {METHODS[method].name} took {ratio:.2f} of Cerebro's time: {why}\n")
    return "".join(lines) or "In this sitting no method was faster than Cerebro's first fit.\n"


def _simulated(batch_s: Mapping[int, float], state_s_per_byte: float) -> str:
    cluster, rows = paper.cluster(state_s_per_byte), []
    for name, work in (("ImageNet", paper.imagenet()), ("Criteo", paper.criteo(batch_s))):
        printed = paper.PRINTED[name]
        for method, (label, simulate) in SIMULATED.items():
            found = simulate(work, cluster)
            hours = found.seconds / 3600
            beside = (
                (f"{printed[method]:.2f}", f"{hours / printed[method]:.2f}")
                if method in printed
                else ("", "")
            )
            rows.append(
                (
                    name,
                    label,
                    f"{hours:.2f}",
                    *beside,
                    f"{found.held / 1e9:.0f}",
                    f"{found.moved / 1e12:,.2f}",
                )
            )
    heads = ("workload", "method", "simulated, h", "printed, h", "ratio", "GB on a worker", "TB moved")
    return _table(heads, rows)


def _inputs(batch_s: Mapping[int, float], state_s_per_byte: float) -> str:
    batches = ", ".join(f"{seconds * 1000:.0f} ms with {size} rows" for size, seconds in batch_s.items())
    today = datetime.datetime.now(tz=datetime.UTC).date()
    return (
        f"Measured here on {today}, at a load average of {os.getloadavg()[0]:.1f}: a batch of the Criteo network takes "
        f"{batches}; to lay out, check, write and read a state takes {state_s_per_byte * 1e9:.2f} s per GB.\n"
    )


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [" | ".join(heads), " | ".join("---" for _ in heads), *(" | ".join(row) for row in rows)]
    return "".join(f"| {line} |\n" for line in lines)
