"""Timing of planning, and the choice of plans: the thesis's interleaving (section 4.2.2).

Dispatch decides from the first sub-epoch. After every model has run, a child process plans the remaining
work, and if the plan is far from the bound, an exact solver tries. A result is followed only if a final
comparison finds it better than the present schedule for the work remaining *then*, at the measured noise. A
new round starts after a completed epoch, more observations, or a change of workers.

`controller.loop.run_decisions` calls `advise` and writes the event that it returns to the run's log. `advise` never
waits: it collects an answer and sends the next request. Only a run that has the cluster to itself is planned.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from cerebro.contract.events import SchedulePlanned
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.runs import PlannedSubEpoch
from cerebro.scheduling.policies import DEFAULT_POLICY
from cerebro.state import Run, RunState
from controller.decisions.core import Core
from controller.decisions.fit_dispatch import FitDispatch
from controller.planning.planner_query import PlannerQuery, order_from_json, planner_query, to_json

log = logging.getLogger(__name__)

_MIN_GAIN = 0.01
"""Minimum gain as a share of the remaining time: smaller ones are within the noise of the simulations."""

_MIN_REMAINING_S = 2.0
"""Minimum remaining seconds: below, planning takes longer than it saves."""

ParallelPlans = dict[str, dict[str, ParallelPlan]]
"""Model -> worker -> parallel plan of its sub-epochs there."""


class BackgroundProcess(Protocol):
    """Answers one request at a time in the background. Used by one thread; no method waits."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a request; drop an unanswered one."""
        ...

    def answer(self) -> dict[str, Any] | None:
        """Return the answer to the newest request, once; `None` until it arrives."""
        ...

    def stop(self) -> None:
        """Free resources, because no request follows for a while."""
        ...


class Stage(StrEnum):
    """Kind of the open request; also its ``request`` field."""

    NONE = "none"  # no round, or it has ended
    PLAN = "plan"  # the planner's best order
    SOLVE = "solve"  # an exact solver's order
    JUDGE = "judge"  # final comparison of the result


@dataclass(frozen=True, kw_only=True)
class _Found:
    """An order that awaits the final comparison."""

    source: str
    seconds: float
    order: tuple[PlannedSubEpoch, ...]
    parallel_plans: ParallelPlans
    requested_at: float
    """Time of the dispatch state that is zero in the order."""
    is_last: bool
    """True if this round looks for nothing better."""


@dataclass(frozen=True, kw_only=True)
class _Occasion:
    """Facts that start a new round when they change.

    Attributes:
        workers: the run and its workers.
        given_up: failed and stopped models.
        epochs: number of completed epochs.
        knowledge: grows by one when the observations have grown by half, because early plans rest on few.
        parallel_plans: with a choice of parallel plans, the known ones of each model, and the number of unexpected
            times (`parallel_plans`). Trials, ruled out plans and surprises change it.
    """

    workers: tuple[object, ...]
    given_up: tuple[str, ...]
    epochs: int
    knowledge: int
    parallel_plans: tuple[object, ...]

    @classmethod
    def of(cls, core: Core, fit: FitDispatch) -> _Occasion:
        places = [worker for worker in core.state.workers.values() if worker.trains]
        workers = tuple((w.name, w.is_alive, w.since, len(w.replicas)) for w in places)
        run = core.state.runs[fit.run]
        given_up = tuple(model.id for model in run.models.values() if model.is_cut_short)
        return cls(
            workers=(core.state.name, fit.run, workers),
            given_up=given_up,
            epochs=len(run.scheduling.epochs),
            knowledge=int(math.log(max(1, fit.times.estimates.observations), 1.5)),
            parallel_plans=()
            if fit.parallel_plans.is_plain
            else (fit.parallel_plans.known(), fit.times.estimates.surprises),
        )


