"""A user's own procedure on a worker (`answer`), and its stand-in in the controller (`Answered`).

`cerebro.worker.searches` calls `answer` in a child process; the controller opens no user code.

The stand-in passes on the worker's actions. The worker replays the whole search for each request, so it keeps
no state between requests. The actions must repeat: a procedure that depends on anything but its reports could
not continue after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from cerebro.contract.search import OwnProcedure
from cerebro.contract.search_tasks import Actions, ActionsRequest
from cerebro.errors import SearchError
from cerebro.search.pareto import Criteria
from cerebro.search.procedure import Action, Add, Extend, Facts, Finish, Procedure, Report, Stop, Suggest
from cerebro.search.transducer import Search
from cerebro.search.wire_format import action_data, action_of, actions_line, unpacked

_KINDS = (Suggest, Add, Extend, Stop, Finish)


class Answered:
    """Stand-in for a procedure that runs on a worker.

    Returns the worker's actions, set by `give`, at the next report.
    """

    def __init__(self) -> None:
        self.actions: list[Action] = []

    def begin(self, facts: Facts) -> list[Action]:
        """Return the actions from `give`."""
        return self._take_actions()

    def on_report(self, report: Report) -> list[Action]:
        """Return the actions from `give` once: `Search` may pass on one report as several."""
        return self._take_actions()

    def set_actions(self, actions: Actions) -> None:
        """Set the actions for the next report."""
        self.actions = [action_of(each) for each in actions]

    def _take_actions(self) -> list[Action]:
        actions, self.actions = self.actions, []
        return actions


class Recorder:
    """Wraps a user's procedure: checks each action and records it."""

    def __init__(self, procedure: Procedure, name: str) -> None:
        self._procedure, self._name = procedure, name
        self.actions: list[Any] = []

    def begin(self, facts: Facts) -> list[Action]:
        """Return the procedure's first actions."""
        return self._checked("begin", self._procedure.begin(facts))

    def on_report(self, report: Report) -> list[Action]:
        """Return the procedure's actions after a report."""
        return self._checked("on_report", self._procedure.on_report(report))

    def take(self) -> Actions:
        """Return the actions since the last call."""
        actions, self.actions = tuple(self.actions), []
        return actions

    def _checked(self, method: str, returned: object) -> list[Action]:
        call = f"{self._name}.{method}()"
        expected = "expected a list of actions (Suggest, Add, Extend, Stop, Finish of cerebro.search)"
        if not isinstance(returned, list | tuple):
            raise SearchError(f"{call} returned {_short(returned)}, {expected}; return [] for none")
        data = []
        for action in returned:
            if type(action) not in _KINDS:
                raise SearchError(f"{call} returned {_short(action)} among its actions, {expected}")
            try:
                data.append(action_data(action))
            except ValidationError as cause:
                first = cause.errors()[0]
                where = ".".join(map(str, first["loc"]))
                raise SearchError(
                    f"{call} returned {_short(action)}: {where} is {_short(first['input'])}, {first['msg']}"
                ) from None
            except ValueError as cause:
                raise SearchError(f"{call} returned {_short(action)}: {cause}") from None
        self.actions += data
        return [action_of(each) for each in data]


def search_of(request: ActionsRequest, procedure: Procedure) -> Search:
    """Build the search of a request, before its first report."""
    return Search(
        request.search,
        epochs=request.epochs,
        metric=request.metric,
        mode=request.mode,
        seed=request.seed,
        workers=request.workers,
        largest_batch=request.largest_batch,
        user_procedure=procedure,
        criteria=Criteria(objectives=request.objectives, constraints=request.constraints),
    )


def answer(request: ActionsRequest, make: Callable[[], Any]) -> tuple[Actions, ...]:
    """Return a procedure's actions for all reports without an answer.

    Args:
        make: returns a new procedure. Runs user code.

    Raises:
        SearchError: the object is no procedure, an action is impossible, or earlier actions did not repeat.
        Exception: any exception of user code.
    """
    choice = request.search.procedure
    assert isinstance(choice, OwnProcedure)
    reports, known = unpacked(request.log)
    recorder = Recorder(make(), choice.name)
    search = search_of(request, recorder)
    answers: list[Actions] = []
    for number in range(len(reports) + 1):
        try:
            _pass_report(search, reports, number)
        except SearchError as error:
            raise SearchError(f"{error} ({_when(reports, number)})") from None
        actions = recorder.take()
        if number < len(known) and actions_line(actions) != actions_line(known[number]):
            raise SearchError(_difference(choice.name, _when(reports, number), known[number], actions))
        answers.append(actions)
    return tuple(answers[len(known) :])


def _pass_report(search: Search, reports: Sequence[Report], number: int) -> None:
    if number:
        search.on_report(reports[number - 1])
    else:
        search.begin()


def _when(reports: Sequence[Report], number: int) -> str:
    return f"on {_short(reports[number - 1])}" if number else "at its start"


def _difference(name: str, when: str, before: Actions, now: Actions) -> str:
    place = next(
        (n for n, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now))
    )
    was = _short(action_of(before[place])) if place < len(before) else "nothing more"
    is_now = _short(action_of(now[place])) if place < len(now) else "nothing more"
    return (
        f"{name} returned {was} {when}, and now it returns {is_now}: a procedure's actions may depend only on "
        "its reports (random numbers come from facts.rng(number); the order of a set is another one in "
        "each process). End the search with stop_search(), or start a new run"
    )


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - user code; the message reports another mistake
        text = f"a {type(value).__name__} (its repr raised {type(error).__name__})"
    return text if len(text) <= 200 else f"{text[:200]}..."
