"""What came of a sub-epoch that was done once more: compared with what was committed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from cerebro.contract.tasks import MAX_DIFFERENCES, AuditOutcome
from cerebro.state.audits import apart
from cerebro.worker.training import comparing
from cerebro.worker.training.checkpoint import State

_NAME = 200
"""Characters that are kept of the name of a difference."""


def bits_compared(state: State, saved: State) -> AuditOutcome:
    """States, to the bit."""
    here, there = comparing.trained(state), comparing.trained(saved)
    found = islice(comparing.differences(here, there), MAX_DIFFERENCES)
    return AuditOutcome(
        is_exact=True, differences=tuple(name[:_NAME] for name in found), digest=comparing.digest(here)
    )


def metrics_compared(metrics: Mapping[str, float], committed: Mapping[str, float]) -> AuditOutcome:
    """Metrics, to a tolerance."""
    found = [
        f"{name}: {committed.get(name, 'nothing')} was committed, it is {metrics.get(name, 'nothing')}"
        for name in apart(metrics, committed)
    ]
    return AuditOutcome(is_exact=False, differences=tuple(name[:_NAME] for name in found[:MAX_DIFFERENCES]))
