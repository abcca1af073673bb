"""A run's search, replayed from its log: its next decisions, and whether they match the log.

Every leading controller passes all reports of the log to the search. Its actions must equal the logged
decisions; new ones are written. If they differ, its code has changed, and the run is paused.

Workers run a user's own procedure. Its logged answers stand for it here: a report is passed on once its
answer is known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from cerebro.contract.events import ControllerEvent, Extension, RunPaused, SearchDecided, ValuesDrawn
from cerebro.contract.runs import FitRequest, NewModel, Origin
from cerebro.contract.search import OwnProcedure
from cerebro.contract.search_questions import DrawQuestion, OrdersQuestion
from cerebro.errors import CerebroError
from cerebro.search.history import Past
from cerebro.search.procedure import Add, Draw, Extend, Finish, Order, Stop
from cerebro.search.questions import draw_question, values_for
from cerebro.search.transducer import Search
from cerebro.search.user_procedure import Answered
from cerebro.search.wire_format import orders_line, packed, report_line
from cerebro.state import Run
from cerebro.state.runs.search_log import SearchLog

_AT_ONCE = 2000
"""Maximum reports processed in one call, so that other work is not delayed."""


EVERYWHERE = frozenset({"random", "tpe", "gp", "cma"})
"""Kinds of all samplers."""


class Searching:
    """The search of one run. It processes each report once.

    Args:
        drawable: kinds of samplers that can run in the controller; workers run the others.

    Attributes:
        run: id of the run.
    """

    def __init__(self, run: Run, drawable: Collection[str] = EVERYWHERE) -> None:
        request = run.request
        assert isinstance(request, FitRequest)
        assert request.search is not None
        assert run.search is not None
        self.run = run.id
        self._problem = ""
        self._newest_report = -2
        """Number of the newest processed report; -1 after the start, -2 before."""
        self._decisions: deque[SearchDecided] = deque()
        """Decisions not yet found in the log, the oldest first."""
        self._num_decisions = 0
        """Total number of decisions."""
        self._ordered = 0
        self._wanted: deque[tuple[range, tuple[Past, ...]]] = deque()
        """Requested suggestions: their numbers, and the history for the sampler."""
        self._request, self._first_workers = request, run.search.first_workers
        self._largest_batch = min(run.fit_rows.values())
        self._procedure_answers = Answered() if isinstance(request.search.procedure, OwnProcedure) else None
        self._lines: tuple[list[str], list[str]] = [], []
        """Serialized reports and answers up to now."""
        sampler = request.search.sampler.kind
        self.is_drawn_here = sampler == "random"
        """True if suggestions are instant, so that the decision computes them."""
        self.is_drawn_by_workers = not self.is_drawn_here and sampler not in drawable
        try:
            self._search = Search(
                request.search,
                epochs=request.epochs,
                metric=request.metric,
                mode=request.mode,
                seed=request.seed,
                workers=run.search.first_workers,
                largest_batch=self._largest_batch,
                user_procedure=self._procedure_answers,
            )
        except CerebroError as error:
            self._problem = str(error)

    def steps(self, run: Run) -> list[ControllerEvent]:
        """Return the events to write now; none while the run waits for results."""
        log = run.search
        assert log is not None
        self._process_reports(run)
        problem = self._problem or self._difference(run)
        if problem:
            return self._given_up(run, problem)
        if self.is_behind(run):
            return []
        if self._decisions:
            return [self._decisions[0]]
        if self.is_drawn_here and (drawn := self.drawn(run)) is not None:
            return [drawn]
        if self.is_drawn_by_workers and (drawn := self._drawn_by_worker(run, log)) is not None:
            return [drawn]
        if log.failures:
            return self._given_up(run, "; ".join(failure.text for failure in log.failures.values()))
        if self._newest_report < len(log.reports) - 1:
            return []  # a worker has the request
        if log.finish is None and not log.open_draws and not run.counts.active and self._search.is_stuck:
            reason = (
                f"the search procedure {self._search.procedure_name!r} waits for nothing and has not finished: nothing "
                "is trained and nothing is drawn. Add models, or stop the run"
            )
            return [RunPaused(run=run.id, reason=reason)]
        return []

    def question(self, run: Run) -> DrawQuestion | None:
        """Return the sampler request for the next suggestions, unless they are instant."""
        return None if self.is_drawn_here or self._problem else self._question(run)

    def orders_question(self, run: Run) -> OrdersQuestion | None:
        """Return the next request to a user's own procedure, if it has unanswered reports."""
        log = run.search
        assert log is not None
        if (
            self._procedure_answers is None
            or self._problem
            or self._newest_report >= len(log.reports) - 1
            or self._can_process_next(log)
        ):
            return None
        assert self._request.search is not None
        reports, orders = self._lines
        reports += map(report_line, log.reports[len(reports) :])
        orders += map(orders_line, log.answers[len(orders) :])
        request = self._request.search
        if log.replaced_by is not None:
            request = request.model_copy(update={"procedure": log.replaced_by})
        return OrdersQuestion(
            request=request,
            epochs=self._request.epochs,
            metric=self._request.metric,
            mode=self._request.mode,
            seed=self._request.seed,
            workers=self._first_workers,
            largest_batch=self._largest_batch,
            log=packed(reports, orders),
        )

    def drawn(self, run: Run) -> ValuesDrawn | None:
        """Return the next suggestions, or `None`."""
        question = self._question(run)
        if question is None:
            return None
        return ValuesDrawn(run=run.id, first=question.numbers[0], values=tuple(values_for(question)))

    def _drawn_by_worker(self, run: Run, log: SearchLog) -> ValuesDrawn | None:
        values, question = log.values.get(log.drawn), self._question(run)
        if values is None or question is None:
            return None
        return ValuesDrawn(run=run.id, first=log.drawn, values=values[: len(question.numbers)])

    def _question(self, run: Run) -> DrawQuestion | None:
        log, request, seed = run.search, self._search.request, self._search.facts.seed
        assert log is not None
        while self._wanted and self._wanted[0][0].stop <= log.drawn:
            self._wanted.popleft()
        if not self._wanted or not self._search.open_draws:
            return None  # the search has ended since
        numbers, history = self._wanted[0]
        wanted = range(max(numbers.start, log.drawn), min(numbers.stop, log.num_requested))
        return draw_question(request.sampler, request.space, history, wanted, seed) if wanted else None

    def is_behind(self, run: Run) -> bool:
        """True if it can process more reports now; there are many after a change of leader."""
        log = run.search
        if log is None or self._problem or self._newest_report + 1 >= len(log.reports):
            return False
        return self._can_process_next(log)

    def _can_process_next(self, log: SearchLog) -> bool:
        """True if the procedure's answer to the next report is known, or it has finished."""
        is_over = self._newest_report >= -1 and self._search.is_finished
        return self._procedure_answers is None or is_over or self._newest_report + 2 < len(log.answers)

    def _given_up(self, run: Run, problem: str) -> list[ControllerEvent]:
        """Return the events for a search that cannot continue. A search that a user has ended need not."""
        log = run.search
        assert log is not None
        if log.finish is not None:
            return []
        if log.is_closed:
            newest = log.decisions[-1].report if log.decisions else -1
            return [SearchDecided(run=run.id, number=len(log.decisions), report=newest, finish=problem)]
        return [RunPaused(run=run.id, reason=problem)]

    # --- mechanism -------------------------------------------------------------------------------

    def _process_reports(self, run: Run) -> None:
        log = run.search
        assert log is not None
        for _ in range(_AT_ONCE):
            if not self.is_behind(run):
                return
            if self._procedure_answers is not None and self._newest_report + 2 < len(log.answers):
                self._procedure_answers.give(log.answers[self._newest_report + 2])
            try:
                report = self._newest_report + 1
                orders = self._search.begin() if report < 0 else self._search.on_report(log.reports[report])
            except CerebroError as error:
                self._problem = str(error)
                return
            self._newest_report += 1
            self._keep(orders)
            self._want(log.drawn)

    def _want(self, drawn: int) -> None:
        """Keep the history at the time of the request, so that a repeated request after a crash is equal."""
        ordered = self._search.open_draws.stop
        if ordered > self._ordered and ordered > drawn:
            self._wanted.append((range(self._ordered, ordered), self._search.history()))
        self._ordered = max(self._ordered, ordered)

    def _keep(self, orders: Iterable[Order]) -> None:
        orders = list(orders)
        if orders:
            self._decisions.append(_event(self.run, self._num_decisions, self._newest_report, orders))
            self._num_decisions += 1

    def _difference(self, run: Run) -> str:
        """Return how the logged decisions differ from the replayed ones, or ""."""
        log = run.search
        assert log is not None
        while (number := self._num_decisions - len(self._decisions)) < len(log.decisions):
            if not self._decisions and self.is_behind(run):
                return ""
            logged = log.decisions[number].model_copy(update={"seq": 0, "time": 0.0})
            decision = self._decisions[0] if self._decisions else None
            if logged != decision:
                return (
                    f"decision {number} of the search is another one in the log than this version makes "
                    f"({_short(logged)}; now {_short(decision) if decision else 'none'}): go on with the version "
                    "that began the run, or stop it and start it anew"
                )
            self._decisions.popleft()
        return ""


def _event(run: str, number: int, report: int, orders: list[Order]) -> SearchDecided:
    draw, add, extend, stop, finish = 0, [], [], {}, None
    for order in orders:
        match order:
            case Draw():
                draw += order.count
            case Add():
                origin = Origin(model=order.origin) if order.origin is not None else None
                add.append(
                    NewModel(
                        hyperparams=order.hyperparams,
                        epochs=order.epochs,
                        origin=origin,
                        priority=order.priority,
                    )
                )
            case Extend():
                extend.append(Extension(order.model, order.epochs, order.priority))
            case Stop():
                stop[order.model] = order.why
            case Finish():
                finish = order.why
    return SearchDecided(
        run=run,
        number=number,
        report=report,
        draw=draw,
        add=tuple(add),
        extend=tuple(extend),
        stop=stop,
        finish=finish,
    )


def _short(event: SearchDecided) -> str:
    return event.model_dump_json(exclude={"seq", "time", "type", "run", "number"})[:200]
