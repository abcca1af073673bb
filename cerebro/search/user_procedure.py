"""A user's own procedure on a worker, and its stand-in in the controller.

The stand-in passes on the worker's orders. The worker replays the whole search for each request, so it keeps
no state between requests. The orders must repeat: a procedure that depends on anything but its reports could
not continue after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import ValidationError

from cerebro.contract.search import OwnProcedure
from cerebro.contract.search_questions import Orders, OrdersQuestion
from cerebro.errors import SearchError
from cerebro.search.procedure import Add, Draw, Extend, Facts, Finish, Order, Procedure, Report, Stop
from cerebro.search.transducer import Search
from cerebro.search.wire_format import order_data, order_of, orders_line, unpacked

_KINDS = (Draw, Add, Extend, Stop, Finish)


class Answered:
    """Stand-in for a procedure that runs on a worker.

    Returns the orders from `give` at the next report.
    """

    def __init__(self) -> None:
        self.orders: list[Order] = []

    def begin(self, facts: Facts) -> list[Order]:
        """Return the orders from `give`."""
        return self._taken()

    def on_report(self, report: Report) -> list[Order]:
        """Return the orders from `give` once: `Search` may pass on one report as several."""
        return self._taken()

    def give(self, orders: Orders) -> None:
        """Set the orders for the next report."""
        self.orders = [order_of(each) for each in orders]

    def _taken(self) -> list[Order]:
        orders, self.orders = self.orders, []
        return orders


class _Recorder:
    """Wraps a user's procedure: checks each order and records it."""

    def __init__(self, procedure: Procedure, name: str) -> None:
        self._procedure, self._name = procedure, name
        self.orders: list[Any] = []

    def begin(self, facts: Facts) -> list[Order]:
        return self._checked("begin", self._procedure.begin(facts))

    def on_report(self, report: Report) -> list[Order]:
        return self._checked("on_report", self._procedure.on_report(report))

    def take(self) -> Orders:
        """Return the orders since the last call."""
        orders, self.orders = tuple(self.orders), []
        return orders

    def _checked(self, method: str, returned: object) -> list[Order]:
        call = f"{self._name}.{method}()"
        expected = "expected a list of orders (Draw, Add, Extend, Stop, Finish of cerebro.search)"
        if not isinstance(returned, list | tuple):
            raise SearchError(f"{call} returned {_short(returned)}, {expected}; return [] for none")
        data = []
        for order in returned:
            if type(order) not in _KINDS:
                raise SearchError(f"{call} returned {_short(order)} among its orders, {expected}")
            try:
                data.append(order_data(order))
            except ValidationError as cause:
                first = cause.errors()[0]
                where = ".".join(map(str, first["loc"]))
                raise SearchError(
                    f"{call} ordered {_short(order)}: {where} is {_short(first['input'])}, {first['msg']}"
                ) from None
            except ValueError as cause:
                raise SearchError(f"{call} ordered {_short(order)}: {cause}") from None
        self.orders += data
        return [order_of(each) for each in data]


def search_of(question: OrdersQuestion, procedure: Procedure) -> Search:
    """Build the search of a request, before its first report."""
    return Search(
        question.request,
        epochs=question.epochs,
        metric=question.metric,
        mode=question.mode,
        seed=question.seed,
        workers=question.workers,
        largest_batch=question.largest_batch,
        user_procedure=procedure,
    )


def answer(question: OrdersQuestion, make: Callable[[], Any]) -> tuple[Orders, ...]:
    """Return a procedure's orders for all reports without an answer.

    Args:
        make: returns a new procedure. Runs user code.

    Raises:
        SearchError: the object is no procedure, an order is impossible, or earlier orders did not repeat.
        Exception: any exception of user code.
    """
    choice = question.request.procedure
    assert isinstance(choice, OwnProcedure)
    reports, known = unpacked(question.log)
    recorder = _Recorder(make(), choice.name)
    search = search_of(question, recorder)
    answers: list[Orders] = []
    for number in range(len(reports) + 1):
        try:
            _pass_report(search, reports, number)
        except SearchError as error:
            raise SearchError(f"{error} ({_moment(reports, number)})") from None
        orders = recorder.take()
        if number < len(known) and orders_line(orders) != orders_line(known[number]):
            raise SearchError(_difference(choice.name, _moment(reports, number), known[number], orders))
        answers.append(orders)
    return tuple(answers[len(known) :])


def _pass_report(search: Search, reports: Sequence[Report], number: int) -> None:
    if number:
        search.on_report(reports[number - 1])
    else:
        search.begin()


def _moment(reports: Sequence[Report], number: int) -> str:
    return f"on {_short(reports[number - 1])}" if number else "at its start"


def _difference(name: str, when: str, before: Orders, now: Orders) -> str:
    place = next(
        (n for n, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), min(len(before), len(now))
    )
    was = _short(order_of(before[place])) if place < len(before) else "nothing more"
    is_now = _short(order_of(now[place])) if place < len(now) else "nothing more"
    return (
        f"{name} has ordered {was} {when}, and now it orders {is_now}: a procedure's orders may depend only on "
        "its reports (random numbers come from facts.rng(number); the order of a set is another one in "
        "each process). End the search with stop_search(), or start a new run"
    )


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - user code; the message reports another mistake
        text = f"a {type(value).__name__} (its repr raised {type(error).__name__})"
    return text if len(text) <= 200 else f"{text[:200]}..."
