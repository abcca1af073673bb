"""A run's search, replayed from its log: its next decisions, and whether they match the log.

A controller that becomes leader passes all reports of the log to the search. The search's actions must equal the logged
decisions; new ones are written. If they differ, its code has changed, and the run is paused.

A user's own procedure runs on workers. Here its answers are read from the log: a report is processed once its answer is
there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from cerebro.contract.events import ControllerEvent, Extension, RunPaused, SearchDecided, ValuesSuggested
from cerebro.contract.runs import FitPlan, FitRequest, NewModel, ParentCheckpoint
from cerebro.contract.search import SAMPLERS, OwnProcedure
from cerebro.contract.search_tasks import ActionsRequest, SuggestionsRequest
from cerebro.errors import CerebroError
from cerebro.search.history import Past
from cerebro.search.pareto import Criteria
from cerebro.search.procedure import Action, Add, Extend, Finish, Stop, Suggest
from cerebro.search.suggestions import suggestions_request, values_for
from cerebro.search.transducer import Search
from cerebro.search.user_procedure import Answered
from cerebro.search.wire_format import actions_line, packed, report_line
from cerebro.state import Run
from cerebro.state.runs.search_log import SearchLog

_AT_ONCE = 2000
"""Maximum reports processed in one call, so that other work is not delayed."""


ALL_SAMPLERS = frozenset(SAMPLERS)
"""Kinds of all built-in samplers. A user's own sampler runs on workers only."""


