"""Properties of each search: it ends, can be replayed, and user actions have priority over it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import (
    ASHA,
    PBT,
    Above,
    FixedProcedure,
    Hyperband,
    Median,
    OwnProcedure,
    Plateau,
    ProcedureChoice,
    Random,
    SearchRequest,
)
from cerebro.errors import SearchError
from cerebro.search import transducer
from cerebro.search.procedure import (
    SEARCH,
    Action,
    Added,
    Closed,
    Crew,
    Extend,
    Extended,
    Facts,
    Failed,
    Finish,
    Measured,
    Reached,
    Report,
    Stop,
    Stopped,
    Suggest,
    Suggested,
)
from tests.search.driving import Run, search_of, search_request

RULES = (Plateau(epochs=3), Median(grace=2), Above(metric="loss", limit=0.5))
PROCEDURES: tuple[ProcedureChoice, ...] = (
    Random(),
    Random(active=3),
    ASHA(eta=2),
    ASHA(eta=3, brackets=3),
    ASHA(eta=2, rule="promotion"),
    ASHA(eta=3, first=2, rule="promotion", brackets=2, active=3),
    Hyperband(eta=3),
    Hyperband(eta=2, first=2, brackets=2),
    PBT(population=6, perturb={"lr": (0.8, 1.25), "width": (0.5, 2.0)}),
    PBT(population=4, every=4, quantile=0.5),
    OwnProcedure(code="1" * 64, name="Halving"),
)
VALUES: Hyperparameters = {"lr": 0.1, "width": 3, "drop": 0.0}


@given(
    procedure=st.sampled_from(PROCEDURES),
    seed=st.integers(0, 10**6),
    rules=st.booleans(),
    is_late=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_every_search_ends_and_can_be_replayed(
    procedure: ProcedureChoice, seed: int, rules: bool, is_late: bool
) -> None:
    """Models fail, stop, resume and grow, workers change, and actions are executed late."""
    request = search_request(procedure, samples=30, stop=RULES if rules else ())
    run = Run(search_of(request, epochs=9), seed)
    run.is_late = is_late
    run.to_the_end(disturbances=60)
    assert run.why
    assert not run.search.is_stuck
    again = search_of(request, epochs=9)
    assert [again.begin(), *(again.on_report(report) for report in run.reports)] == run.actions


def measured(model: str, epoch: int, value: float, *, time: float = 0.0, loss: float = 0.0) -> Measured:
    return Measured(model=model, epoch=epoch, value=value, metrics={"loss": loss}, time=time)


def listed(request: SearchRequest, count: int, *, epochs: int = 9) -> Run:
    """Return a search over `count` models that a user added."""
    run = Run(search_of(request, epochs=epochs))
    for _ in range(count):
        run.add(VALUES, epochs, "ann")
    run.report_all()
    return run


def test_a_rule_does_not_stop_a_model_that_a_user_extended() -> None:
    """It stops the other model with the same metric."""
    run = listed(search_request(FixedProcedure(), stop=(Above(metric="loss", limit=2.0),)), 2)
    run.report(Extended(model="m000", epochs=20, by="ann"))
    assert run.search.on_report(measured("m000", 1, 0.5, loss=3.0)) == []
    assert run.search.on_report(measured("m001", 1, 0.5, loss=3.0)) == [
        Stop(model="m001", why="loss is 3, above 2")
    ]


def test_a_rule_about_an_unknown_metric_ends_the_search() -> None:
    """The metric names are known only after the first measurement."""
    run = listed(search_request(FixedProcedure(), stop=(Above(metric="los", limit=2.0),)), 1)
    with pytest.raises(SearchError, match="the metric 'los', which m000 does not have: it has loss; start"):
        run.search.on_report(measured("m000", 1, 0.5))


def test_a_model_without_progress_is_stopped() -> None:
    run = listed(search_request(FixedProcedure(), stop=(Plateau(epochs=3),)), 1)
    actions = [
        run.search.on_report(measured("m000", epoch, value))
        for epoch, value in enumerate([0.1, 0.5, 0.4, 0.5, 0.3], start=1)
    ]
    why = "score has not become better than 0.5 in 3 epochs"
    assert actions == [[], [], [], [], [Stop(model="m000", why=why), Finish(why="all 1 models have ended")]]


@pytest.mark.parametrize(("mode", "value", "is_stopped"), [("max", 0.1, True), ("min", 0.1, False)])
def test_a_model_worse_than_the_median_is_stopped(mode: str, value: float, is_stopped: bool) -> None:
    """The rule compares the model's best value with the other models' running means; `mode` gives the direction."""
    request = search_request(FixedProcedure(), stop=(Median(grace=2, least=3),))
    search = search_of(request, epochs=9, mode="max" if mode == "max" else "min")
    for number in range(4):
        search.on_report(Added(model=f"m{number}", hyperparams=VALUES, by="ann", epochs=9))
    for number, others in enumerate([0.3, 0.5, 0.7]):
        assert search.on_report(measured(f"m{number}", 1, others)) == []
    assert search.on_report(measured("m3", 1, value)) == []  # within the grace
    for number, others in enumerate([0.3, 0.5, 0.7]):
        search.on_report(measured(f"m{number}", 2, others))
    stops = search.on_report(measured("m3", 2, value))
    assert [type(action) for action in stops] == ([Stop] if is_stopped else [])


def test_medians_exclude_warm_clones() -> None:
    """It started from another model's weights, so its values are neither used nor compared."""
    search = search_of(search_request(FixedProcedure(), stop=(Median(grace=1, least=3),)), epochs=9)
    for number in range(5):
        search.on_report(
            Added(model=f"m{number}", hyperparams=VALUES, by="ann", is_warm=number in (2, 4), epochs=9)
        )
    for name in ("m0", "m1", "m2"):
        search.on_report(measured(name, 2, 0.5))
    assert search.on_report(measured("m3", 2, 0.1)) == []  # only two other models count
    search.on_report(Added(model="m5", hyperparams=VALUES, by="ann", epochs=9))
    assert search.on_report(measured("m4", 2, 0.2)) == []
    assert [type(action) for action in search.on_report(measured("m5", 2, 0.2))] == [Stop]


