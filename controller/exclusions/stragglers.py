"""Which workers take much longer for their sub-epochs than the others: they are labelled, for people. Pure.

How slow a worker is, the estimates of sub-epoch times have learned; dispatch and copies rest on the same. Here it is
only compared, and told. A label stays until sub-epochs say that it is wrong, so also after the run that has shown it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cerebro.contract.health import HealthAnswer
from cerebro.contract.records import WorkerStatus
from cerebro.state.quarantine import SLOW

SUB_EPOCHS = 5
"""Of fewer sub-epochs of a worker nothing is told: of it, nor of others against it."""
WELL = 1.25
"""A worker that is labelled has to take less than so many times as long as the others to be that no more: one at the
border would be slow and not slow by turns."""
EVERY_S = 10.0
"""So often it is looked at."""
_NEWS = 0.1
"""A label is renewed once its factor has changed by more than this share."""

Learned = Mapping[str, tuple[float, int]]
"""Worker -> logarithm of the factor by which it takes longer than others, and sub-epochs there that have shown it, as
`cerebro.scheduling.estimates.Estimates.slowness` has them."""


@dataclass(frozen=True, kw_only=True)
class Paced:
    """Tell how long a worker's sub-epochs take; see `cerebro.contract.health.PaceRequest`."""

    worker: str
    is_slow: bool
    factor: float | None = None
    sub_epochs: int = 0


def compared(runs: Iterable[Learned], there: Sequence[str]) -> dict[str, tuple[float, int]]:
    """Worker -> times as long as the median of the others its sub-epochs take, and how many have shown it. Of several
    runs each counts by its sub-epochs.

    Args:
        runs: what each has shown.
        there: workers that are compared.
    """
    told: dict[str, list[tuple[float, int]]] = {}
    for learned in runs:
        known = {name: learned[name] for name in there if name in learned and learned[name][1] >= SUB_EPOCHS}
        for name, (slowness, sub_epochs) in known.items() if len(known) > 1 else ():
            typical = statistics.median(other for each, (other, _) in known.items() if each != name)
            told.setdefault(name, []).append((slowness - typical, sub_epochs))
    found = {}
    for name, shown in told.items():
        sub_epochs = sum(count for _, count in shown)
        found[name] = math.exp(sum(off * count for off, count in shown) / sub_epochs), sub_epochs
    return found


def label(runs: Iterable[Learned], statuses: Sequence[WorkerStatus], health: HealthAnswer) -> Iterator[Paced]:
    """What is to be told now, of workers that train.

    Args:
        runs: what each open run has shown.
        statuses: all that are registered.
    """
    hosts = {each.record.worker: each.record.host for each in statuses if "train" in each.record.kinds}
    found = compared(runs, list(hosts))
    for name, host in hosts.items():
        pace = health.of(name).pace
        had = pace.factor if pace is not None and pace.host == host else None
        if len(hosts) < 2:
            if had is not None:
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
            continue  # these were of the machine that it was on before
        is_slow = factor > SLOW or (had is not None and factor >= WELL)
        is_news = had is None or abs(factor / had - 1.0) > _NEWS
        if is_slow != (had is not None) or (is_slow and is_news):
            yield Paced(worker=name, is_slow=is_slow, factor=factor, sub_epochs=sub_epochs)