class Searching:
    """The search of one run. It processes each report once.

    Args:
        installed_samplers: kinds of samplers that can run in the controller; workers run the others.

    Attributes:
        run: id of the run.
    """

    def __init__(self, run: Run, installed_samplers: Collection[str] = ALL_SAMPLERS) -> None:
        request = run.request
        assert isinstance(request, FitRequest)
        assert request.search is not None
        assert run.search is not None
        assert isinstance(run.plan, FitPlan)
        self.run = run.id
        self._problem = ""
        self._newest_report = -2
        """Number of the newest processed report; -1 after the start, -2 before."""
        self._decisions: deque[SearchDecided] = deque()
        """Decisions not yet found in the log, the oldest first."""
        self._num_decisions = 0
        """Total number of decisions."""
        self._num_requested = 0
        self._pending_suggestions: deque[tuple[range, tuple[Past, ...]]] = deque()
        """Requested suggestions: their numbers, and the history for the sampler."""
        self._request, self._first_workers = request, run.search.first_workers
        self._largest_batch = min(run.fit_rows.values())
        self._procedure_answers = Answered() if isinstance(request.search.procedure, OwnProcedure) else None
        self._lines: tuple[list[str], list[str]] = [], []
        """Serialized reports and answers up to now."""
        sampler = request.search.sampler.kind
        self.is_sampled_inline = sampler == "random"
        """True if suggestions are instant, so that the decision computes them."""
        self.is_sampled_by_workers = not self.is_sampled_inline and sampler not in installed_samplers
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
                criteria=Criteria.of(request),
                earlier=[model for each in run.plan.earlier for model in each.models],
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
        if self.is_sampled_inline and (suggested := self.next_suggestions(run)) is not None:
            return [suggested]
        if self.is_sampled_by_workers and (suggested := self._suggested_by_worker(run, log)) is not None:
            return [suggested]
        if log.failures:
            return self._given_up(run, "; ".join(failure.text for failure in log.failures.values()))
        if self._newest_report < len(log.reports) - 1:
            return []  # a worker has the request
        if (
            log.finish is None
            and not log.open_suggestions
            and not run.counts.active
            and self._search.is_stuck
        ):
            reason = (
                f"the search procedure {self._search.procedure_name!r} waits for nothing and has not finished: nothing "
                "is trained and nothing is requested. Add models, or stop the run"
            )
            return [RunPaused(run=run.id, reason=reason)]
        return []

    def sampler_request(self, run: Run) -> SuggestionsRequest | None:
        """Return the sampler request for the next suggestions, unless they are instant."""
        return None if self.is_sampled_inline or self._problem else self._sampler_request(run)

    def procedure_request(self, run: Run) -> ActionsRequest | None:
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
        reports, actions = self._lines
        reports += map(report_line, log.reports[len(reports) :])
        actions += map(actions_line, log.answers[len(actions) :])
        search = self._request.search
        if log.replaced_by is not None:
            search = search.model_copy(update={"procedure": log.replaced_by})
        return ActionsRequest(
            search=search,
            epochs=self._request.epochs,
            metric=self._request.metric,
            mode=self._request.mode,
            objectives=dict(Criteria.of(self._request).objectives),
            constraints=self._request.constraints,
            seed=self._request.seed,
            workers=self._first_workers,
            largest_batch=self._largest_batch,
            log=packed(reports, actions),
        )

    def next_suggestions(self, run: Run) -> ValuesSuggested | None:
        """Return the next suggestions, or `None`."""
        sampler_request = self._sampler_request(run)
        if sampler_request is None:
            return None
        return ValuesSuggested(
            run=run.id, first=sampler_request.numbers[0], values=tuple(values_for(sampler_request))
        )

    def _suggested_by_worker(self, run: Run, log: SearchLog) -> ValuesSuggested | None:
        values, sampler_request = log.values.get(log.num_suggested), self._sampler_request(run)
        if values is None or sampler_request is None:
            return None
        return ValuesSuggested(
            run=run.id, first=log.num_suggested, values=values[: len(sampler_request.numbers)]
        )

    def _sampler_request(self, run: Run) -> SuggestionsRequest | None:
        log, request, seed = run.search, self._search.request, self._search.facts.seed
        assert log is not None
        while self._pending_suggestions and self._pending_suggestions[0][0].stop <= log.num_suggested:
            self._pending_suggestions.popleft()
        if not self._pending_suggestions or not self._search.open_suggestions:
            return None  # the search has ended since
        numbers, history = self._pending_suggestions[0]
        wanted = range(max(numbers.start, log.num_suggested), min(numbers.stop, log.num_requested))
        return suggestions_request(request.sampler, request.space, history, wanted, seed) if wanted else None

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
                self._procedure_answers.set_actions(log.answers[self._newest_report + 2])
            try:
                report = self._newest_report + 1
                actions = self._search.begin() if report < 0 else self._search.on_report(log.reports[report])
            except CerebroError as error:
                self._problem = str(error)
                return
            self._newest_report += 1
            self._keep(actions)
            self._want(log.num_suggested)

    def _want(self, num_suggested: int) -> None:
        """Keep the history at the time of the request, so that a repeated request after a crash is equal."""
        requested = self._search.open_suggestions.stop
        if requested > self._num_requested and requested > num_suggested:
            self._pending_suggestions.append((range(self._num_requested, requested), self._search.history()))
        self._num_requested = max(self._num_requested, requested)

    def _keep(self, actions: Iterable[Action]) -> None:
        actions = list(actions)
        if actions:
            self._decisions.append(_event(self.run, self._num_decisions, self._newest_report, actions))
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
                    f"({_short(logged)}; now {_short(decision) if decision else 'none'}): continue with the version "
                    "that began the run, or stop it and start a new run"
                )
            self._decisions.popleft()
        return ""


def _event(run: str, number: int, report: int, actions: list[Action]) -> SearchDecided:
    suggest, add, extend, stop, finish = 0, [], [], {}, None
    for action in actions:
        match action:
            case Suggest():
                suggest += action.count
            case Add():
                checkpoint = ParentCheckpoint(model=action.parent) if action.parent is not None else None
                add.append(
                    NewModel(
                        hyperparams=action.hyperparams,
                        epochs=action.epochs,
                        checkpoint=checkpoint,
                        priority=action.priority,
                    )
                )
            case Extend():
                extend.append(Extension(action.model, action.epochs, action.priority))
            case Stop():
                stop[action.model] = action.why
            case Finish():
                finish = action.why
    return SearchDecided(
        run=run,
        number=number,
        report=report,
        suggest=suggest,
        add=tuple(add),
        extend=tuple(extend),
        stop=stop,
        finish=finish,
    )


def _short(event: SearchDecided) -> str:
    return event.model_dump_json(exclude={"seq", "time", "type", "run", "number"})[:200]
