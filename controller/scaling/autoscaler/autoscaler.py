"""The autoscaler's timing, forecast events and wanted sizes.

`controller.loop.scaling` calls `update`, which asks a child process for a forecast once sub-epoch times are known, and
again after a change of workers, a completed epoch or more observations, at most every 20 s. It returns news as an
event for the run's log, with a wanted size if it may act and a change pays (`controller.scaling.autoscaler.policy`);
the caller requests it from the cluster manager. Before workers leave, others rebuild partitions that only they hold.

It never waits: `update` collects an answer and sends the next request. It keeps no state across controllers:
the log has its results. It serves one run, which has the cluster to itself.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from cerebro.contract.events import ForecastMade
from cerebro.contract.runs import ForecastEnd
from cerebro.state import ExperimentState, Run, RunState
from cerebro.state.absences import Absences, Frequency
from cerebro.state.exclusions import Exclusion, Scope
from cerebro.state.reports.wait_reasons import needed_partitions
from cerebro.state.runs.goals import goal_of, worker_hours
from controller.decisions.core import Core
from controller.decisions.fit_dispatch import FitDispatch
from controller.planning import BackgroundProcess
from controller.scaling.autoscaler.ends import Ends
from controller.scaling.autoscaler.outlook import outlook, trainers
from controller.scaling.autoscaler.policy import Situation, candidates, choose, size_to_request

log = logging.getLogger(__name__)

_EVERY_S, _AT_LEAST_EVERY_S = 20.0, 600.0
"""Minimum and maximum seconds between two forecasts."""

_CHECK_S = 2.0
"""Seconds between two checks for a reason to forecast: each costs a pass over all models and workers."""

_LATE = 0.5
"""An answer is outdated if it took longer than the remaining time, or than both this share and `_EVERY_S`."""

_NEWS = 0.1
"""A forecast is news if it differs by this share of the remaining time and by its own uncertainty."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Permissions and settings of the autoscaler.

    Attributes:
        mode: ``off``, ``advise`` or ``act``.
        most: maximum number of workers; 0 if unknown.
        hour_of_waiting: worker-hours that one hour of waiting is worth.
        join_s: seconds until a requested worker joins.
        can_act: True with a cluster manager.
    """

    mode: str = "advise"
    most: int = 0
    hour_of_waiting: float = 4.0
    join_s: float = 120.0
    can_act: bool = False


@dataclass(frozen=True, kw_only=True)
class SizeHistory:
    """History of the number of workers; seconds since the epoch.

    Attributes:
        changed_at: last change by the autoscaler; minus infinity without one.
        chosen_at: last choice by a person.
        is_changing: True while workers start or leave.
    """

    changed_at: float = -math.inf
    chosen_at: float = -math.inf
    is_changing: bool = False


class _OpenRequest(NamedTuple):
    """An open request: its time, the workers, and the seconds to make a copy."""

    at: float
    workers: tuple[str, ...]
    made_s: float


class _View(NamedTuple):
    """Inputs of one call of `update`."""

    state: ExperimentState
    fit: FitDispatch
    run: Run
    now: float
    size_history: Callable[[], SizeHistory]


def released(state: ExperimentState, forecast: ForecastMade, present: Sequence[str]) -> tuple[Exclusion, ...]:
    """Return exclusions of the workers that a request will release, with all workers on their volumes.

    They continue, but other workers first rebuild the partitions that only they hold.

    Args:
        present: workers that train, the last ones released first.
    """
    volumes = {state.workers[name].volume for name in present[forecast.requested_workers :]}
    reason = f"{forecast.run} will train on {forecast.requested_workers} workers"
    return tuple(
        Exclusion(worker.name, Scope.REPLICAS, reason)
        for worker in state.workers.values()
        if worker.volume in volumes
    )


class Autoscaler:
    """Forecasts for one run at a time while it has the cluster to itself. Not thread-safe: one owner."""

    def __init__(self, process: BackgroundProcess, rules: Rules) -> None:
        self._process, self._rules = process, rules
        self._absences: Callable[[], Absences] = Absences
        self._occasion: tuple[object, ...] | None = None
        self._open_request: _OpenRequest | None = None
        self._requested_at = self._checked_at = -math.inf
        self._shrinking: tuple[ForecastMade, tuple[str, ...]] | None = None
        """A request for fewer workers, and the present ones. It waits until the remaining workers hold all
        partitions.
        """

    def observe_workers(self, absences: Callable[[], Absences]) -> None:
        """Set the source of loss statistics, the cluster log."""
        self._absences = absences

    def forget(self) -> None:
        """Reset after the run has ended or shares the cluster, or the leader has changed."""
        if self._open_request is not None:
            self._process.stop()
        self._occasion, self._open_request, self._shrinking = None, None, None
        self._requested_at = self._checked_at = -math.inf

    def released(self, state: ExperimentState) -> tuple[Exclusion, ...]:
        """Return exclusions of the workers that will be released."""
        return () if self._shrinking is None else released(state, *self._shrinking)

    def update(self, core: Core, now: float, size_history: Callable[[], SizeHistory]) -> ForecastMade | None:
        """Return a forecast event if there is news. Cheap when nothing is due.

        Args:
            now: time by the store's clock.
            size_history: returns the history of the number of workers; called if needed.
        """
        fit = core.fit
        run = core.state.runs[fit.run] if fit is not None else None
        if self._rules.mode == "off" or fit is None or run is None or run.state is not RunState.RUNNING:
            self.forget()
            return None
        view = _View(core.state, fit, run, now, size_history)
        if self._shrinking is not None:
            return self._shrink(view, *self._shrinking)
        if self._open_request is not None:
            answer = self._process.answer()
            return self._handle_answer(view, self._open_request, answer) if answer is not None else None
        if self._is_due(view):
            self._request_forecast(view)
        return None

    def _is_due(self, view: _View) -> bool:
        waited_s = view.now - self._requested_at
        if waited_s < _EVERY_S or view.now - self._checked_at < _CHECK_S:
            return False
        self._checked_at = view.now
        run, observed = view.run, view.fit.times.estimates.observations
        knowledge = int(math.log(max(1, observed), 1.5))
        given_up = sum(model.is_cut_short for model in run.models.values())
        occasion = (
            run.id,
            self._present_workers(view),
            len(run.scheduling.epochs),
            knowledge,
            given_up,
            len(run.models),
        )
        if occasion == self._occasion and waited_s < _AT_LEAST_EVERY_S:
            return False
        self._occasion = occasion
        return True

    def _absent(self, view: _View) -> Frequency:
        return self._absences().frequency(view.now, self._rules.join_s)

    def _present_workers(self, view: _View) -> tuple[str, ...]:
        return trainers(view.state, view.now, self._absent(view))

    def _request_forecast(self, view: _View) -> None:
        self._requested_at = view.now
        workers, absent = self._present_workers(view), self._absent(view)
        found = outlook(view.state, view.run, view.fit, workers, join_s=self._rules.join_s, absent=absent)
        if found is None:
            return
        self._open_request = _OpenRequest(view.now, workers, found.made_s)
        models = sum(1 for mask in view.fit.dispatch_state.open if mask)
        bounds = self._situation(view, self._open_request, {}).bounds
        counts = candidates(len(found.order), len(found.sizes), models, bounds)
        self._process.send({"request": "forecast", "outlook": found.to_json(), "counts": counts})

    def _situation(self, view: _View, request: _OpenRequest, ends: Mapping[int, Ends]) -> Situation:
        goal, history = goal_of(view.run), view.size_history()
        return Situation(
            now=view.now,
            workers=len(request.workers),
            ends=ends,
            goal=goal,
            spent_h=worker_hours(view.state, view.run, view.now),
            most=self._rules.most or max(2 * len(request.workers), *(goal.workers or (1,))),
            hour_of_waiting=self._rules.hour_of_waiting,
            join_s=self._rules.join_s,
            made_s=request.made_s,
            changed_at=history.changed_at,
            chosen_at=history.chosen_at,
            is_changing=history.is_changing,
        )

    def _handle_answer(
        self, view: _View, request: _OpenRequest, answer: Mapping[str, Any]
    ) -> ForecastMade | None:
        self._open_request = None
        self._process.stop()
        if "error" in answer:
            log.warning("no forecast for %s: %s", view.run.id, answer["error"])
            return None
        if request.workers != self._present_workers(view):
            return None  # the set of workers has changed
        over_s = view.now - request.at
        present_s = (p50 for count, p50, _ in answer["ends"] if count == len(request.workers))
        if any(over_s > min(p50, max(_LATE * p50, _EVERY_S)) for p50 in present_s):
            self._occasion = None  # request again
            return None
        ends = {
            int(count): Ends(max(0.0, p50 - over_s), max(0.0, p90 - over_s))
            for count, p50, p90 in answer["ends"]
        }
        situation = self._situation(view, request, ends)
        choice = choose(situation)
        wanted = size_to_request(situation, choice) if self._may_act(view.run) else None
        forecast = ForecastMade(
            run=view.run.id,
            workers=len(request.workers),
            ends=tuple(
                ForecastEnd(count, round(each.p50_s, 1), round(each.p90_s, 1))
                for count, each in sorted(ends.items())
            ),
            recommended_workers=choice.workers if _is_worth_reporting(situation, choice.workers) else None,
            allowed_workers=None if choice.is_kept else situation.bounds[1],
            requested_workers=wanted,
        )
        if wanted is not None and wanted < len(request.workers):
            self._shrinking = forecast, request.workers
            return self._shrink(view, *self._shrinking)
        return forecast if wanted is not None or _is_news(view.run, forecast, view.now) else None

    def _shrink(self, view: _View, forecast: ForecastMade, workers: tuple[str, ...]) -> ForecastMade | None:
        """Return the request for fewer workers once a remaining alive worker holds each needed partition."""
        state, fit = view.state, view.fit
        if workers != self._present_workers(view) or view.now - self._requested_at > _AT_LEAST_EVERY_S:
            self._shrinking = None  # workers have changed, or it takes too long: decide again
            return None
        released = {each.worker for each in self.released(state)}
        for partition in needed_partitions(state, view.run):
            holders = fit.dispatch_state.holders.of[fit.names.partitions.index(partition)]
            if not any(fit.names.workers[worker] not in released for worker in holders):
                return None
        self._shrinking, history = None, view.size_history()
        if history.is_changing or history.chosen_at > self._requested_at:
            return None  # a person has chosen a number since
        over_s = view.now - self._requested_at
        ends = tuple(
            ForecastEnd(n, round(max(0.0, p50 - over_s), 1), round(max(0.0, p90 - over_s), 1))
            for n, p50, p90 in forecast.ends
        )
        return forecast.model_copy(update={"ends": ends})

    def _may_act(self, run: Run) -> bool:
        is_bounded = self._rules.most > 0 or goal_of(run).workers is not None
        return self._rules.mode == "act" and self._rules.can_act and is_bounded


def _is_worth_reporting(situation: Situation, chosen: int) -> bool:
    """True if the choice would be requested now without waiting times after earlier changes."""
    if chosen == situation.workers or chosen not in situation.ends:
        return False
    whenever = replace(situation, changed_at=-math.inf, chosen_at=-math.inf, is_changing=False)
    return size_to_request(whenever, choose(situation)) is not None


def _is_news(run: Run, forecast: ForecastMade, now: float) -> bool:
    if not run.scheduling.forecasts:
        return True
    last_forecast = run.scheduling.forecasts[-1]
    if (last_forecast.workers, last_forecast.recommended_workers, last_forecast.allowed_workers) != (
        forecast.workers,
        forecast.recommended_workers,
        forecast.allowed_workers,
    ):
        return True
    ends_at, was_at = now + forecast.end.p50_s, last_forecast.time + last_forecast.end.p50_s
    own_s = max(1.0, last_forecast.end.p90_s - last_forecast.end.p50_s)
    return abs(ends_at - was_at) > max(_NEWS * forecast.end.p50_s, own_s)
