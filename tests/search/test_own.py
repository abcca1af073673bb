"""A user's procedure in another process: replayed answers give the same actions."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.search import CMA, OwnProcedure, Space, Uniform
from cerebro.contract.search_tasks import ActionsRequest
from cerebro.errors import SearchError
from cerebro.search import Action, Measured, Procedure, Report, Suggested
from cerebro.search.history import Past
from cerebro.search.suggestions import installed_samplers, suggestions_request, values_for
from cerebro.search.user_procedure import Answered, answer, search_of
from cerebro.search.wire_format import actions_line, packed, report_line, unpacked
from tests.search.driving import Run, search_request
from tests.search.own_procedures import Halving, Scripted

OWN = OwnProcedure(code="1" * 64, name="Mine")


def request(message: str = "", **settings: object) -> ActionsRequest:
    request = search_request(OWN, samples=30)
    return ActionsRequest(
        search=request.model_copy(update=settings),
        epochs=9,
        metric="score",
        mode="max",
        seed=7,
        workers=2,
        largest_batch=64,
        log=message,
    )


def put(reports: list[Report], known: int, make: Callable[[], Procedure] = Halving) -> list[list[Action]]:
    """Return the procedure's answers after `known` answers of `Halving`, as the controller receives them."""
    before = _answers(reports[: known - 1]) if known else []
    content = packed([report_line(report) for report in reports], before)
    search = search_of(request(), stands_in := Answered())
    given = [*unpacked(packed([], before))[1], *answer(request(content), make)]
    actions = []
    for number, each in enumerate(given):
        stands_in.set_actions(each)
        actions.append(search.on_report(reports[number - 1]) if number else search.begin())
    return actions


def _answers(reports: list[Report]) -> list[str]:
    content = packed([report_line(report) for report in reports], [])
    return [actions_line(actions) for actions in answer(request(content), Halving)]


@settings(deadline=None)
@given(seed=st.integers(0, 10**6), data=st.data())
def test_replayed_requests_give_the_procedures_actions(seed: int, data: st.DataObject) -> None:
    """The procedure runs here, or in another process from the start with recorded answers."""
    run = Run(search_of(request(), Halving()), seed).to_the_end(disturbances=data.draw(st.integers(0, 30)))
    known = data.draw(st.integers(0, len(run.reports)))
    assert put(run.reports, known) == run.actions


def test_an_action_that_differs_in_a_replay_is_named() -> None:
    """The message names the reports, the earlier action and the new one."""
    with pytest.raises(
        SearchError, match=r"Mine returned Suggest\(count=8\) at its start, and now it returns"
    ) as caught:
        put([], 1, lambda: Halving(models=3))
    assert "Suggest(count=3): a procedure's actions may depend only on its reports" in str(caught.value)
    with pytest.raises(SearchError, match="now it returns nothing more"):
        put([], 1, lambda: Scripted([]))


def test_reports_of_many_models_are_compressed() -> None:
    """1,000 models with two measurements each."""
    reports: list[Report] = []
    for number in range(1000):
        reports.append(Suggested(number=number, hyperparams={"lr": number / 7, "batch_size": 32}))
        for epoch in (1, 2):
            metrics = {"loss": epoch / (number + 3), "accuracy": 1 - epoch / (number + 3)}
            reports.append(
                Measured(model=f"m{number:03}", epoch=epoch, value=metrics["loss"], metrics=metrics, time=1.5)
            )
    lines = [report_line(report) for report in reports]
    assert len(packed(lines, ["[]"] * 3000)) < sum(map(len, lines)) / 2


def test_a_sampler_without_its_library_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first caller gets the message without an import of the library."""
    monkeypatch.setitem(sys.modules, "cmaes", None)
    monkeypatch.delitem(sys.modules, "cerebro.search.samplers.cma", raising=False)
    space: Space = {name: Uniform(low=0, high=1) for name in "ab"}
    known = [Past(hyperparams={"a": 0.1, "b": 0.2}, scores={1: 0.5})]
    with pytest.raises(
        SearchError, match=r"the sampler 'cma' needs cmaes, and .*pip install 'cerebro-platform\["
    ):
        values_for(suggestions_request(CMA(), space, known, range(1), 0))


def test_installed_samplers_are_known_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaussian processes need both torch and SciPy."""
    from cerebro.search import suggestions

    assert installed_samplers() == {"random", "tpe", "gp", "cma"}
    monkeypatch.setattr(suggestions, "find_spec", lambda name: None if name == "scipy" else object())
    assert installed_samplers() == {"random", "tpe", "cma"}
