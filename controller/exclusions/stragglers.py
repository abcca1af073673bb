"""Workers with much slower sub-epochs than the others, labelled for people. Pure.

The estimates of sub-epoch times, which dispatch and replica copies also use, give the slowness. A label stays
until sub-epochs disprove it, even after its run. `controller.exclusions.machines` calls `label` every 10 s and stores
the labels; they do not exclude a worker from tasks. A worker is compared after 5 sub-epochs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cerebro.contract.records import WorkerStatus
from cerebro.contract.stored.health import HealthAnswer
from cerebro.state.worker_quarantine import SLOW_FACTOR

SUB_EPOCHS = 5
"""Minimum sub-epochs of a worker before it is compared."""
WELL = 1.25
"""Factor below which a label is removed; lower than the limit for adding one, so that labels do not flicker."""
EVERY_S = 10.0
"""Seconds between two comparisons."""
_NEWS = 0.1
"""Relative change of the factor that renews a label."""

Learned = Mapping[str, tuple[float, int]]
"""Worker -> logarithm of its slowness factor, and the number of sub-epochs behind it.

As in `cerebro.scheduling.estimates.Estimates.slowness`.
"""


@dataclass(frozen=True, kw_only=True)
class Paced:
    """A label to set or remove; fields as in `cerebro.contract.stored.health.PaceRequest`."""

    worker: str
    is_slow: bool
    factor: float | None = None
    sub_epochs: int = 0


def compared(runs: Iterable[Learned], names: Sequence[str]) -> dict[str, tuple[float, int]]:
    """Return worker -> slowness relative to the others' median, and the number of sub-epochs.

    Several runs are weighted by their sub-epochs.

    Args:
        runs: slowness from each run.
        names: workers to compare.
    """
    relative_slowness: dict[str, list[tuple[float, int]]] = {}
    for learned in runs:
        known = {name: learned[name] for name in names if name in learned and learned[name][1] >= SUB_EPOCHS}
        for name, (slowness, sub_epochs) in known.items() if len(known) > 1 else ():
            typical = statistics.median(other for each, (other, _) in known.items() if each != name)
            relative_slowness.setdefault(name, []).append((slowness - typical, sub_epochs))
    found = {}
    for name, shown in relative_slowness.items():
        sub_epochs = sum(count for _, count in shown)
        found[name] = math.exp(sum(off * count for off, count in shown) / sub_epochs), sub_epochs
    return found


def label(runs: Iterable[Learned], statuses: Sequence[WorkerStatus], health: HealthAnswer) -> Iterator[Paced]:
    """Yield the new labels of workers that train.

    Args:
        runs: slowness from each open run.
        statuses: all registered workers.
    """
    hosts = {each.record.worker: each.record.host for each in statuses if "train" in each.record.kinds}
    found = compared(runs, list(hosts))
    for name, host in hosts.items():
        pace = health.of(name).pace
        previous_factor = pace.factor if pace is not None and pace.host == host else None
        if len(hosts) < 2:
            if previous_factor is not None:
                yield Paced(worker=name, is_slow=False)
            continue
        if name not in found:
            continue
        factor, sub_epochs = found[name]
        if (
            pace is not None
            and pace.host != host
            and pace.sub_epochs <= sub_epochs < pace.sub_epochs + SUB_EPOCHS
        ):
            continue  # these sub-epochs ran on the worker's previous machine
        is_slow = factor > SLOW_FACTOR or (previous_factor is not None and factor >= WELL)
        is_news = previous_factor is None or abs(factor / previous_factor - 1.0) > _NEWS
        if is_slow != (previous_factor is not None) or (is_slow and is_news):
            yield Paced(worker=name, is_slow=is_slow, factor=factor, sub_epochs=sub_epochs)
