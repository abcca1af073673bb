"""Successive halving: promotion between rungs in Hyperband and ASHA."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.records import Hyperparameters
from cerebro.contract.search import ASHA, Above, Hyperband
from cerebro.search.procedure import (
    Added,
    Crew,
    Extend,
    Failed,
    Measured,
    Reached,
    Stop,
    Stopped,
    Suggest,
    Suggested,
)
from cerebro.search.procedures.rungs import bracket_sizes, rung_epochs
from cerebro.search.transducer import Search
from tests.search.driving import Run, score, search_of, search_request

SEEDS = st.integers(0, 10**6)


def test_rungs_and_brackets_follow_the_paper() -> None:
    """Table 1 of Li et al. 2018 (R = 81, eta = 3), and resources that are not powers of eta."""
    assert rung_epochs(1, 3, 81) == (1, 3, 9, 27, 81)
    assert bracket_sizes(5, 3) == (81, 34, 15, 8, 5)
    assert rung_epochs(2, 4, 50) == (2, 8, 32, 50)
    assert rung_epochs(5, 3, 5) == (5,)


# --- Hyperband ---


def tied(hyperparams: Hyperparameters, epoch: int) -> float:
    """Return a score with many ties."""
    return round(score(hyperparams, epoch) * 2) / 2


@given(seed=SEEDS, eta=st.integers(2, 4), first=st.integers(1, 3), with_ties=st.booleans())
@settings(max_examples=40, deadline=None)
def test_each_bracket_promotes_its_best_for_any_order_of_reports(
    seed: int, eta: int, first: int, with_ties: bool
) -> None:
    """A rung promotes max(1, floor(n / eta)) models, by value and then by number."""
    value = tied if with_ties else score
    search = search_of(search_request(Hyperband(eta=eta, first=first)), epochs=12)
    run = Run(search, seed, value).to_the_end()
    models, begun = list(run.models.values()), 0
    levels = rung_epochs(first, eta, 12)
    for start, size in enumerate(bracket_sizes(len(levels), eta)):
        members = list(range(begun, begun + size))
        begun += size
        for level in levels[start:]:
            assert all(models[number].trained >= level for number in members)
            ranked = sorted(members, key=lambda n: (-value(models[n].hyperparams, level), n))
            members = ranked[: max(1, len(members) // eta)] if level != levels[-1] else []
            ended = ranked[len(members) :]
            assert {models[number].trained for number in ended} <= {level}
    assert begun == len(models)


@given(seed=SEEDS, failing=st.sets(st.integers(0, 8)))
@settings(max_examples=40, deadline=None)
def test_a_failed_model_ranks_worst_in_its_rung(seed: int, failing: set[int]) -> None:
    """Three of nine models continue as long as three remain."""
    run = Run(search_of(search_request(Hyperband(brackets=1)), epochs=9, workers=8), seed)
    while len(run.models) < 9:
        run.suggest()
    for number in failing:
        run.models[f"m{number:03}"].is_failed = True
        run.report(Failed(model=f"m{number:03}"))
    run.to_the_end()
    left = [number for number in range(9) if number not in failing]
    ranked = sorted(left, key=lambda n: (-score(run.models[f"m{n:03}"].hyperparams, 1), n))
    assert {n for n in left if run.models[f"m{n:03}"].trained >= 3} == set(ranked[:3])
    assert run.why


def at_the_first_rung(run: Run, count: int) -> None:
    """Suggest all models and train all except the last one."""
    while len(run.models) < count:
        run.suggest()
    for name in sorted(run.models)[: count - 1]:
        run.train(name)


def resources(run: Run) -> list[int]:
    return [model.resource for model in run.models.values()]


def by_width(hyperparams: Hyperparameters, epoch: int) -> float:
    """Score later models higher."""
    assert isinstance(hyperparams["width"], int)
    return hyperparams["width"] + epoch / 100


def test_a_model_stopped_at_its_rung_gives_its_rank_to_the_next() -> None:
    """A user stops the model, or a rule stops it at the value that completes the rung."""
    rule = Above(metric="score", limit=8.0)
    request = search_request(Hyperband(brackets=1), stop=(rule,))
    run = Run(search_of(request, epochs=9, workers=8), value=by_width)
    at_the_first_rung(run, 9)
    run.models["m007"].is_stopped = True
    run.report(Stopped(model="m007", by="ann"))
    run.train("m008")
    assert resources(run) == [1, 1, 1, 1, 3, 3, 3, 1, 1]
    assert run.requested_stops == {"m008"} | {f"m00{number}" for number in range(4)}


def test_a_bracket_continues_without_a_refused_model() -> None:
    """Two of eight models continue."""
    run = Run(search_of(search_request(Hyperband(brackets=1)), epochs=9, workers=8), value=by_width)
    run.refused = 1.0
    run.suggest()
    run.refused = 0.0
    at_the_first_rung(run, 8)
    run.train("m007")
    assert resources(run) == [1, 1, 1, 1, 1, 1, 3, 3]


def test_a_model_that_a_user_extended_is_not_stopped_at_a_rung() -> None:
    """It gives up its rank in the rung and trains for the epochs that the user set."""
    run = Run(search_of(search_request(Hyperband(brackets=1)), epochs=9, workers=8), value=by_width)
    run.add({"lr": 0.0, "width": -1, "drop": 0.0}, 5, "ann")
    run.report_all()
    at_the_first_rung(run, 10)
    run.train("m009")
    assert [name in run.requested_stops for name in run.models] == [False] + [True] * 6 + [False] * 3
    run.to_the_end()
    assert run.models["m000"].trained == 5


@pytest.mark.parametrize(("samples", "models"), [(None, 17), (9, 9), (16, 14), (17, 17), (26, 26), (40, 34)])
def test_samples_fill_whole_brackets(samples: int | None, models: int) -> None:
    """Brackets of 9, 5 and 3 models repeat."""
    run = Run(search_of(search_request(Hyperband(eta=3), samples=samples), epochs=9)).to_the_end()
    assert len(run.models) == models


def test_a_user_s_model_takes_part_in_the_first_open_bracket() -> None:
    """It is one of ten models, and a good score promotes it."""
    run = Run(search_of(search_request(Hyperband(brackets=1)), epochs=9))
    run.add({"lr": 0.0, "width": -1, "drop": 0.0}, 1, "ann")
    run.report_all()
    run.value = lambda hyperparams, epoch: 2.0 if hyperparams["width"] == -1 else score(hyperparams, epoch)
    run.to_the_end()
    assert run.models["m000"].trained == 9
    assert sorted(model.trained for model in run.models.values()) == [1] * 7 + [3] * 2 + [9]


# --- ASHA ---


@given(seed=SEEDS, eta=st.integers(2, 4))
@settings(max_examples=40, deadline=None)
def test_a_stopping_rung_promotes_the_best_so_far(seed: int, eta: int) -> None:
    """Sorting the reports gives the expected result; ties go by number and the first model always continues."""
    run = Run(search_of(search_request(ASHA(eta=eta), samples=40), epochs=8), seed, tied).to_the_end()
    scores: defaultdict[int, list[tuple[float, str]]] = defaultdict(list)
    levels = rung_epochs(1, eta, 8)
    for report, actions in zip(run.reports, run.actions[1:], strict=True):
        if isinstance(report, Measured) and report.epoch in levels:
            scores[report.epoch].append((-report.value, report.model))
        if isinstance(report, Reached) and report.epochs < 8:
            here = sorted(scores[report.epochs])
            is_best = (-report.value, report.model) in here[: max(1, len(here) // eta)]
            following = levels[levels.index(report.epochs) + 1]
            expected = Extend(model=report.model, epochs=following) if is_best else Stop
            assert expected in actions or (expected is Stop and isinstance(actions[0], Stop))
    assert len(run.models) == 40


@given(seed=SEEDS, brackets=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_promotion_continues_until_the_best_of_each_rung_are_promoted(seed: int, brackets: int) -> None:
    """In the end the best floor(n / eta) models of each rung are promoted."""
    request = search_request(ASHA(eta=3, rule="promotion", brackets=brackets), samples=60)
    run = Run(search_of(request, epochs=27), seed).to_the_end()
    assert len(run.models) == 60
    assert not any(isinstance(action, Stop) for actions in run.actions for action in actions)
    assert {model.trained for model in run.models.values()} <= {1, 3, 9, 27}
    if brackets == 1:
        for level in (1, 3, 9):
            here = [name for name, model in run.models.items() if model.trained >= level]
            here.sort(key=lambda name, level=level: (-score(run.models[name].hyperparams, level), name))  # type: ignore[misc]
            assert all(run.models[name].trained > level for name in here[: len(here) // 3])


def test_a_model_that_fails_before_a_rung_of_asha_ranks_worst() -> None:
    """With two failures, the second best of four models is in the better half."""
    run = Run(search_of(search_request(ASHA(eta=2), samples=4), epochs=4, workers=2), value=by_width)
    while len(run.models) < 4:
        run.suggest()
    for name in ("m000", "m001"):
        run.models[name].is_failed = True
        run.report(Failed(model=name))
    run.train("m003")
    run.train("m002")
    assert resources(run) == [1, 1, 2, 2]


def test_a_warm_clone_joins_no_rung() -> None:
    """Its values include another model's training, so it is neither promoted nor compared."""
    run = Run(search_of(search_request(ASHA(eta=2), samples=2), epochs=4), value=by_width)
    run.suggest()
    run.suggest()
    run.train("m000")
    clone = run.add({"lr": 0.0, "width": 99, "drop": 0.0}, 2, "ann", parent="m000")
    run.report_all()
    run.train(clone)
    run.train("m001")
    run.train("m001")
    assert resources(run) == [2, 4, 2]
    assert len(run.search.history()) == 2


