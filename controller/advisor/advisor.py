"""When to look for a better order, and whether to take what was found: the thesis's interleaving (section 4.2.2).

Dispatch decides from the first unit on. As soon as every model has run somewhere, a helper beside the controller is
asked for a plan of what is left, then, if that is still away from the bound, for an exact solver's. A plan is taken
over only if the helper, asked once more when the answer is there, finds it better than dispatch for what is left
*then*, at the noise of unit times measured so far. Asked again when an epoch is complete and whenever a worker was lost
or joined.

Never waits: `advise` looks whether an answer is there, and asks the next question.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

from cerebro.contract.events import FitRequest, PlannedUnit, SchedulePlanned
from controller.advisor.question import order_from_json, question, to_json
from controller.core import Core
from controller.fit_board import FitBoard

log = logging.getLogger(__name__)

_WORTH = 0.01
"""Share of the time left that a plan must save: less is lost in the noise of the simulations that compare them."""

_SHORTEST_S = 2.0
"""With less left to run, looking would take longer than it could save."""


class Helper(Protocol):
    """Answers one question at a time, out of the way of whoever asks. Used by one thread."""

    def ask(self, message: Mapping[str, Any]) -> None:
        """Put a question; a question that is not answered yet is given up."""
        ...

    def answer(self) -> dict[str, Any] | None:
        """The answer to the newest question, once; `None` while there is none."""
        ...

    def rest(self) -> None:
        """Nothing will be asked for a while: give back what the helper holds."""
        ...


class Advisor:
    """Keeps one question open at a time. Forgets everything when the controller dies: the log has the plans."""

    def __init__(self, helper: Helper) -> None:
        self._helper = helper
        self._asked_for: object = None
        """What was true when the last round of questions began: a new round begins when it has changed."""
        self._stage = ""
        """The open question, `plan`, `solve` or `judge`; empty while there is none."""
        self._found: _Found | None = None
        self._is_solved = False

    def advise(self, core: Core) -> SchedulePlanned | None:
        """A plan to follow from now on, if one was found since the last call. Call it after every change."""
        fit = core.board
        if fit is None or not _is_wanted(core, fit):
            self._end()
            return None
        occasion = _occasion(core, fit)
        if occasion != self._asked_for:
            self._asked_for, self._found, self._is_solved = occasion, None, False
            self._ask("plan", fit)
            return None
        if not self._stage:
            return None
        answer = self._helper.answer()
        return self._take(core, fit, answer) if answer is not None else None

    def _end(self) -> None:
        if self._asked_for is not None:
            self._asked_for, self._stage, self._found = None, "", None
            self._helper.rest()

    def _ask(self, stage: str, fit: FitBoard) -> None:
        asked = question(fit)
        if asked is None:
            self._stage = ""
            if stage == "plan":
                self._asked_for = None  # once every model has run, or there is something left
            return
        self._stage = stage
        message = {"ask": stage, "problem": to_json(asked.problem), "sigma": fit.estimates.sigma}
        if self._found:
            message["order"] = asked.order(fit, self._found.order)
        if stage != "judge":
            self._question = asked
        self._helper.ask(message)

    def _take(self, core: Core, fit: FitBoard, answer: Mapping[str, Any]) -> SchedulePlanned | None:
        stage, self._stage = self._stage, ""
        if "error" in answer:
            log.warning("no plan for %s: %s", fit.run, answer["error"])
            return None
        if stage == "judge":
            return self._judged(fit, answer)
        order = order_from_json(answer["order"])
        is_better = answer["planned_s"] < (1 - _WORTH) * answer["dispatch_s"]
        self._is_solved |= stage == "solve" or answer["is_optimal"]
        if is_better:
            self._found = _Found(answer, self._question.planned(fit, order))
            self._ask("judge", fit)
            return None
        self._go_on(fit)
        return _dispatch_again(core, fit, answer)

    def _judged(self, fit: FitBoard, answer: Mapping[str, Any]) -> SchedulePlanned | None:
        found, self._found = self._found, None
        self._go_on(fit)
        if found is None or answer["planned_s"] >= (1 - _WORTH) * answer["dispatch_s"]:
            return None
        return SchedulePlanned(
            run=fit.run,
            source=found.source,
            order=found.order,
            makespan_s=answer["planned_s"],
            dispatch_s=answer["dispatch_s"],
            lower_bound_s=answer["lower_bound"],
            seconds=found.seconds,
        )

    def _go_on(self, fit: FitBoard) -> None:
        if not self._is_solved:
            self._ask("solve", fit)


class _Found:
    """A plan that waits to be judged."""

    def __init__(self, answer: Mapping[str, Any], order: tuple[PlannedUnit, ...]) -> None:
        self.source: str = answer["source"]
        self.seconds: float = answer["seconds"]
        self.order = order


def _dispatch_again(core: Core, fit: FitBoard, answer: Mapping[str, Any]) -> SchedulePlanned | None:
    """No plan is better any more: one that is being followed is void."""
    planned = core.state.runs[fit.run].planned
    if planned is None or not planned.order:
        return None
    return SchedulePlanned(
        run=fit.run,
        source="dispatch",
        order=(),
        makespan_s=answer["dispatch_s"],
        dispatch_s=answer["dispatch_s"],
        lower_bound_s=answer["lower_bound"],
        seconds=answer["seconds"],
    )


def _is_wanted(core: Core, fit: FitBoard) -> bool:
    request = core.state.runs[fit.run].request
    return (
        isinstance(request, FitRequest)
        and request.planner
        and request.scheduler == "lrptw"
        and len(fit.workers) > 1
        and fit.estimates.observations >= len(fit.models)
        and max(fit.board.worker_left) > _SHORTEST_S
    )


def _occasion(core: Core, fit: FitBoard) -> object:
    crew = tuple(name for name, held in zip(fit.workers, fit.board.held, strict=True) if held)
    return fit.run, len(core.state.runs[fit.run].epochs), crew
