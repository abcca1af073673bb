"""A user's procedure in another process: replayed answers give the same orders."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.search import CMA, OwnProcedure, Space, Uniform
from cerebro.contract.search_questions import OrdersQuestion
from cerebro.errors import SearchError
from cerebro.search import Drawn, Measured, Order, Procedure, Report
from cerebro.search.history import Past
from cerebro.search.questions import draw_question, drawable, values_for
from cerebro.search.user_procedure import Answered, answer, search_of
from cerebro.search.wire_format import orders_line, packed, report_line, unpacked
from tests.search.driving import Run, asked
from tests.search.own_procedures import Halving, Scripted

OWN = OwnProcedure(code="1" * 64, name="Mine")


def question(told: str = "", **settings: object) -> OrdersQuestion:
    request = asked(OWN, samples=30)
    return OrdersQuestion(
        request=request.model_copy(update=settings),
        epochs=9,
        metric="score",
        mode="max",
        seed=7,
        workers=2,
        largest_batch=64,
        log=told,
    )


def put(reports: list[Report], known: int, make: Callable[[], Procedure] = Halving) -> list[list[Order]]:
    """Return the procedure's answers after `known` answers of `Halving`, as the controller receives them."""
    before = _answers(reports[: known - 1]) if known else []
    told = packed([report_line(report) for report in reports], before)
    search = search_of(question(), stands_in := Answered())
    given = [*unpacked(packed([], before))[1], *answer(question(told), make)]
    orders = []
    for number, each in enumerate(given):
        stands_in.give(each)
        orders.append(search.on_report(reports[number - 1]) if number else search.begin())
    return orders


def _answers(reports: list[Report]) -> list[str]:
    told = packed([report_line(report) for report in reports], [])
    return [orders_line(orders) for orders in answer(question(told), Halving)]


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_however_questions_are_cut_the_orders_are_those_of_the_procedure(
    seed: int, data: st.DataObject
) -> None:
    """The procedure runs here, or in another process from the start with recorded answers."""
    run = Run(search_of(question(), Halving()), seed).to_the_end(disturbances=data.draw(st.integers(0, 30)))
    known = data.draw(st.integers(0, len(run.told)))
    assert put(run.told, known) == run.orders


def test_an_order_that_is_another_one_than_before_is_named() -> None:
    """The message names the reports, the earlier order and the new one."""
    with pytest.raises(
        SearchError, match=r"Mine has ordered Draw\(count=8\) at its start, and now it orders"
    ) as told:
        put([], 1, lambda: Halving(models=3))
    assert "Draw(count=3): a procedure's orders may depend only on its reports" in str(told.value)
    with pytest.raises(SearchError, match="now it orders nothing more"):
        put([], 1, lambda: Scripted([]))


def test_hundreds_of_models_are_told_in_little_space() -> None:
    """1,000 models with two measurements each."""
    reports: list[Report] = []
    for number in range(1000):
        reports.append(Drawn(number=number, hyperparams={"lr": number / 7, "batch_size": 32}))
        for epoch in (1, 2):
            metrics = {"loss": epoch / (number + 3), "accuracy": 1 - epoch / (number + 3)}
            reports.append(
                Measured(model=f"m{number:03}", epoch=epoch, value=metrics["loss"], metrics=metrics, time=1.5)
            )
    lines = [report_line(report) for report in reports]
    assert len(packed(lines, ["[]"] * 3000)) < sum(map(len, lines)) / 2


def test_a_sampler_whose_library_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first caller gets the message without an import of the library."""
    monkeypatch.setitem(sys.modules, "cmaes", None)
    monkeypatch.delitem(sys.modules, "cerebro.search.samplers.cma", raising=False)
    space: Space = {name: Uniform(low=0, high=1) for name in "ab"}
    known = [Past(hyperparams={"a": 0.1, "b": 0.2}, scores={1: 0.5})]
    with pytest.raises(
        SearchError, match=r"the sampler 'cma' needs cmaes, and .*pip install 'cerebro-platform\["
    ):
        values_for(draw_question(CMA(), space, known, range(1), 0))


def test_what_can_be_drawn_here_is_known_without_importing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaussian processes need both torch and SciPy."""
    from cerebro.search import questions

    assert drawable() == {"random", "tpe", "gp", "cma"}
    monkeypatch.setattr(questions, "find_spec", lambda name: None if name == "scipy" else object())
    assert drawable() == {"random", "tpe", "cma"}