class Scripted:
    """Return fixed orders after each report."""

    def __init__(self, *actions: Action) -> None:
        self.actions = list(actions)

    def begin(self, facts: Facts) -> list[Action]:
        del facts
        return [Suggest(count=4)]

    def on_report(self, report: Report) -> list[Action]:
        del report
        return self.actions


def test_a_search_drops_impossible_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search rejects surplus suggestions, actions for stopped models, smaller resources and unknown models."""
    actions = (Suggest(count=4), Extend(model="m0", epochs=9), Extend(model="m1", epochs=3))
    scripted = Scripted()
    monkeypatch.setattr(transducer, "procedure_of", lambda _choice, _own: scripted)
    search = search_of(search_request(Random(), samples=6), epochs=9)
    assert search.begin() == [Suggest(count=4)]
    search.on_report(Added(model="m0", hyperparams=VALUES, by="ann", epochs=3))
    search.on_report(Added(model="m1", hyperparams=VALUES, by="ann", epochs=3))
    scripted.actions = list(actions)
    assert search.on_report(Stopped(model="m0", by="ann")) == [Suggest(count=2)]
    assert search.on_report(Stopped(model="m1", by="ann")) == []
    scripted.actions = [Extend(model="m7", epochs=9)]
    with pytest.raises(SearchError, match="for the model 'm7', which the run does not have"):
        search.on_report(Crew(workers=1))


def test_the_report_at_the_end_of_a_resource_has_its_size() -> None:
    """The report's resource counts, even if a larger one was known before."""
    search = search_of(search_request(FixedProcedure()), epochs=9)
    search.on_report(Added(model="m0", hyperparams=VALUES, by="ann", epochs=3))
    search.on_report(Extended(model="m0", epochs=9, by="ann"))
    search.on_report(measured("m0", 3, 0.5))
    last = Reached(model="m0", epochs=3, value=0.5, metrics={}, time=0.0)
    assert search.on_report(last) == [Finish(why="all 1 models have ended")]


def test_a_closed_search_starts_no_model_and_finishes_running_ones() -> None:
    """Running models train until they reach their resources."""
    run = Run(search_of(search_request(Random(active=2), samples=50), epochs=3))
    run.suggest()
    run.suggest()
    run.report(Closed(by="ann"))
    run.to_the_end()
    assert [model.trained for model in run.models.values()] == [3, 3]
    assert run.why == "ended by ann"


