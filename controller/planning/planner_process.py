"""When to look for a better order, and whether to take what was found: the thesis's interleaving (section 4.2.2).

Dispatch decides from the first sub-epoch on. As soon as every model has run somewhere, a helper beside the controller
is asked for a plan of what is left, then, if that is still away from the bound, for an exact solver's. What was found
is followed only if the helper, asked once more when the answer is there, finds it better than what the run does now,
for what is left *then*, at the noise of sub-epoch times measured so far. A new round of questions begins when an epoch
is complete, when more is known of sub-epoch times, and whenever a worker was lost or joined.

Never waits: `advise` looks whether an answer is there, and puts the next question.
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

_WORTH = 0.01
"""Share of the time left that a change must save: less is lost in the noise of the simulations that compare."""

_SHORTEST_S = 2.0
"""With less left to run, looking would take longer than it could save."""


ParallelPlans = dict[str, dict[str, ParallelPlan]]
"""Model -> worker -> the way by which its sub-epochs run there."""


class Helper(Protocol):
    """Answers one question at a time, out of the way of whoever asks. Used by one thread; none of these waits."""

    def ask(self, message: Mapping[str, Any]) -> None:
        """Put a question; a question that is not answered yet is given up."""
        ...

    def answer(self) -> dict[str, Any] | None:
        """The answer to the newest question, once; `None` while there is none."""
        ...

    def rest(self) -> None:
        """Nothing will be asked for a while: give back what the helper holds."""
        ...


class Stage(StrEnum):
    """The question that is open."""

    NONE = "none"  # the round has ended, or none has begun
    PLAN = "plan"  # the planner's best order
    SOLVE = "solve"  # an exact solver's
    JUDGE = "judge"  # is what was found still better


@dataclass(frozen=True, kw_only=True)
class _Found:
    """An order that waits to be judged."""

    source: str
    seconds: float
    order: tuple[PlannedSubEpoch, ...]
    parallel_plans: ParallelPlans
    asked: float
    """The dispatch state's time from which the order's times count."""
    is_last: bool
    """Nothing better is to be looked for in this round."""


@dataclass(frozen=True, kw_only=True)
class _Occasion:
    """What makes a plan worth looking for again.

    Attributes:
        workers: the run and its workers.
        given_up: models that go no further: they failed, or a user stopped them for now.
        epochs: completed.
        knowledge: grows by one whenever the sub-epochs observed have grown by half: a plan made on little is looked at
            again.
        ways: where there is a choice of ways: those that are left and known of each model, and how many sub-epochs took
            another time than was known of their way. A trial, a way that is ruled out and a surprise are occasions.
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
            epochs=len(run.epochs),
            knowledge=int(math.log(max(1, fit.times.estimates.observations), 1.5)),
            parallel_plans=()
            if fit.parallel_plans.is_plain
            else (fit.parallel_plans.known(), fit.times.estimates.surprises),
        )


