"""Reports to a search and its decisions, according to the log.

Every reader derives the reports from events in log order, without the procedure's code. So a restarted controller sends
the same reports and must get the same decisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cerebro.contract.events import (
    SearchDecided,
    ValuesSuggested,
)
from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import OwnProcedure
from cerebro.contract.search_tasks import Actions, SearchAnswer
from cerebro.contract.tasks.failures import Failure
from cerebro.errors import IllegalEventError
from cerebro.search.procedure import (
    SEARCH,
    Added,
    Closed,
    Crew,
    Extended,
    Refused,
    Report,
    Suggested,
)
from cerebro.state.models.model import Model, ModelState


@dataclass(slots=True)
class ReportedModel:
    """State and measured epochs of a model, as reported to the search."""

    state: ModelState
    measured: set[int] = field(default_factory=set)


@dataclass(kw_only=True)
class SearchLog:
    """The reports and decisions of one run's search.

    Attributes:
        first_workers, workers: training workers at the start, and in the newest report.
        reports: in order.
        decisions: in order.
        num_requested, num_suggested: numbers of suggestions requested and made.
        verdicts: model -> reason of the search's stop, unless a user resumed the model.
        protected: models that a user resumed, retried or extended; the search cannot stop them.
        prioritized: models with a user's priority; the search cannot change it.
        is_closed: True if a user ended it: no new models, no larger resources.
        finish: why it decides nothing more; `None` before.
        answers: actions of a user-defined procedure, from workers: one at the start, then one per report.
        values: number -> suggestions from that number on, from a worker, until the log records them.
        replaced_by: a user's replacement of the request's procedure, if any.
        failures: key of a search task -> why no worker could run it, until the run is paused.
    """

    first_workers: int
    workers: int
    reports: list[Report] = field(default_factory=list)
    decisions: list[SearchDecided] = field(default_factory=list)
    num_requested: int = 0
    num_suggested: int = 0
    verdicts: dict[str, str] = field(default_factory=dict)
    protected: set[str] = field(default_factory=set)
    prioritized: set[str] = field(default_factory=set)
    is_closed: bool = False
    finish: str | None = None
    answers: list[Actions] = field(default_factory=list)
    values: dict[int, tuple[Hyperparameters, ...]] = field(default_factory=dict)
    replaced_by: OwnProcedure | None = None
    failures: dict[str, Failure] = field(default_factory=dict)
    reported: dict[str, ReportedModel] = field(default_factory=dict, repr=False)

    # --- reports ---------------------------------------------------------------------------------

    def observe_workers(self, count: int) -> None:
        """Report the number of training workers."""
        if count != self.workers:
            self.workers = count
            self.reports.append(Crew(workers=count))

    def observe_added(self, model: Model, *, by: str) -> None:
        """Report a new model."""
        self.reported[model.id] = ReportedModel(model.state, set(range(1, model.completed_epochs + 1)))
        self.reports.append(
            Added(
                model=model.id,
                hyperparams=model.hyperparams,
                by=by,
                is_warm=model.lineage.sub_epochs > 0,
                epochs=model.epochs,
                trained=model.completed_epochs,
            )
        )

    def observe_refused(self, why: str) -> None:
        """Report that a requested model cannot be added."""
        self.reports.append(Refused(why=why))

    def observe_not_extended(self, model: Model) -> None:
        """Report the unchanged resource, after a user has ended the search."""
        self.reports.append(Extended(model=model.id, epochs=model.epochs, by=user_name("")))

    def close(self, by: str) -> None:
        """Record that a user ended the search."""
        if not self.is_closed:
            self.is_closed = True
            self.reports.append(Closed(by=user_name(by)))

    # --- decisions -------------------------------------------------------------------------------

    @property
    def open_suggestions(self) -> range:
        """Numbers of the pending suggestions."""
        return range(self.num_suggested, self.num_requested)

    def check_decision(self, event: SearchDecided) -> None:
        """Raise `IllegalEventError` unless this is the next decision, on a known report."""
        if event.number != len(self.decisions):
            raise IllegalEventError(
                f"decision {event.number} of the search of {event.run} after {len(self.decisions)}"
            )
        if not -1 <= event.report < len(self.reports):
            raise IllegalEventError(
                f"decision {event.number} of the search of {event.run} answers report {event.report}, but there are "
                f"{len(self.reports)}"
            )

    def decide(self, event: SearchDecided) -> None:
        """Record a decision; the caller applies it to the models."""
        self.decisions.append(event)
        self.num_requested += event.suggest
        self.verdicts |= {model: why for model, why in event.stop.items() if model not in self.protected}
        self.finish = event.finish if self.finish is None else self.finish

    def answer(self, request: str, answer: SearchAnswer) -> bool:
        """Record a worker's answer to `TaskKey.request`; return True if it is valid."""
        what, _, number = request.partition("-")
        if what == "suggestions":
            if answer.values:
                self.values[int(number)] = answer.values
            return bool(answer.values)
        unanswered = len(self.reports) + 1 - len(self.answers)
        if int(number) != len(self.answers) or not 0 < len(answer.actions) <= unanswered:
            return False
        self.answers += answer.actions
        return True

    def observe_suggestions(self, event: ValuesSuggested, *, since_s: float) -> None:
        """Record suggestions.

        Args:
            since_s: seconds since the run's start.

        Raises:
            IllegalEventError: they were not requested.
        """
        wanted = self.open_suggestions
        if not wanted or event.first != wanted.start or event.first + len(event.values) > wanted.stop:
            raise IllegalEventError(
                f"values {event.first} to {event.first + len(event.values) - 1} of the search of {event.run} were "
                f"suggested, but {len(wanted)} are wanted, from {wanted.start}"
            )
        for number, hyperparams in enumerate(event.values, start=event.first):
            self.reports.append(Suggested(number=number, hyperparams=hyperparams, time=since_s))
        self.values.pop(event.first, None)
        self.num_suggested += len(event.values)


def user_name(name: str) -> str:
    """Return the name of a user in reports; ``user`` for an unnamed user."""
    return name if name not in ("", SEARCH) else "user"
