"""Comparison of a re-executed sub-epoch with the committed one.

`model_hopper.handler` compares states bit by bit if the re-execution is exact, and metrics within a tolerance
otherwise. The outcome is part of the result of a `verify` task; the controller decides its effect on the worker. At
most `MAX_DIFFERENCES` differences are named.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from cerebro.contract.tasks.results import MAX_DIFFERENCES, VerificationOutcome
from cerebro.state.tasks.verifications import differing_metrics
from cerebro.worker.training.checkpoints import comparison
from cerebro.worker.training.checkpoints.checkpoint import State

_MAX_NAME = 200
"""Maximum length of a difference's name."""


def compare_states(state: State, saved: State) -> VerificationOutcome:
    """Compare two states bit by bit."""
    here, there = comparison.trained(state), comparison.trained(saved)
    names = islice(comparison.differences(here, there), MAX_DIFFERENCES)
    return VerificationOutcome(
        is_exact=True, differences=tuple(name[:_MAX_NAME] for name in names), digest=comparison.digest(here)
    )


def compare_metrics(metrics: Mapping[str, float], committed: Mapping[str, float]) -> VerificationOutcome:
    """Compare metrics within a tolerance."""
    differences = [
        f"{name}: committed {committed.get(name, 'nothing')}, re-executed {metrics.get(name, 'nothing')}"
        for name in differing_metrics(metrics, committed)
    ]
    return VerificationOutcome(
        is_exact=False, differences=tuple(name[:_MAX_NAME] for name in differences[:MAX_DIFFERENCES])
    )
