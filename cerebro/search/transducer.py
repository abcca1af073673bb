"""A search as the controller drives it: reports in, orders out.

It puts the procedure, the stop rules, the hours and the user's commands together, and is the one place that knows who
prevails: what a user stopped is not extended, what a user resumed or extended is not stopped. Orders depend on the
reports and their order alone, so whoever tells all reports again has the same search again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Literal

from cerebro.contract.search import OwnProcedure, SearchRequest
from cerebro.errors import SearchError
from cerebro.search.history import Past
from cerebro.search.procedure import (
    SEARCH,
    Add,
    Added,
    Closed,
    Draw,
    Drawn,
    Extend,
    Extended,
    Facts,
    Failed,
    Finish,
    Measured,
    Order,
    Procedure,
    Reached,
    Refused,
    Report,
    Resumed,
    Stop,
    Stopped,
)
from cerebro.search.procedures import procedure_of
from cerebro.search.rules import StopRules
from cerebro.search.searched import SearchedModel, SearchedModels

MOST_WITHOUT_VALUE = 50
"""So many models in a row that fail or cannot be made before anything is measured end a search: a specification that
raises, or values that no model can have, would otherwise be drawn again and again."""


class Search:
    """The orders of a search, as they follow from what it is told.

    Args:
        epochs: the largest grant.
        metric, mode: by which models are compared.
        seed: of the run.
        workers: at the beginning of the run.
        largest_batch: that a model can have, if orders of a user's own procedure are to be checked for it.
        own: the procedure, of a request for a user's own one. Of these orders nothing is passed over that cannot be:
            who wrote it is to know.

    Raises:
        SearchError: the request names a procedure or a version that is not known here.
    """

    def __init__(
        self,
        request: SearchRequest,
        *,
        epochs: int,
        metric: str,
        mode: Literal["min", "max"],
        seed: int,
        workers: int,
        largest_batch: int | None = None,
        own: Procedure | None = None,
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
        )
        self.models = SearchedModels()
        self.is_finished = False
        """Nothing more will be ordered but stops; the run ends when no model has a grant left."""
        self._procedure = procedure_of(request.procedure, own)
        self._is_own, self._largest_batch = own is not None, largest_batch
        self._drawn_batches: set[str] = set()
        self._its_own: set[str] = set()
        """Models whose grants are all the procedure's."""
        self._rules = StopRules(request.stop, self.facts)
        self._asked = self._answered = 0
        self._adds: deque[Add] = deque()
        self._without_value = 0
        """Models that came to nothing since the last value was told."""
        self._closed_why = ""
        self._over_why = ""
        """Why what the search has added is not trained any more: the hours are over."""

    # --- what it knows ---------------------------------------------------------------------------

    @property
    def open_draws(self) -> range:
        """Numbers of the draws that were ordered and have not been told."""
        return range(self._answered, self._asked)

    @property
    def is_stuck(self) -> bool:
        """Whether nothing can be told any more and the procedure has not finished: it waits for nothing."""
        return not (self.is_finished or self._has_open)

    @property
    def _has_open(self) -> bool:
        return bool(self.models.num_active or self._adds or self.open_draws)

    def history(self) -> tuple[Past, ...]:
        """What a sampler is to be told: models with weights of their own, and those that are about to be added."""
        ordered = (Past(hyperparams=add.hyperparams) for add in self._adds if add.origin is None)
        return (*(self._past(model) for model in self.models if not model.is_apart), *ordered)

    def _past(self, model: SearchedModel) -> Past:
        return Past(
            hyperparams=model.hyperparams,
            # What was measured before a user changed the values tells nothing of those that it has now.
            scores={e: self.facts.score(value) for e, value in model.values.items() if e > model.changed},
            is_failed=model.is_failed,
            is_running=not model.has_ended and model.reached < self.facts.epochs,
        )

    # --- reports and orders ----------------------------------------------------------------------

    def begin(self) -> list[Order]:
        """The first orders; called once, before anything is told."""
        return list(self._passed(self._procedure.begin(self.facts)))

    def told(self, report: Report) -> list[Order]:
        """The orders that follow from a report, in the order in which they are to be carried out.

        Raises:
            SearchError: the procedure ordered something for a model that there is not, or a stop rule is about a metric
                that there is not. The search must not be told more.
        """
        if isinstance(report, Stopped) and self.models[report.model].is_stopped:
            return []  # a rule or the end of the hours: the procedure has been told
        self._note(report)
        stops = self._stops(report)
        gone = [Stopped(model=stop.model, by=SEARCH) for stop in stops]
        for stopped in gone:
            self.models.told(stopped)
        # A model that is stopped with its value at a rung is not among those that go on from there.
        news: list[Report] = [report, *gone] if isinstance(report, Added) else [*gone, report]
        orders: list[Order] = [*stops]
        for each in news:
            orders += self._asked_of_procedure(each)
        if self._closed_why and not self.is_finished and not self._has_open:
            self.is_finished = True
            orders.append(Finish(why=self._closed_why))
        return orders

    def _note(self, report: Report) -> None:
        self.models.told(report)
        match report:
            case Drawn():
                self._answered = report.number + 1
                if self._is_own:
                    self._drawn_batches.add(repr(report.hyperparams.get("batch_size")))
            case Added(by="search"):
                self._its_own.add(report.model)
                self._answer_add()
            case Extended() | Resumed():
                self._its_own.discard(report.model)
            case Refused():
                self._answer_add()
                self._came_to_nothing(f"the last one could not be made: {report.why}")
            case Failed() if not self.models[report.model].values:
                self._came_to_nothing(f"the last one, {report.model}, failed")
            case Measured():
                self._without_value = 0
            case Closed():
                self._close(f"ended by {report.by}")

    def _answer_add(self) -> None:
        if self._adds:
            self._adds.popleft()

    def _came_to_nothing(self, how: str) -> None:
        self._without_value += 1
        if self._without_value >= MOST_WITHOUT_VALUE:
            self._close(f"nothing was measured of {self._without_value} models in a row; {how}")

    def _close(self, why: str) -> None:
        self._closed_why = self._closed_why or why
        self._asked = self._answered

    def _stops(self, report: Report) -> list[Stop]:
        """Whom the rules and the hours stop."""
        found = {}
        match report:
            case Measured():
                if why := self._rules.told(report, self.models):
                    found[report.model] = why
            case Added(by="search") if self._over_why:
                found[report.model] = self._over_why
        if isinstance(report, Drawn | Measured | Reached | Failed) and self._hours_end(report.time):
            found |= {model.id: self._over_why for model in self.models if model.is_active}
        return [Stop(model=name, why=why) for name, why in found.items() if self._may_stop(self.models[name])]

    def _hours_end(self, time: float) -> bool:
        """Whether they end now."""
        hours = self.request.hours
        if hours is None or time < hours * 3600 or self._over_why:
            return False
        self._over_why = f"its {hours:g} h are over"
        self._close(self._over_why)
        return True

    def _may_stop(self, model: SearchedModel) -> bool:
        return not (model.is_kept or model.has_ended or model.trained >= self.facts.epochs)

    def _asked_of_procedure(self, report: Report) -> list[Order]:
        return [] if self.is_finished else list(self._passed(self._procedure.told(report)))

    def _passed(self, orders: Iterable[Order]) -> Iterable[Order]:
        """Those of the procedure's orders that nobody else's word is against."""
        for order in orders:
            if self._is_own:
                self._check(order)
            match order:
                case Finish():
                    self.is_finished = True
                    yield order
                    return
                case Stop():
                    model = self._known(order.model)
                    if self._may_stop(model):
                        # At the end of its grant nothing of it is left to stop, so no `Stopped` comes.
                        if model.trained >= model.granted:
                            self.models.told(Stopped(model=model.id, by=SEARCH))
                        yield order
                case _ if self._closed_why:
                    continue
                case Draw():
                    if count := self._within_samples(order.count):
                        self._asked += count
                        yield Draw(count=count)
                case Add():
                    if order.origin is not None:
                        self._known(order.origin)
                    self._adds.append(order)
                    yield order
                case Extend():
                    model = self._known(order.model)
                    if not model.has_ended and order.epochs > model.granted:
                        self.models.extend(order.model, order.epochs)
                        yield order

    def _check(self, order: Order) -> None:
        """Whether an order of a user's own procedure can be, as far as it knows what happened.

        Raises:
            SearchError: no.
        """
        name, most = self.procedure_name, self.facts.epochs
        if isinstance(order, Add | Extend) and order.epochs > most:
            what = "a model" if isinstance(order, Add) else order.model
            raise SearchError(
                f"{name} ordered {order.epochs} epochs for {what}, but the run has epochs={most}: order at most "
                "that many"
            )
        if isinstance(order, Extend):
            model = self._known(order.model)
            if order.epochs < model.granted and order.model in self._its_own:
                raise SearchError(
                    f"{name} ordered a grant of {order.epochs} epochs for {order.model}, which has one of "
                    f"{model.granted}: a grant only grows; use Stop to train a model no further"
                )
        if isinstance(order, Add) and self._largest_batch is not None:
            size = order.hyperparams.get("batch_size")
            is_size = (
                isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= self._largest_batch
            )
            # What a sampler drew is refused as of any procedure, and the search goes on.
            if not is_size and repr(size) not in self._drawn_batches:
                raise SearchError(
                    f"{name} ordered a model with batch_size {size!r}, expected a whole number from 1 to "
                    f"{self._largest_batch} (the smallest partition)"
                )

    def _within_samples(self, count: int) -> int:
        most = self.facts.samples
        return count if most is None else min(count, most - self._asked)

    def _known(self, name: str) -> SearchedModel:
        if name not in self.models:
            raise SearchError(
                f"the procedure {self.procedure_name!r} ordered something for the model {name!r}, which the "
                "run does not have: order only what `Added` has told of"
            )
        return self.models[name]

    @property
    def procedure_name(self) -> str:
        """Of the procedure, for people."""
        choice = self.request.procedure
        return choice.name if isinstance(choice, OwnProcedure) else choice.kind
