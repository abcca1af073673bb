"""A worker's child process answers search requests, without a device."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro.contract.events import TaskCommitted, TaskFailed
from cerebro.contract.search import (
    GP,
    TPE,
    LogUniform,
    OwnProcedure,
    OwnSampler,
    RandInt,
    Sampler,
    SearchRequest,
    Space,
)
from cerebro.contract.search_tasks import ActionsRequest, SearchTaskRequest, SuggestAction
from cerebro.contract.tasks.bodies import SearchTask
from cerebro.contract.tasks.failures import FailureKind
from cerebro.search import Action, Procedure, Report, Suggest, Suggested
from cerebro.search.history import Past
from cerebro.search.suggestions import suggestions_request, values_for
from cerebro.search.wire_format import packed, report_line
from tests.search.own_procedures import Halving
from tests.search.test_own_samplers import Coarse, Outside
from tests.worker.agent.agents import LIMIT_S, Agents

SPACE: Space = {"lr": LogUniform(low=1e-4, high=1), "wd": LogUniform(low=1e-4, high=1)}


OWN_SPACE: Space = {**SPACE, "layers": RandInt(low=1, high=4)}


class Broken(Procedure):
    """A procedure with an error in a helper."""

    def begin(self, facts: Any) -> list[Action]:
        """Return a valid action."""
        return [Suggest(count=1)]

    def on_report(self, report: Report) -> list[Action]:
        """Call the broken helper."""
        return self._best([])

    def _best(self, models: list[Action]) -> list[Action]:
        return [models[0]]


def answer_of(agents: Agents, code: str, question: SearchTaskRequest, number: int) -> Any:
    """Assign a search request to the worker; return the final event."""
    task = SearchTask(
        key=f"fit-1/search/actions-{number}",
        experiment="one",
        run="fit-1",
        dataset="d",
        code=code,
        hang_timeout_s=4 * LIMIT_S,
        request=question,
    )
    agents.assign(task, attempt=1, devices=())
    return agents.end_of(task.key)


def actions_request(code: str, *reports: Report) -> ActionsRequest:
    """Return a request for a procedure's actions, from the first one on."""
    return ActionsRequest(
        search=SearchRequest(procedure=OwnProcedure(code=code, name="Mine"), space=SPACE),
        epochs=9,
        metric="score",
        mode="max",
        seed=7,
        workers=2,
        largest_batch=64,
        log=packed([report_line(report) for report in reports], []),
    )


def test_a_worker_answers_requests_of_searches(agents: Agents) -> None:
    """Each request restarts the procedure, and a broken one gives its error."""
    agents.start(handler="cerebro.worker.searches")
    drawn = Suggested(number=0, hyperparams={"lr": 0.1, "batch_size": 1})
    code = agents.learn(Halving(models=3))
    for number, reports in enumerate([(), (drawn,)]):
        done = answer_of(agents, code, actions_request(code, *reports), number)
        assert isinstance(done, TaskCommitted), done
        assert done.result.answer is not None
        assert done.result.answer.actions[0] == (SuggestAction(count=3),)
        assert len(done.result.answer.actions) == 1 + len(reports)
    broken = agents.learn(Broken())
    failed = answer_of(agents, broken, actions_request(broken, drawn), 2)
    assert isinstance(failed, TaskFailed)
    assert failed.failure.kind is FailureKind.USER_ERROR
    assert failed.failure.message == "IndexError: list index out of range"
    assert "return [models[0]]" in failed.failure.traceback
    assert "user_procedure.py" not in failed.failure.traceback


def test_a_worker_runs_a_users_own_sampler(agents: Agents) -> None:
    """An impossible suggestion fails the task, with the value."""
    agents.start(handler="cerebro.worker.searches")
    for number, sampler in enumerate([Coarse(), Outside()]):
        code = agents.learn(sampler)
        own = OwnSampler(code=code, name=type(sampler).__name__)
        question = suggestions_request(own, OWN_SPACE, (), range(2), 5)
        done = answer_of(agents, code, question, number)
        if number:
            assert isinstance(done, TaskFailed)
            assert "Outside.suggest() returned layers=5" in done.failure.message
        else:
            assert isinstance(done, TaskCommitted), done
            assert done.result.answer is not None
            assert done.result.answer.values == tuple(values_for(question, lambda _: Coarse()))


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [TPE(startup=2), GP(startup=2)], ids=["tpe", "gp"])
def test_a_worker_suggests_values_without_user_code(agents: Agents, sampler: Sampler) -> None:
    """The values equal those drawn next to the controller."""
    agents.start(handler="cerebro.worker.searches")
    known = [Past(hyperparams={"lr": 0.1 + n / 10, "wd": 0.2}, scores={1: float(n)}) for n in range(5)]
    question = suggestions_request(sampler, SPACE, known, range(3), 5)
    values = answer_of(agents, "", question, 3)
    assert isinstance(values, TaskCommitted), values
    assert values.result.answer is not None
    assert values.result.answer.values == tuple(values_for(question))
