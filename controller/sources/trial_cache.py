"""Trial outcomes across runs: new ones go to the store; a run recalls them when it can choose.

The log records recalled outcomes, so its fold needs no store. Owned by the loop; not thread-safe.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

from cerebro.contract.events import TrialsRecalled
from cerebro.contract.trials import Inspection, KnownParallelPlan, ModelGroup, TrialOutcome, TrialRecord
from cerebro.errors import PermanentError
from cerebro.state import Run

log = logging.getLogger(__name__)

_LASTING = frozenset({"device_memory", "gradient", "not_applicable"})
"""Causes that rule a parallel plan out permanently: they would recur. A crash might not."""


class TrialStore(Protocol):
    """The calls to the store, as in `cerebro.runtime.kvs.client.KvsClient`."""

    def trials(self, keys: Sequence[str]) -> tuple[TrialRecord, ...]:
        """Return outcomes by cache keys."""
        ...

    def keep_trial(self, record: TrialRecord) -> None:
        """Store an outcome."""
        ...


class TrialCache:
    """Outcomes that this controller has read or stored."""

    def __init__(self, store: TrialStore) -> None:
        self._store = store
        self._stored: set[tuple[str, str, str, str]] = set()
        """(experiment, run, group, parallel plan) of outcomes stored by this controller."""

    def recalled(self, run: Run) -> TrialsRecalled | None:
        """Return the outcomes a run can use, once, after its models are inspected.

        Raises:
            RetryableError: the store is unavailable.
        """
        inspection = run.trials.inspection
        if inspection is None or run.trials.has_recalled or not run.is_open:
            return None
        parallel_plans = {
            known.cache_key: f"{group.id}/{known.id}"
            for group, known in _parallel_plans(inspection)
            if known.cache_key
        }
        try:
            records = self._store.trials([*parallel_plans]) if parallel_plans else ()
        except PermanentError as error:
            log.warning("no outcomes of earlier trials: %s", error)
            records = ()
        # The key includes the version: a record with another one is damaged.
        fitting = [
            record for record in records if record.torch == inspection.torch and record.key in parallel_plans
        ]
        return TrialsRecalled(
            run=run.id, outcomes={parallel_plans[record.key]: record.outcome for record in fitting}
        )

    def keep(self, experiment: str, run: Run) -> None:
        """Store the outcomes of the run's own trials. Idempotent.

        Raises:
            RetryableError: the store is unavailable.
        """
        if run.trials.inspection is None or not run.trials.outcomes:
            return
        for group, known in _parallel_plans(run.trials.inspection):
            outcome, name = (
                run.trials.outcomes.get((group.id, known.id)),
                (experiment, run.id, group.id, known.id),
            )
            if outcome is None or name in self._stored or not known.cache_key or not _lasts(outcome):
                continue
            self._stored.add(name)
            record = TrialRecord(
                key=known.cache_key,
                outcome=outcome,
                label=known.parallel_plan.label,
                device=run.trials.inspection.device_kinds[known.device_kind].device.name,
                torch=run.trials.inspection.torch,
                experiment=experiment,
                run=run.id,
            )
            try:
                self._store.keep_trial(record)
            except PermanentError as error:
                log.warning("the outcome of %s is not kept: %s", "/".join(name), error)


def _parallel_plans(inspection: Inspection) -> list[tuple[ModelGroup, KnownParallelPlan]]:
    return [(group, known) for group in inspection.groups for known in group.parallel_plans]


def _lasts(outcome: TrialOutcome) -> bool:
    return not outcome.is_recalled and (outcome.is_usable or outcome.cause in _LASTING)