class PlannerProcess:
    """Keeps one question open at a time. Forgets everything when the controller dies: the log has the plans."""

    def __init__(self, helper: Helper) -> None:
        self._helper = helper
        self._stage = Stage.NONE
        self._round: _Occasion | None = None
        """What was true when the present round, or the one before, began."""
        self._asked: PlannerQuery | None = None
        """What a plan that is being made is about."""
        self._found: _Found | None = None

    def forget(self) -> None:
        """End the round: the run has ended, or another controller leads."""
        if self._round is not None:
            self._round = None
            self._finish()

    def advise(self, core: Core) -> SchedulePlanned | None:
        """What to follow from now on, if that has changed since the last call. To be called after every change."""
        fit = core.fit
        if fit is None or not _is_wanted(core, fit):
            self.forget()
            return None
        run = core.state.runs[fit.run]
        occasion = _Occasion.of(core, fit)
        are_workers_new = self._round is None or occasion.workers != self._round.workers
        if are_workers_new or (self._stage is Stage.NONE and self._round != occasion):
            known = fit.parallel_plans.known()
            if all(known[m] for m, is_left in enumerate(fit.dispatch_state.open) if is_left):
                self._round, self._found = occasion, None
                self._ask(Stage.PLAN, fit, run)
            return None
        answer = self._helper.answer() if self._stage is not Stage.NONE else None
        return self._take(fit, run, answer) if answer is not None else None

    def _ask(self, stage: Stage, fit: FitDispatch, run: Run) -> None:
        asked = planner_query(fit)
        if asked is None:
            self._finish()
            return
        message = {
            "ask": stage,
            "problem": to_json(asked.problem),
            "present": asked.present,
            "sigma": fit.times.estimates.sigma,
        }
        if run.planned is not None and run.planned.order:
            message["followed"] = asked.order(run.planned.order, since=run.planned.time)
        if stage is Stage.JUDGE and self._found is not None:
            message["order"] = asked.order(self._found.order, since=self._found.asked)
            message["parallel_plans"] = asked.table(self._found.parallel_plans)
        self._stage, self._asked = stage, asked
        self._helper.ask(message)

    def _finish(self) -> None:
        self._stage, self._asked, self._found = Stage.NONE, None, None
        self._helper.rest()

    def _take(self, fit: FitDispatch, run: Run, answer: Mapping[str, Any]) -> SchedulePlanned | None:
        if "error" in answer:
            log.warning("no plan for %s: %s", fit.run, answer["error"])
            self._finish()
            return None
        if self._stage is Stage.JUDGE:
            return self._judged(fit, run, answer)
        if _is_better(answer["planned_s"], answer):
            assert self._asked is not None
            order = self._asked.planned(order_from_json(answer["order"]))
            self._found = _Found(
                source=answer["source"],
                seconds=answer["seconds"],
                order=order,
                parallel_plans=self._asked.named(answer["parallel_plans"]),
                asked=self._asked.now,
                is_last=answer["is_last"],
            )
            self._ask(Stage.JUDGE, fit, run)
            return None
        self._go_on(fit, run, is_last=answer["is_last"])
        if answer["followed_s"] is not None and answer["followed_s"] > answer["dispatch_s"]:
            return _noted(
                fit,
                answer,
                source="dispatch",
                order=(),
                parallel_plans=_parallel_plans(run),
                seconds=0.0,
                makespan_s=answer["dispatch_s"],
            )
        return None

    def _judged(self, fit: FitDispatch, run: Run, answer: Mapping[str, Any]) -> SchedulePlanned | None:
        found = self._found
        assert found is not None
        self._found = None
        self._go_on(fit, run, is_last=found.is_last)
        if not _is_better(answer["planned_s"], answer):
            return None
        return _noted(
            fit,
            answer,
            source=found.source,
            order=tuple(
                sub_epoch._replace(
                    start_s=round(sub_epoch.start_s - (fit.dispatch_state.now - found.asked), 3)
                )
                for sub_epoch in found.order
            ),
            parallel_plans={**_parallel_plans(run), **found.parallel_plans},
            seconds=found.seconds,
            makespan_s=answer["planned_s"],
        )

    def _go_on(self, fit: FitDispatch, run: Run, *, is_last: bool) -> None:
        if is_last:
            self._finish()
        else:
            self._ask(Stage.SOLVE, fit, run)


def without_plan(run: Run) -> SchedulePlanned | None:
    """What ends the plan that a run follows, if it follows one. A plan is made for a run that has all workers
    to itself: it waits for workers that another run may have now. Its ways are as good as before."""
    if run.planned is None or not run.planned.order:
        return None
    return run.planned.model_copy(update={"seq": 0, "time": 0.0, "source": "dispatch", "order": ()})


def _parallel_plans(run: Run) -> ParallelPlans:
    """Those of the plan that the run follows, or followed last."""
    return run.planned.parallel_plans if run.planned is not None else {}


def _is_better(planned_s: float, answer: Mapping[str, Any]) -> bool:
    """Whether an order ends enough sooner than what the run does now, or would do if left to dispatch."""
    present = [s for s in (answer["dispatch_s"], answer["followed_s"]) if s is not None]
    return planned_s < (1 - _WORTH) * float(min(present))


def _noted(
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


def _is_wanted(core: Core, fit: FitDispatch) -> bool:
    run = core.state.runs[fit.run]
    return (
        run.planner
        and run.has_known_models
        and not fit.dispatch_state.has_priorities
        and run.scheduler == DEFAULT_POLICY
        and run.state is RunState.RUNNING
        and sum(fit.dispatch_state.gpus) > 1
        and max(fit.dispatch_state.worker_left) > _SHORTEST_S
    )
