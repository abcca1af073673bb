"""`Search`: a search as a function from reports to actions.

`controller.sources.search` drives it with the log's events; a worker replays it for a user's own procedure.

It combines the procedure, the stop rules, the hour limit and the user's commands, and it alone settles
conflicts: the search does not extend a model that a user stopped, and does not stop a model that a user
resumed or extended. Actions depend only on the reports and their order, so replaying the reports rebuilds the
search.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal

from cerebro.contract.runs import EarlierModel
from cerebro.contract.search import OwnProcedure, SearchRequest
from cerebro.errors import SearchError
from cerebro.search.history import Past
from cerebro.search.pareto import NO_CRITERIA, Criteria, Point
from cerebro.search.procedure import (
    SEARCH,
    Action,
    Add,
    Added,
    Closed,
    Extend,
    Extended,
    Facts,
    Failed,
    Finish,
    Measured,
    Procedure,
    Reached,
    Refused,
    Report,
    Resumed,
    Stop,
    Stopped,
    Suggest,
    Suggested,
)
from cerebro.search.procedures import procedure_of
from cerebro.search.rules import StopRules
from cerebro.search.searched import SearchedModel, SearchedModels

MAX_WITHOUT_VALUE = 50
"""Failed or refused models in a row, without any metric, that end a search.