def test_a_search_stops_running_models_at_its_time_limit() -> None:
    """A model that a user extended keeps training."""
    run = Run(search_of(search_request(Random(active=3), hours=1.5), epochs=100))
    for _ in range(3):
        run.suggest()
    run.report(Extended(model="m001", epochs=3, by="ann"))
    assert run.search.on_report(measured("m000", 1, 0.5, time=5399.0)) == []
    actions = run.search.on_report(measured("m000", 2, 0.5, time=5400.0))
    why = "its 1.5 h are over"
    assert actions == [Stop(model="m000", why=why), Stop(model="m002", why=why)]
    last = Reached(model="m001", epochs=3, value=0.5, metrics={}, time=5500.0)
    assert run.search.on_report(last) == [Finish(why=why)]


@pytest.mark.parametrize("last", ["suggested", "failed"])
def test_the_time_limit_ends_a_search_without_results(last: str) -> None:
    """Each model fails or is refused, so the search would request suggestions forever."""
    search = search_of(search_request(Random(active=1), hours=1), epochs=3)
    assert search.begin() == [Suggest(count=1)]
    finish = Finish(why="its 1 h are over")
    if last == "suggested":
        assert search.on_report(Suggested(number=0, hyperparams=VALUES, time=3600.0)) == [finish]
        return
    search.on_report(Suggested(number=0, hyperparams=VALUES, time=1.0))
    search.on_report(Added(model="m0", hyperparams=VALUES, epochs=3))
    assert search.on_report(Failed(model="m0", time=3600.0)) == [finish]


@pytest.mark.parametrize("procedure", [Random(active=2), ASHA(active=2)])
@pytest.mark.parametrize("is_refused", [False, True])
def test_too_many_models_without_results_end_a_search(procedure: ProcedureChoice, is_refused: bool) -> None:
    """One measured value resets the count."""
    most = transducer.MAX_WITHOUT_VALUE
    run = Run(search_of(search_request(procedure, hours=1e6), epochs=3))

    def come_to_nothing(count: int) -> None:
        for _ in range(count):
            run.refused = float(is_refused)
            run.suggest()
            if not is_refused:
                run.report(Failed(model=max(run.models)))

    come_to_nothing(most - 1)
    run.refused = 0.0
    run.suggest()
    run.train(max(run.models))
    come_to_nothing(most - 1)
    assert not run.why
    come_to_nothing(1)
    run.to_the_end()
    assert run.why.startswith(f"nothing was measured of {most} models in a row; the last one")


def test_a_search_without_pending_models_is_stuck() -> None:
    """A search with no open suggestion, pending model or training model is stuck."""
    search = search_of(search_request(Random(active=1), samples=2), epochs=1)
    assert search.begin() == [Suggest(count=1)]
    assert search.open_suggestions == range(1)
    assert not search.is_stuck
    search.on_report(Suggested(number=0, hyperparams=VALUES))
    assert not search.open_suggestions
    assert not search.is_stuck
    assert [past.hyperparams for past in search.history()] == [VALUES]
    search.on_report(Added(model="m0", hyperparams=VALUES, epochs=1))
    assert [past.is_running for past in search.history()] == [True]
    assert search.on_report(Stopped(model="m0", by=SEARCH)) == [Suggest(count=1)]
    assert search.open_suggestions == range(1, 2)
    assert [past.is_running for past in search.history()] == [False]


@pytest.mark.parametrize("procedure", [ASHA(eta=2), Hyperband(eta=2)])
def test_stopped_models_of_a_rung_do_not_count_as_running(procedure: ProcedureChoice) -> None:
    """No device trains them, so no stop is reported. A user may still extend one."""
    run = Run(search_of(search_request(procedure, samples=12), epochs=8)).to_the_end()
    assert run.requested_stops
    assert not any(isinstance(report, Stopped) for report in run.reports)
    assert not any(past.is_running for past in run.search.history())
    run.report(Extended(model=min(run.requested_stops), epochs=8, by="ann"))
    assert sum(past.is_running for past in run.search.history()) == 1


@pytest.mark.parametrize("procedure", [ASHA(eta=2), Hyperband(eta=2), PBT(population=2)])
def test_a_model_without_a_value_at_its_rung_does_not_block_others(procedure: ProcedureChoice) -> None:
    """It is not reported as measured, and the other models continue."""
    run = Run(search_of(search_request(procedure, samples=None if procedure.kind == "pbt" else 15), epochs=8))
    while not run.models:
        run.suggest()
    run.models["m000"].trained = 1
    run.report(Reached(model="m000", epochs=1, value=math.nan, metrics={}, time=0.0))
    run.to_the_end()
    assert run.why
    assert run.models["m000"].trained == 1
    assert max(model.trained for model in run.models.values()) == 8
