"""What a search was told and what it has decided, as the log says.

Reports are derived from events, in the order of the log, by every reader and without the code of a procedure. So a
controller that starts again tells a search the same, and must get the same orders.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cerebro.contract.events import (
    SearchDecided,
    ValuesDrawn,
)
from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import OwnProcedure
from cerebro.contract.search_questions import Orders, SearchAnswer
from cerebro.contract.tasks import Failure
from cerebro.errors import IllegalEventError
from cerebro.search.procedure import (
    SEARCH,
    Added,
    Closed,
    Crew,
    Drawn,
    Extended,
    Refused,
    Report,
)
from cerebro.state.models import Model, ModelState


@dataclass(slots=True)
class ReportedModel:
    """State and measured epochs of a model, as reported to the search."""

    state: ModelState
    measured: set[int] = field(default_factory=set)


@dataclass(kw_only=True)
class SearchLog:
    """The reports and decisions of one run's search.

    Attributes:
        first_workers, workers: that trained when it began, and when it was last told.
        reports: what it was told, in order.
        decisions: what it has ordered, in order.
        asked, drawn: numbers of values that it asked for and that were drawn.
        verdicts: model -> why the search has stopped it, and no user has had it trained on since.
        kept: models that a user has resumed, retried or extended: the search stops them no more.
        prioritized: models whose priority a user has chosen: the search changes it no more.
        is_closed: a user has ended it: no new models and no larger grants.
        finish: it orders nothing more, and why; `None` before.
        answers: what a user's own procedure has ordered, as workers told: first when it began, then at each report.
        values: number of a draw -> the values from there on, as a worker drew them, until they are recorded as drawn.
        replaced_by: what a user has put in the place of the request's own procedure; `None`: nothing.
        failures: key of a question's task -> why no worker could answer it, until the run is paused for it.
    """

    first_workers: int
    workers: int
    reports: list[Report] = field(default_factory=list)
    decisions: list[SearchDecided] = field(default_factory=list)
    asked: int = 0
    drawn: int = 0
    verdicts: dict[str, str] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    prioritized: set[str] = field(default_factory=set)
    is_closed: bool = False
    finish: str | None = None
    answers: list[Orders] = field(default_factory=list)
    values: dict[int, tuple[Hyperparameters, ...]] = field(default_factory=dict)
    replaced_by: OwnProcedure | None = None
    failures: dict[str, Failure] = field(default_factory=dict)
    reported: dict[str, ReportedModel] = field(default_factory=dict, repr=False)

    # --- what it is told -------------------------------------------------------------------------

    def see_workers(self, count: int) -> None:
        """So many train now."""
        if count != self.workers:
            self.workers = count
            self.reports.append(Crew(workers=count))

    def see_added(self, model: Model, *, by: str) -> None:
        """The run has another model."""
        self.reported[model.id] = ReportedModel(model.state, set(range(1, model.completed_epochs + 1)))
        self.reports.append(
            Added(
                model=model.id,
                hyperparams=model.hyperparams,
                by=by,
                is_warm=model.inherited > 0,
                epochs=model.epochs,
                trained=model.completed_epochs,
            )
        )

    def see_refused(self, why: str) -> None:
        """A model that the search wanted cannot be made."""
        self.reports.append(Refused(why=why))

    def see_not_extended(self, model: Model) -> None:
        """A larger grant was ordered on what was known before a user ended the search: it has the one it had."""
        self.reports.append(Extended(model=model.id, epochs=model.epochs, by=user_name("")))

    def close(self, by: str) -> None:
        """A user has ended it."""
        if not self.is_closed:
            self.is_closed = True
            self.reports.append(Closed(by=user_name(by)))

    # --- what it decides -------------------------------------------------------------------------

    @property
    def open_draws(self) -> range:
        """Numbers of values that it waits for."""
        return range(self.drawn, self.asked)

    def check_decision(self, event: SearchDecided) -> None:
        """Raise `IllegalEventError` unless it is the next one, on a report that there is."""
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
        """Keep a decision, beside what it means for models."""
        self.decisions.append(event)
        self.asked += event.draw
        self.verdicts |= {model: why for model, why in event.stop.items() if model not in self.kept}
        self.finish = event.finish if self.finish is None else self.finish

    def answer(self, question: str, answer: SearchAnswer) -> bool:
        """A worker has answered `TaskKey.question`; whether it is an answer to that."""
        what, _, number = question.partition("-")
        if what == "draw":
            if answer.values:
                self.values[int(number)] = answer.values
            return bool(answer.values)
        asked = len(self.reports) + 1 - len(self.answers)
        if int(number) != len(self.answers) or not 0 < len(answer.orders) <= asked:
            return False
        self.answers += answer.orders
        return True

    def draw(self, event: ValuesDrawn, *, since_s: float) -> None:
        """Take drawn values in, so many seconds after the run began.

        Raises:
            IllegalEventError: nobody asked for them.
        """
        wanted = self.open_draws
        if not wanted or event.first != wanted.start or event.first + len(event.values) > wanted.stop:
            raise IllegalEventError(
                f"values {event.first} to {event.first + len(event.values) - 1} of the search of {event.run} were "
                f"drawn, but {len(wanted)} are wanted, from {wanted.start}"
            )
        for number, hyperparams in enumerate(event.values, start=event.first):
            self.reports.append(Drawn(number=number, hyperparams=hyperparams, time=since_s))
        self.values.pop(event.first, None)
        self.drawn += len(event.values)


def user_name(name: str) -> str:
    """Return the name of a user in reports; ``user`` for an unnamed user."""
    return name if name not in ("", SEARCH) else "user"