Without this limit, a spec that raises or invalid hyperparameters would request suggestions for ever.
"""


class Search:
    """State of a search; turns each report into actions.

    Args:
        epochs: largest resource of a model.
        metric, mode: how models are compared; the first objective if there are several.
        seed: seed of the run.
        workers: number of workers at the start of the run.
        largest_batch: largest valid batch size. If given, the actions of a user's own procedure are checked
            against it.
        user_procedure: the procedure object for an `OwnProcedure` request. Its invalid actions raise instead of
            being skipped, so its author sees the mistake.
        criteria: objectives and constraints, if any.
        earlier: models of earlier fits, for the sampler.

    Raises:
        SearchError: the request names an unknown procedure or version.
    """

    def __init__(  # noqa: PLR0913 - the constants of a search, by keyword
        self,
        request: SearchRequest,
        *,
        epochs: int,
        metric: str,
        mode: Literal["min", "max"],
        seed: int,
        workers: int,
        largest_batch: int | None = None,
        user_procedure: Procedure | None = None,
        criteria: Criteria = NO_CRITERIA,
        earlier: Iterable[EarlierModel] = (),
    ) -> None:
        self.request = request
        self.facts = Facts(
            epochs=epochs,
            metric=metric,
            mode=mode,
            samples=request.samples,
            workers=workers,
            seed=seed,
            space=request.space,
            criteria=criteria,
        )
        self.models = SearchedModels()
        self._earlier = tuple(map(self._earlier_past, earlier))
        self.is_finished = False
        """True if the search will only stop models. The run ends when every resource is used up."""
        self._procedure = procedure_of(request.procedure, user_procedure)
        self._is_own, self._largest_batch = user_procedure is not None, largest_batch
        self._suggested_batches: set[str] = set()
        self._search_set: set[str] = set()
        """Models whose resource only the procedure has set."""
        self._rules = StopRules(request.stop, self.facts)
        self._requested = self._answered = 0
        self._adds: deque[Add] = deque()
        self._without_value = 0
        """Models without any metric since the last `Measured`."""
        self._closed_why = ""
        self._over_why = ""
        """Reason for stopping every model the search added, set when the hour limit passes."""

    # --- state -----------------------------------------------------------------------------------

    @property
    def open_suggestions(self) -> range:
        """Numbers of the requested suggestions that have not arrived."""
        return range(self._answered, self._requested)

    @property
    def is_stuck(self) -> bool:
        """True if the procedure has not finished and no further report can arrive."""
        return not (self.is_finished or self._has_open)

    @property
    def _has_open(self) -> bool:
        return bool(self.models.num_active or self._adds or self.open_suggestions)

    def history(self) -> tuple[Past, ...]:
        """Return the sampler's input: earlier models, models with new weights, and requested models."""
        requested = (Past(hyperparams=add.hyperparams) for add in self._adds if add.parent is None)
        present = (self._past(model) for model in self.models if not model.is_apart)
        return (*self._earlier, *present, *requested)

    def _earlier_past(self, model: EarlierModel) -> Past:
        facts = self.facts
        scores = {e: facts.score(each[facts.metric]) for e, each in model.values.items()}
        points = {e: facts.criteria.point(each) for e, each in model.values.items()} if facts.criteria else {}
        return Past(
            hyperparams=model.hyperparams,
            scores=scores,
            points=points,
            is_failed=model.is_failed,
            is_running=False,
            is_earlier=True,
        )

    def _past(self, model: SearchedModel) -> Past:
        return Past(
            hyperparams=model.hyperparams,
            # Values measured before a user changed the hyperparameters say nothing about the new ones.
            scores={e: self.facts.score(value) for e, value in model.values.items() if e > model.changed},
            points=self._points(model),
            is_failed=model.is_failed,
            is_running=not model.has_ended and model.reached < self.facts.epochs,
        )

    def _points(self, model: SearchedModel) -> dict[int, Point]:
        """Return epoch -> point, where all objectives and constraints have a value."""
        criteria = self.facts.criteria
        if not criteria:
            return {}
        points = {
            epoch: criteria.point(metrics)
            for epoch, metrics in model.metrics.items()
            if epoch > model.changed
        }
        return {epoch: point for epoch, point in points.items() if point.is_known}

    # --- reports and actions ---------------------------------------------------------------------

    def begin(self) -> list[Action]:
        """Return the first actions. Call once, before any report."""
        return list(self._allowed(self._procedure.begin(self.facts)))

    def on_report(self, report: Report) -> list[Action]:
        """Return the actions that follow from a report, in execution order.

        Raises:
            SearchError: the procedure named an unknown model, or a stop rule names an unknown metric. Pass no
                further reports then.
        """
        if isinstance(report, Stopped) and self.models[report.model].is_stopped:
            return []  # a stop rule or the hour limit stopped it, and the procedure has seen the report
        self._note(report)
        stops = self._stops(report)
        ended = [Stopped(model=stop.model, by=SEARCH) for stop in stops]
        for stopped in ended:
            self.models.apply(stopped)
        # The procedure sees stops first, so it does not promote a model that a rule stops at this rung.
        news: list[Report] = [report, *ended] if isinstance(report, Added) else [*ended, report]
        actions: list[Action] = [*stops]
        for each in news:
            actions += self._procedure_actions(each)
        if self._closed_why and not self.is_finished and not self._has_open:
            self.is_finished = True
            actions.append(Finish(why=self._closed_why))
        return actions

    def _note(self, report: Report) -> None:
        self.models.apply(report)
        match report:
            case Suggested():
                self._answered = report.number + 1
                if self._is_own:
                    self._suggested_batches.add(repr(report.hyperparams.get("batch_size")))
            case Added(by="search"):
                self._search_set.add(report.model)
                self._answer_add()
            case Extended() | Resumed():
                self._search_set.discard(report.model)
            case Refused():
                self._answer_add()
                self._count_without_value(f"the last one could not be made: {report.why}")
            case Failed() if not self.models[report.model].values:
                self._count_without_value(f"the last one, {report.model}, failed")
            case Measured():
                self._without_value = 0
            case Closed():
                self._close(f"ended by {report.by}")

    def _answer_add(self) -> None:
        if self._adds:
            self._adds.popleft()

    def _count_without_value(self, how: str) -> None:
        self._without_value += 1
        if self._without_value >= MAX_WITHOUT_VALUE:
            self._close(f"nothing was measured of {self._without_value} models in a row; {how}")

    def _close(self, why: str) -> None:
        self._closed_why = self._closed_why or why
        self._requested = self._answered

    def _stops(self, report: Report) -> list[Stop]:
        """Return the stops of the rules and the hour limit."""
        found = {}
        match report:
            case Measured():
                if why := self._rules.stop_reason(report, self.models):
                    found[report.model] = why
            case Added(by="search") if self._over_why:
                found[report.model] = self._over_why
        if isinstance(report, Suggested | Measured | Reached | Failed) and self._hours_end(report.time):
            found |= {model.id: self._over_why for model in self.models if model.is_active}
        return [Stop(model=name, why=why) for name, why in found.items() if self._may_stop(self.models[name])]

    def _hours_end(self, time: float) -> bool:
        """Close the search if the hour limit passes at `time`. Returns True for that call only."""
        hours = self.request.hours
        if hours is None or time < hours * 3600 or self._over_why:
            return False
        self._over_why = f"its {hours:g} h are over"
        self._close(self._over_why)
        return True

    def _may_stop(self, model: SearchedModel) -> bool:
        return not (model.is_kept or model.has_ended or model.trained >= self.facts.epochs)

    def _procedure_actions(self, report: Report) -> list[Action]:
        return [] if self.is_finished else list(self._allowed(self._procedure.on_report(report)))

    def _allowed(self, actions: Iterable[Action]) -> Iterable[Action]:
        """Yield the procedure's actions that remain allowed.

        Users' commands, limits and the end of the search overrule actions.
        """
        for action in actions:
            if self._is_own:
                self._check(action)
            match action:
                case Finish():
                    self.is_finished = True
                    yield action
                    return
                case Stop():
                    model = self._known(action.model)
                    if self._may_stop(model):
                        # At the end of its resource nothing runs, so no `Stopped` report will arrive.
                        if model.trained >= model.resource:
                            self.models.apply(Stopped(model=model.id, by=SEARCH))
                        yield action
                case _ if self._closed_why:
                    continue
                case Suggest():
                    if count := self._within_samples(action.count):
                        self._requested += count
                        yield Suggest(count=count)
                case Add():
                    if action.parent is not None:
                        self._known(action.parent)
                    self._adds.append(action)
                    yield action
                case Extend():
                    model = self._known(action.model)
                    if not model.has_ended and action.epochs > model.resource:
                        self.models.extend(action.model, action.epochs)
                        yield action

    def _check(self, action: Action) -> None:
        """Check an action of a user's own procedure against the known state.

        Raises:
            SearchError: the action is impossible.
        """
        name, most = self.procedure_name, self.facts.epochs
        if isinstance(action, Add | Extend) and action.epochs > most:
            what = "a model" if isinstance(action, Add) else action.model
            raise SearchError(
                f"{name} requested {action.epochs} epochs for {what}, but the run has epochs={most}: request at most "
                "that many"
            )
        if isinstance(action, Extend):
            model = self._known(action.model)
            if action.epochs < model.resource and action.model in self._search_set:
                raise SearchError(
                    f"{name} requested {action.epochs} epochs for {action.model}, which already has "
                    f"{model.resource}: a resource only grows; use Stop to train a model no further"
                )
        if isinstance(action, Add) and self._largest_batch is not None:
            size = action.hyperparams.get("batch_size")
            is_size = (
                isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= self._largest_batch
            )
            # A sampler's invalid batch size is refused as under any procedure, and the search continues.
            if not is_size and repr(size) not in self._suggested_batches:
                raise SearchError(
                    f"{name} requested a model with batch_size {size!r}, expected a whole number from 1 to "
                    f"{self._largest_batch} (the smallest partition)"
                )

    def _within_samples(self, count: int) -> int:
        most = self.facts.samples
        return count if most is None else min(count, most - self._requested)

    def _known(self, name: str) -> SearchedModel:
        if name not in self.models:
            raise SearchError(
                f"the procedure {self.procedure_name!r} returned an action for the model {name!r}, which the "
                "run does not have: use only models that `Added` has reported"
            )
        return self.models[name]

    @property
    def procedure_name(self) -> str:
        """Name of the procedure, for messages."""
        choice = self.request.procedure
        return choice.name if isinstance(choice, OwnProcedure) else choice.kind
