"""A run's search, kept in step with its log: what it has to decide now, and whether it still decides the same.

The search is told all reports of the log, from the first one on, by whoever leads. Its orders must equal those that
are logged, as far as they go; what is more is written. Where they differ its code has changed, and the run is paused
instead of going on as if it had been another search from the beginning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from cerebro.contract.events import ControllerEvent, Extension, RunPaused, SearchDecided, ValuesDrawn
from cerebro.contract.runs import FitRequest, NewModel, Origin
from cerebro.errors import CerebroError
from cerebro.search.history import Past
from cerebro.search.procedure import Add, Draw, Extend, Finish, Order, Stop
from cerebro.search.transducer import Search
from cerebro.state import Run
from controller.drawing.questions import Question

_AT_ONCE = 2000
"""So many reports are told at most before others have their turn."""


class Searching:
    """The search of one run. Asked often; each report is told once.

    Attributes:
        run: its id.
    """

    def __init__(self, run: Run) -> None:
        request = run.request
        assert isinstance(request, FitRequest)
        assert request.search is not None
        assert run.search is not None
        self.run = run.id
        self._problem = ""
        self._told = -1
        """Number of the newest report that it was told; -1: it has begun."""
        self._decisions: deque[SearchDecided] = deque()
        """What it has ordered and the log was not seen to have; the oldest first."""
        self._made = 0
        """Decisions in all."""
        self._ordered = 0
        self._wanted: deque[tuple[range, tuple[Past, ...]]] = deque()
        """Values that were ordered and may not be drawn: their numbers, and what the sampler is to know for them."""
        try:
            self._search = Search(
                request.search,
                epochs=request.epochs,
                metric=request.metric,
                mode=request.mode,
                seed=request.seed,
                workers=run.search.first_workers,
            )
            self._keep(self._search.begin())
            self._want(run.search.drawn)
        except CerebroError as error:
            self._problem = str(error)

    @property
    def is_drawn_here(self) -> bool:
        """Whether its values are drawn in no time, and so by whoever decides."""
        return self._search.request.sampler.kind == "random"

    def steps(self, run: Run) -> list[ControllerEvent]:
        """What is to be written now; nothing while the run is to wait for what was ordered."""
        log = run.search
        assert log is not None
        self._tell(run)
        problem = self._problem or self._difference(run)
        if problem:
            return self._given_up(run, problem)
        if self.is_behind(run):
            return []
        if self._decisions:
            return [self._decisions[0]]
        if self.is_drawn_here and (drawn := self.drawn(run)) is not None:
            return [drawn]
        if log.finish is None and not log.open_draws and not run.counts.active and self._search.is_stuck:
            kind = self._search.request.procedure.kind
            reason = (
                f"the search procedure {kind!r} waits for nothing and has not finished: nothing is trained and nothing "
                "is drawn. Add models, or stop the run"
            )
            return [RunPaused(run=run.id, reason=reason)]
        return []

    def question(self, run: Run) -> Question | None:
        """What the sampler is to be asked for the values that are wanted next, if it draws beside the loop."""
        return None if self.is_drawn_here or self._problem else self._question(run)

    def drawn(self, run: Run) -> ValuesDrawn | None:
        """The values that are wanted next; `None`: none are."""
        question = self._question(run)
        if question is None:
            return None
        return ValuesDrawn(run=run.id, first=question.numbers[0], values=tuple(question.answer()))

    def _question(self, run: Run) -> Question | None:
        log, request, seed = run.search, self._search.request, self._search.facts.seed
        assert log is not None
        while self._wanted and self._wanted[0][0].stop <= log.drawn:
            self._wanted.popleft()
        if not self._wanted or not self._search.open_draws:
            return None  # it has been ended since
        numbers, history = self._wanted[0]
        wanted = range(max(numbers.start, log.drawn), min(numbers.stop, log.asked))
        return Question.of(request.sampler, request.space, history, wanted, seed) if wanted else None

    def is_behind(self, run: Run) -> bool:
        """Whether it has not been told all reports: they are many where a controller has just begun to lead."""
        return run.search is not None and not self._problem and self._told + 1 < len(run.search.reports)

    def _given_up(self, run: Run, problem: str) -> list[ControllerEvent]:
        """What is to be written of a search that cannot go on: where a user has ended it, it need not."""
        log = run.search
        assert log is not None
        if log.finish is not None:
            return []
        if log.is_closed:
            newest = log.decisions[-1].report if log.decisions else -1
            return [SearchDecided(run=run.id, number=len(log.decisions), report=newest, finish=problem)]
        return [RunPaused(run=run.id, reason=problem)]

    # --- mechanism -------------------------------------------------------------------------------

    def _tell(self, run: Run) -> None:
        log = run.search
        assert log is not None
        for _ in range(_AT_ONCE):
            if not self.is_behind(run):
                return
            report = log.reports[self._told + 1]
            try:
                orders = self._search.told(report)
            except CerebroError as error:
                self._problem = str(error)
                return
            self._told += 1
            self._keep(orders)
            self._want(log.drawn)

    def _want(self, drawn: int) -> None:
        """Keep what the sampler is to know for values that have just been ordered: what is told later is not for them,
        so whoever asks again, after a crash, asks the same."""
        ordered = self._search.open_draws.stop
        if ordered > self._ordered and ordered > drawn:
            self._wanted.append((range(self._ordered, ordered), self._search.history()))
        self._ordered = max(self._ordered, ordered)

    def _keep(self, orders: Iterable[Order]) -> None:
        orders = list(orders)
        if orders:
            self._decisions.append(_event(self.run, self._made, self._told, orders))
            self._made += 1

    def _difference(self, run: Run) -> str:
        """How the log's decisions differ from these; empty if they do not, as far as it was told."""
        log = run.search
        assert log is not None
        while (number := self._made - len(self._decisions)) < len(log.decisions):
            if not self._decisions and self.is_behind(run):
                return ""
            logged = log.decisions[number].model_copy(update={"seq": 0, "time": 0.0})
            made = self._decisions[0] if self._decisions else None
            if logged != made:
                return (
                    f"decision {number} of the search is another one in the log than this version makes "
                    f"({_short(logged)}; now {_short(made) if made else 'none'}): go on with the version that began "
                    "the run, or stop it and start it anew"
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