class PlannerProcess:
    """Plans one run, with one request open at a time. No state outlives the controller: the log has the plans."""

    def __init__(self, process: BackgroundProcess) -> None:
        self._process = process
        self._stage = Stage.NONE
        self._round: _Occasion | None = None
        """Facts at the start of the latest round."""
        self._query: PlannerQuery | None = None
        """The request for a plan in progress."""
        self._found: _Found | None = None

    def forget(self) -> None:
        """End the round: the run has ended, or the leader has changed."""
        if self._round is not None:
            self._round = None
            self._finish()

    def advise(self, core: Core) -> SchedulePlanned | None:
        """Return the new plan to follow, if it has changed. Call after every change."""
        fit = core.fit
        if fit is None or not _can_plan(core, fit):
            self.forget()
            return None
        run = core.state.runs[fit.run]
        occasion = _Occasion.of(core, fit)
        have_workers_changed = self._round is None or occasion.workers != self._round.workers
        if have_workers_changed or (self._stage is Stage.NONE and self._round != occasion):
            known = fit.parallel_plans.known()
            if all(known[m] for m, is_left in enumerate(fit.dispatch_state.open) if is_left):
                self._round, self._found = occasion, None
                self._send_query(Stage.PLAN, fit, run)
            return None
        answer = self._process.answer() if self._stage is not Stage.NONE else None
        return self._handle_answer(fit, run, answer) if answer is not None else None

    def _send_query(self, stage: Stage, fit: FitDispatch, run: Run) -> None:
        query = planner_query(fit)
        if query is None:
            self._finish()
            return
        message = {
            "request": stage,
            "problem": to_json(query.problem),
            "present": query.present,
            "sigma": fit.times.estimates.sigma,
        }
        if run.scheduling.planned is not None and run.scheduling.planned.order:
            message["followed"] = query.order(run.scheduling.planned.order, since=run.scheduling.planned.time)
        if stage is Stage.JUDGE and self._found is not None:
            message["order"] = query.order(self._found.order, since=self._found.requested_at)
            message["parallel_plans"] = query.table(self._found.parallel_plans)
        self._stage, self._query = stage, query
        self._process.send(message)

    def _finish(self) -> None:
        self._stage, self._query, self._found = Stage.NONE, None, None
        self._process.stop()

    def _handle_answer(self, fit: FitDispatch, run: Run, answer: Mapping[str, Any]) -> SchedulePlanned | None:
        if "error" in answer:
            log.warning("no plan for %s: %s", fit.run, answer["error"])
            self._finish()
            return None
        if self._stage is Stage.JUDGE:
            return self._handle_comparison(fit, run, answer)
        if _is_better(answer["planned_s"], answer):
            assert self._query is not None
            order = self._query.planned(order_from_json(answer["order"]))
            self._found = _Found(
                source=answer["source"],
                seconds=answer["seconds"],
                order=order,
                parallel_plans=self._query.named(answer["parallel_plans"]),
                requested_at=self._query.now,
                is_last=answer["is_last"],
            )
            self._send_query(Stage.JUDGE, fit, run)
            return None
        self._continue_round(fit, run, is_last=answer["is_last"])
        if answer["followed_s"] is not None and answer["followed_s"] > answer["dispatch_s"]:
            return _plan_event(
                fit,
                answer,
                source="dispatch",
                order=(),
                parallel_plans=_parallel_plans(run),
                seconds=0.0,
                makespan_s=answer["dispatch_s"],
            )
        return None

    def _handle_comparison(
        self, fit: FitDispatch, run: Run, answer: Mapping[str, Any]
    ) -> SchedulePlanned | None:
        found = self._found
        assert found is not None
        self._found = None
        self._continue_round(fit, run, is_last=found.is_last)
        if not _is_better(answer["planned_s"], answer):
            return None
        return _plan_event(
            fit,
            answer,
            source=found.source,
            order=tuple(
                sub_epoch._replace(
                    start_s=round(sub_epoch.start_s - (fit.dispatch_state.now - found.requested_at), 3)
                )
                for sub_epoch in found.order
            ),
            parallel_plans={**_parallel_plans(run), **found.parallel_plans},
            seconds=found.seconds,
            makespan_s=answer["planned_s"],
        )

    def _continue_round(self, fit: FitDispatch, run: Run, *, is_last: bool) -> None:
        if is_last:
            self._finish()
        else:
            self._send_query(Stage.SOLVE, fit, run)


def without_plan(run: Run) -> SchedulePlanned | None:
    """Return the event that ends the run's plan, if it follows one.

    A plan assumes all workers for one run; it would wait for workers that another run uses. Its parallel
    plans stay.
    """
    if run.scheduling.planned is None or not run.scheduling.planned.order:
        return None
    return run.scheduling.planned.model_copy(
        update={"seq": 0, "time": 0.0, "source": "dispatch", "order": ()}
    )


def _parallel_plans(run: Run) -> ParallelPlans:
    """Return the parallel plans of the latest plan."""
    return run.scheduling.planned.parallel_plans if run.scheduling.planned is not None else {}


def _is_better(planned_s: float, answer: Mapping[str, Any]) -> bool:
    """True if an order ends sufficiently earlier than the present schedule and dispatch."""
    present = [s for s in (answer["dispatch_s"], answer["followed_s"]) if s is not None]
    return planned_s < (1 - _MIN_GAIN) * float(min(present))


def _plan_event(
    fit: FitDispatch,
    answer: Mapping[str, Any],
    *,
    source: str,
    order: tuple[PlannedSubEpoch, ...],
    parallel_plans: ParallelPlans,
    seconds: float,
    makespan_s: float,
) -> SchedulePlanned:
    return SchedulePlanned(
        run=fit.run,
        source=source,
        order=order,
        parallel_plans=parallel_plans,
        makespan_s=makespan_s,
        dispatch_s=answer["dispatch_s"],
        lower_bound_s=answer["lower_bound"],
        seconds=seconds,
    )


def _can_plan(core: Core, fit: FitDispatch) -> bool:
    run = core.state.runs[fit.run]
    return (
        run.scheduling.has_planner
        and run.has_known_models
        and not fit.dispatch_state.has_priorities
        and run.scheduling.scheduler == DEFAULT_POLICY
        and run.state is RunState.RUNNING
        and sum(fit.dispatch_state.gpus) > 1
        and max(fit.dispatch_state.work.worker_left) > _MIN_REMAINING_S
    )