def test_the_highest_rung_is_served_first() -> None:
    """One device slot is free, and both rungs have a model to promote."""
    search = search_of(search_request(ASHA(eta=2, rule="promotion", active=1), samples=20), epochs=4)
    search.begin()
    run = _Reporting(search)
    assert run.model(0.9) == [Suggest(count=1)]
    assert run.model(0.8) == [Extend(model="m0", epochs=2)]
    assert run.reached("m0", 2, 0.9) == [Suggest(count=1)]
    assert run.model(0.1) == [Suggest(count=1)]
    assert run.model(0.7) == [Extend(model="m1", epochs=2)]
    assert run.reached("m1", 2, 0.8) == [Extend(model="m0", epochs=4)]


class _Reporting:
    """Report models one after another."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.count = 0

    def model(self, value: float) -> list[object]:
        """Report a model as suggested, added and at its first rung."""
        name, self.count = f"m{self.count}", self.count + 1
        self.search.on_report(Suggested(number=self.count - 1, hyperparams={"lr": value}))
        self.search.on_report(Added(model=name, hyperparams={"lr": value}, epochs=1))
        return self.reached(name, 1, value)

    def reached(self, name: str, epochs: int, value: float) -> list[object]:
        self.search.on_report(Measured(model=name, epoch=epochs, value=value, metrics={}, time=0.0))
        return [*self.search.on_report(Reached(model=name, epochs=epochs, value=value, metrics={}, time=0.0))]


def test_later_brackets_of_asha_start_at_higher_rungs() -> None:
    """As in Hyperband, the first bracket gets most models: 81, 34 and 15."""
    run = Run(search_of(search_request(ASHA(brackets=3), samples=200), epochs=81)).to_the_end()
    firsts = [model.resources[0] for model in run.models.values()]
    counts = [firsts.count(level) for level in (1, 3, 9)]
    assert sum(counts) == 200
    assert counts[0] > counts[1] > counts[2] > 0


@given(seed=SEEDS)
@settings(max_examples=20, deadline=None)
def test_two_models_for_each_worker_are_active(seed: int) -> None:
    """The number of active models follows the number of workers until all samples are used."""
    run = Run(search_of(search_request(ASHA(), samples=100), epochs=9, workers=3), seed)
    for workers in (3, 5, 1, 4):
        run.report(Crew(workers=workers))
        before = len(run.models)
        while len(run.models) < before + 20:
            run.step()
        active = run.search.models.num_active + len(run.search.open_suggestions)
        assert active == 2 * workers or workers == 1
