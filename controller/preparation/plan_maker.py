"""Plans for requested runs. A separate process builds plans that need metadata."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from cerebro.commands.earlier_runs import EarlierStore, earlier_runs
from cerebro.commands.planning import etl_weights, plan_evaluation, plan_fit
from cerebro.contract.events import RunFinished, RunPaused, RunStarted
from cerebro.contract.records import Locators
from cerebro.contract.rest import api
from cerebro.contract.runs import EarlierRun, EtlRequest, EvaluateRequest, FitPlan, FitRequest, Plan
from cerebro.errors import CerebroError, StorageFullError, StoreUnavailableError, VolumeError
from cerebro.runtime.volumes import Volumes
from cerebro.state import Run
from controller.decisions.core import Core
from controller.decisions.decide import Step
from controller.preparation.process import Preparation
from controller.sharing.arbiter import RunRef
from controller.storage.scratch import remove_abandoned

log = logging.getLogger(__name__)

_SOONEST_S, _SHARE = 0.02, 0.1
"""First delay before checking for a plan, and its growth with the plan's age."""


@dataclass(frozen=True)
class _EarlierReading:
    """Reads the earlier fits that a search starts from."""

    store: EarlierStore
    request: FitRequest
    dataset: str

    def plan(self) -> tuple[EarlierRun, ...]:
        return earlier_runs(self.store, self.request, self.dataset)

    def end(self) -> None:
        """Leave the thread to its end: it only reads."""


@dataclass(kw_only=True)
class _Begun:
    """A plan, or a part of one, in progress, with a waiting thread. Keeps its error."""

    process: Preparation | _EarlierReading
    locators: Locators | None = None
    """Locators of an ETL run."""
    began: float = field(default_factory=time.monotonic)
    plan: Any = None
    error: Exception | None = None
    is_done: bool = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="preparation", daemon=True).start()

    def _run(self) -> None:
        try:
            self.plan = self.process.plan()
        except Exception as error:  # noqa: BLE001 - `result` raises it
            self.error = error
        self.is_done = True

    def result(self) -> Any:
        if self.plan is None:
            assert self.error is not None
            raise self.error
        return self.plan


class PlanMaker:
    """Planner of queued runs. Owned by the loop; not thread-safe.

    Args:
        volumes: volumes for the metadata.
        store: logs of the earlier fits that searches start from.
    """

    def __init__(self, volumes: Volumes, store: EarlierStore | None = None) -> None:
        self._volumes, self._store = volumes, store
        self._begun: dict[RunRef, _Begun] = {}

    def steps(self, core: Core, run: Run, *, is_awaited: bool = False) -> list[Step]:
        """Return the events that start, fail or pause a queued run; none while its plan is in progress.

        Args:
            is_awaited: True while workers are starting; an ETL run waits, to divide the data among all workers.
        """
        if is_awaited and run.kind == "etl":
            return []
        weights = etl_weights(core.state)
        able = weights if run.kind == "etl" else [w for w in core.state.workers.values() if w.is_alive]
        if not able:
            return []
        try:
            plan = self._plan(core, run, weights)
        except (StorageFullError, VolumeError) as error:
            volume = error.path or str(self._volumes.shared)
            return [api.Note(event=RunPaused(run=run.id, reason=str(error), volume=volume))]
        except StoreUnavailableError:
            return []  # the next round tries again
        except CerebroError as error:
            return [api.Note(event=RunFinished(run=run.id, outcome="failed", error=str(error)))]
        except Exception as error:
            # Plans depend on user input: an unexpected error fails this run, not all others.
            log.exception("cannot plan %s of %s", run.id, core.state.name)
            reason = f"the controller could not plan it, see `cerebro logs controller`: {type(error).__name__}: {error}"
            return [api.Note(event=RunFinished(run=run.id, outcome="failed", error=reason))]
        return [api.Note(event=RunStarted(run=run.id, plan=plan))] if plan is not None else []

    def wake_s(self) -> float:
        """Return the seconds until a plan in progress may be ready."""
        now = time.monotonic()
        ages = [now - preparation.began for preparation in self._begun.values()]
        return max(_SOONEST_S, _SHARE * min(ages)) if ages else math.inf

    def keep(self, queued: Collection[RunRef]) -> None:
        """End the preparations of all other runs, such as stopped ones."""
        for ref in [ref for ref in self._begun if ref not in queued]:
            self._begun.pop(ref).process.end()

    def take_over(self) -> None:
        """Start to lead: end earlier preparations, and remove the files of ended processes in the background."""
        self.keep(())
        scratch = self._volumes.scratch
        threading.Thread(target=remove_abandoned, args=(scratch,), name="abandoned", daemon=True).start()

    def _plan(self, core: Core, run: Run, weights: dict[str, float]) -> Plan | None:
        if isinstance(run.request, FitRequest):
            known = {w.name: w.devices for w in core.state.workers.values() if w.trains and not w.is_removed}
            return self._with_earlier(core, run, run.request, plan_fit(core.state, run.request, known))
        if isinstance(run.request, EvaluateRequest):
            return plan_evaluation(core.state, run.request, has_misc=bool(core.record.locators.misc))
        ref = RunRef(core.state.name, run.id)
        preparation = self._begun.get(ref)
        if preparation is None or preparation.locators != core.record.locators:
            if preparation is not None:
                self._begun.pop(ref).process.end()
            if any(other.experiment == ref.experiment for other in self._begun):
                return None  # the other run may build the same data set, which must exist once
            preparation = self._begun[ref] = self._preparation(core, run.request, weights)
            preparation.start()
        if not preparation.is_done:
            return None
        del self._begun[ref]
        plan: Plan = preparation.result()
        return plan

    def _with_earlier(self, core: Core, run: Run, request: FitRequest, plan: FitPlan) -> FitPlan | None:
        """Return the plan with the earlier fits of a search; `None` while they are read."""
        if request.search is None or not request.search.start_from:
            return plan
        assert self._store is not None
        ref = RunRef(core.state.name, run.id)
        reading = self._begun.get(ref)
        if reading is None:
            reading = _Begun(process=_EarlierReading(self._store, request, plan.dataset))
            self._begun[ref] = reading
            reading.start()
        if not reading.is_done:
            return None
        del self._begun[ref]
        return plan.model_copy(update={"earlier": reading.result()})

    def _preparation(self, core: Core, request: EtlRequest, weights: dict[str, float]) -> _Begun:
        record, known = core.record, {name: dataset.plan for name, dataset in core.state.datasets.items()}
        return _Begun(
            locators=record.locators,
            process=Preparation(record, known, request, weights, self._volumes),
        )
