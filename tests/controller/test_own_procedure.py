"""A user's own procedure: workers answer for it, and the log records its actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.commands.command import Command
from cerebro.commands.command_events import events_of
from cerebro.commands.rules import CommandKind
from cerebro.contract.events import (
    ModelStopRequested,
    RunPaused,
    RunResumed,
    SearchDecided,
    SearchStopRequested,
    TaskCommitted,
)
from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import ASHA, OwnProcedure
from cerebro.contract.tasks.bodies import SearchTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.errors import ConflictError
from cerebro.search import Action, Add, Extend, Procedure, Reached, Report, Suggest
from cerebro.state import ModelState, RunState
from cerebro.state.experiment import fold
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, WorkerOutage
from tests.controller.searches import fit_of, request_at, search_of, simulation, story
from tests.search.own_procedures import Clones, Halving, Scripted

OWN = OwnProcedure(code="1" * 64, name="Mine")


def searched(procedure: Callable[[], Procedure] = Halving, *, epochs: int = 4, **more: Any) -> Simulation:
    scenario = {"procedure": procedure, **more.pop("scenario", {})}
    return simulation(search_of(OWN, **more), epochs=epochs, **scenario)


@pytest.mark.parametrize("procedure", [Halving, Clones])
@pytest.mark.parametrize("has_pods", [False, True])
def test_an_own_procedure_decides_the_search(procedure: Callable[[], Procedure], has_pods: bool) -> None:
    """Its actions become decisions, and the run finishes with them."""
    run = fit_of(searched(procedure, scenario={"has_pods": has_pods}))
    assert run.state is RunState.FINISHED
    assert run.search is not None
    assert run.search.finish in ("the best is trained to the end", "the clone is trained")
    assert max(model.completed_epochs for model in run.models.values()) == 4
    assert len(run.search.answers) >= run.search.decisions[-1].report + 2


def check_deaths(procedure: Callable[[], Procedure], *, every: int) -> None:
    """Check that crashes at writes `every` apart leave the search unchanged and repeat no answered question."""
    undisturbed = searched(procedure)
    expected = story(fit_of(undisturbed))
    for write in range(0, undisturbed.writes, every):
        died = searched(procedure, scenario={"crash_before": frozenset({write, write + 2})})
        run = fit_of(died)
        assert story(run) == expected
        answered = [
            each.task for each in died.log if isinstance(each, TaskCommitted) and "/search/" in each.task
        ]
        assert len(answered) == len(set(answered))


@pytest.mark.parametrize("procedure", [Halving, Clones])
def test_a_restarted_controller_repeats_only_unanswered_requests(
    procedure: Callable[[], Procedure],
) -> None:
    """An undisturbed search gives the same actions, ids and values."""
    check_deaths(procedure, every=17)


@pytest.mark.slow
@pytest.mark.parametrize("procedure", [Halving, Clones])
def test_a_controller_crash_at_any_write_does_not_change_an_own_search(
    procedure: Callable[[], Procedure],
) -> None:
    """The same test at each write."""
    check_deaths(procedure, every=1)


# --- User errors ---

VALUES: Hyperparameters = {"lr": 0.01, "batch_size": 1}


def at_rung(*actions: object) -> Any:
    """Return these actions when the first resource is used up."""
    one = Add(hyperparams=VALUES, epochs=2)
    return lambda: Scripted([one], lambda report: [*actions] if isinstance(report, Reached) else [])


def raising() -> Procedure:
    """A procedure whose code raises."""

    def then(_report: Report) -> object:
        return dict[str, object]()["nothing"]

    return Scripted([Suggest(count=1)], then)


BAD: dict[str, tuple[Any, str]] = {
    "raises": (raising, "'nothing'"),
    "no list": (
        lambda: Scripted(None),
        "Mine.begin() returned None, expected a list of actions (Suggest, Add, Extend, Stop, Finish of cerebro.search)"
        "; return [] for none (at its start)",
    ),
    "no action": (
        lambda: Scripted(["stop"]),
        "Mine.begin() returned 'stop' among its actions, expected a list of actions",
    ),
    "a wrong field": (
        lambda: Scripted([Suggest(count=0)]),
        "Mine.begin() returned Suggest(count=0): count is 0, Input should be greater than or equal to 1",
    ),
    "unknown model": (
        at_rung(Extend(model="m07", epochs=4)),
        "the procedure 'Mine' returned an action for the model 'm07', which the run does not have: use only models "
        "that `Added` has reported (on Reached(model='m00', epochs=2,",
    ),
    "lower resource": (
        at_rung(Extend(model="m00", epochs=1)),
        "Mine requested 1 epochs for m00, which already has 2: a resource only grows; use Stop",
    ),
    "above the run's epochs": (
        at_rung(Extend(model="m00", epochs=9)),
        "Mine requested 9 epochs for m00, but the run has epochs=4: request at most that many",
    ),
    "batch above a partition": (
        lambda: Scripted([Add(hyperparams={"lr": 0.1, "batch_size": 11}, epochs=1)]),
        "Mine requested a model with batch_size 11, expected a whole number from 1 to 10 (the smallest partition)",
    ),
    "no finite number": (
        lambda: Scripted([Add(hyperparams={**VALUES, "clip": [1.0, float("inf")]}, epochs=1)]),
        "its value of 'clip' is [1.0, inf], expected finite numbers",
    ),
    "no batch": (
        lambda: Scripted([Add(hyperparams={"lr": 0.1}, epochs=1)]),
        "Mine requested a model with batch_size None, expected a whole number",
    ),
}


def paused(sim: Simulation) -> RunPaused:
    """Let the user end the search after a pause; return the first pause."""
    request_at(sim, 60.0, SearchStopRequested(run="fit-1", by="ada"))
    request_at(sim, 61.0, RunResumed(run="fit-1", by="ada"))
    run = fit_of(sim)
    assert not run.is_open
    return next(each for each in sim.log if isinstance(each, RunPaused))


@pytest.mark.parametrize("what", BAD)
def test_an_error_of_an_own_procedure_pauses_the_run_with_the_reason(what: str) -> None:
    """The user can end the search; models use up their resource."""
    procedure, sentence = BAD[what]
    sim = simulation(search_of(OWN), epochs=4, procedure=procedure)
    assert sentence in paused(sim).reason


def test_a_failed_search_request_is_repeated_after_a_resume() -> None:
    """After the fix, the search is the same as without the error."""
    is_broken = [True]

    class Moody(Halving):
        def on_report(self, report: Report) -> list[Action]:
            if isinstance(report, Reached) and is_broken[0]:
                raise OSError("the licence server does not answer")
            return super().on_report(report)

    def mend() -> None:
        is_broken[0] = False

    sim = searched(Moody)
    sim._at(59.0, mend)
    request_at(sim, 60.0, RunResumed(run="fit-1", by="ada"))
    run = fit_of(sim)
    assert run.state is RunState.FINISHED
    (pause,) = (each for each in sim.log if isinstance(each, RunPaused))
    assert "the licence server does not answer" in pause.reason
    assert story(run) == story(fit_of(searched(Halving)))


def test_a_repaired_procedure_replaces_the_failed_one() -> None:
    """The new code answers from the failed question on; earlier answers stay."""
    mended = OwnProcedure(code="2" * 64, name="Mended")
    requests: list[tuple[str, str]] = []

    class Either(Halving):
        def on_report(self, report: Report) -> list[Action]:
            if isinstance(report, Reached) and requests[-1][1] == OWN.code:
                raise ValueError("a mistake")
            return super().on_report(report)

    def outcome(body: Any, _attempt: int, _worker: str) -> None:
        if isinstance(body, SearchTask):
            requests.append((body.key, body.code))

    sim = searched(Either, scenario={"outcome": outcome})
    request_at(sim, 60.0, RunResumed(run="fit-1", by="ada", procedure=mended))
    run = fit_of(sim)
    assert run.state is RunState.FINISHED
    assert story(run) == story(fit_of(searched(Halving)))
    (failed,) = {key for key, code in requests if code == OWN.code} & {
        key for key, code in requests if code == mended.code
    }
    place = requests.index((failed, OWN.code))
    assert {code for _, code in requests[: place + 1]} == {OWN.code}
    assert {code for _, code in requests[place + 1 :]} == {mended.code}
    said = fold(EXPERIMENT, sim.log).commands[-1]
    assert said.what == "resumed fit-1, with another search procedure"


def test_only_an_own_procedure_of_an_open_search_can_be_replaced() -> None:
    """The refusal suggests another command."""
    command = Command(kind=CommandKind.RESUME_RUN, procedure=OWN)
    for search, procedure, sentence in (
        (search_of(ASHA(), samples=4), None, "no search with your own procedure"),
        (search_of(OWN), Halving, "is over (the best is trained to the end)"),
    ):
        sim = simulation(search, epochs=2, procedure=procedure)
        fit_of(sim)
        state = fold(EXPERIMENT, sim.log)
        state.runs["fit-1"].state = RunState.PAUSED
        with pytest.raises(ConflictError) as caught:
            events_of(command, state, by="ada")
        assert sentence in str(caught.value)


def test_a_procedure_that_replays_to_other_actions_pauses_the_run() -> None:
    """The message names the action, and the log stays valid."""
    begun = [0]

    class Fickle(Halving):
        def __init__(self) -> None:
            begun[0] += 1
            super().__init__(models=8 if begun[0] < 3 else 4)

    sim = searched(Fickle)
    reason = paused(sim).reason
    assert (
        "Mine returned Suggest(count=8) at its start, and now it returns Suggest(count=4): a procedure's actions"
        in reason
    )
    assert next(each.suggest for each in sim.log if isinstance(each, SearchDecided)) == 8


def test_an_unknown_procedure_version_pauses_the_run() -> None:
    """The version may receive other reports than the code expects."""
    sim = simulation(search_of(OWN.model_copy(update={"version": 2})), epochs=2, procedure=Halving)
    assert "version 2 of the procedure 'own', here is version 1" in paused(sim).reason


# --- Random events ---


@pytest.mark.parametrize("seed", range(3))
def test_a_users_stop_overrides_an_own_procedure(seed: int) -> None:
    """A model that the user stops stays stopped."""
    sim = searched()
    request_at(sim, 3.0 + seed, ModelStopRequested(run="fit-1", model="m01", by="ada"))
    run = fit_of(sim)
    assert run.state is RunState.FINISHED
    assert run.models["m01"].state is ModelState.STOPPED


@pytest.mark.slow
@settings(deadline=None)
@given(data=st.data())
def test_an_own_search_ends_after_any_failure(data: st.DataObject) -> None:
    """Workers leave, models fail, controllers crash and users stop models: the run finishes and no model
    exceeds its resource."""
    failing = {f"m{n:02}" for n in data.draw(st.sets(st.integers(0, 9), max_size=3))}
    failure = Failure(kind=FailureKind.USER_ERROR, message="it raises")
    starts = data.draw(st.dictionaries(st.integers(0, 2), st.floats(0.5, 20), max_size=3))
    outages = [
        WorkerOutage(worker=f"worker-{worker}", start=start, length=data.draw(st.floats(1, 30)))
        for worker, start in starts.items()
    ]
    sim = searched(
        data.draw(st.sampled_from([Halving, Clones])),
        scenario={
            "outages": outages,
            "search_s": data.draw(st.sampled_from([0.0, 0.5, 7.0])),
            "crash_before": data.draw(st.frozensets(st.integers(0, 80), max_size=4)),
            "outcome": lambda body, _attempt, _worker: (
                failure if getattr(body, "model", "") in failing else None
            ),
        },
    )
    for at, number in data.draw(st.lists(st.tuples(st.floats(1, 25), st.integers(0, 5)), max_size=3)):
        request_at(sim, at, ModelStopRequested(run="fit-1", model=f"m{number:02}", by="ada"))
    run = fit_of(sim)
    assert not run.is_open
    assert not any(isinstance(each, RunPaused) for each in sim.log)
    for model in run.models.values():
        assert model.completed_epochs <= model.epochs
