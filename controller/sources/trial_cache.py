"""Outcomes of trials across runs: kept in the store when they are new, taken over from it when a run can choose.

What is taken over is told in the log of the run, so its fold needs no store. Belongs to the loop; not thread-safe.
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
"""Causes for which a way stays ruled out: the same again would come to the same. A crash may have been bad luck."""


class TrialStore(Protocol):
    """What is asked of the store, as `cerebro.runtime.kvs.KvsClient` does it."""

    def trials(self, keys: Sequence[str]) -> tuple[TrialRecord, ...]:
        """Outcomes by what they are kept under."""
        ...

    def keep_trial(self, record: TrialRecord) -> None:
        """Keep one."""
        ...


class TrialCache:
    """What this controller has seen in the store, or put there."""

    def __init__(self, store: TrialStore) -> None:
        self._store = store
        self._kept: set[tuple[str, str, str, str]] = set()
        """(experiment, run, group, way): told to the store by this controller."""

    def recalled(self, run: Run) -> TrialsRecalled | None:
        """What the run can take over, once its models are inspected; `None` before, and once it has.

        Raises:
            RetryableError: the store is away.
        """
        inspection = run.inspection
        if inspection is None or run.has_recalled or not run.is_open:
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
        # Part of the key, too: a record that says otherwise is damaged.
        fitting = [
            record for record in records if record.torch == inspection.torch and record.key in parallel_plans
        ]
        return TrialsRecalled(
            run=run.id, outcomes={parallel_plans[record.key]: record.outcome for record in fitting}
        )

    def keep(self, experiment: str, run: Run) -> None:
        """Keep what the run's own trials have shown. Doing it again changes nothing.

        Raises:
            RetryableError: the store is away.
        """
        if run.inspection is None or not run.trials:
            return
        for group, known in _parallel_plans(run.inspection):
            outcome, name = run.trials.get((group.id, known.id)), (experiment, run.id, group.id, known.id)
            if outcome is None or name in self._kept or not known.cache_key or not _lasts(outcome):
                continue
            self._kept.add(name)
            record = TrialRecord(
                key=known.cache_key,
                outcome=outcome,
                label=known.parallel_plan.label,
                device=run.inspection.places[known.place].device.name,
                torch=run.inspection.torch,
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
