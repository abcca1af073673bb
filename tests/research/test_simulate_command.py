"""``python -m research simulate``: tables, JSON, pictures and one-line errors."""

from __future__ import annotations

import json

import pytest

from cerebro.scheduling.policies import POLICIES
from cerebro.scheduling.validator import validate
from research import command
from research.comparison import compare, schedulers
from research.hermes.comparison import AT_SUB_EPOCHS
from research.scenarios import SCENARIOS, find
from research.solve import PLANNER

_SMALL = ("hard-narrow-8x8", "--policy", "lrptw", "--policy", "random")


def test_json_contains_the_spread_over_the_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON object per scenario and line; the mean is between the extremes and above the bound."""
    assert command.main(["simulate", "few-4x8", *_SMALL, "--json", "--seeds", "3"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["scenario"] for each in found] == ["few-4x8", "hard-narrow-8x8"]
    for row in (row for each in found for row in each["rows"]):
        assert 1 <= row["ratio"]["min"] <= row["ratio"]["mean"] <= row["ratio"]["max"]
        assert row["makespan"]["mean"] >= row["lower_bound"] * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["lrptw", "planner"])
def test_the_controllers_core_can_run_the_simulation(policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``--core`` runs policies and the planner in the controller itself."""
    assert command.main(["simulate", "few-4x8", "--policy", policy, "--core"]) == 0
    assert policy in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["thesis-9"], "there is no scenario 'thesis-9'"),
        (["few-4x8", "--policy", "fastest"], "no scheduler 'fastest'"),
        (["few-4x8", "--sigma", "-1"], "sigma is -1.0"),
        (["thesis-4.1", "--sigma", "0.1"], "not run with noise"),
        (["thesis-4.1", "--core"], "the controller's core"),
        ([*_SMALL, "--svg", "/dev/null/x"], "cannot write pictures"),
    ],
)
def test_an_invalid_argument_is_a_one_line_error(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is on standard error, with exit status 2."""
    assert command.main(["simulate", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out
    (line,) = err.splitlines()
    assert line.startswith("python -m research simulate: ")
    assert says in line


def test_the_thesis_is_compared_with_its_own_schedulers() -> None:
    """One model per GPU wastes capacity; our schedule meets the bound and so is optimal."""
    scenario = find("thesis-4.2")
    rows = {row.scheduler: row for row in compare(scenario, schedulers(scenario), seeds=2)}
    assert set(scenario.rivals) < set(rows)
    assert rows["Multi-GPU MOP"].ratio.mean > 1.4
    assert rows[PLANNER].ratio.max == 1.0
    assert rows[PLANNER].is_optimal


@pytest.mark.parametrize("name", ["online-outage-32x16", "online-join-32x16"])
def test_all_schedulers_face_the_same_conditions(name: str) -> None:
    """All rows share the same clairvoyant bound, including plans."""
    scenario = find(name)
    rows = compare(scenario, ["random", *schedulers(scenario), "planner"], time_limit_s=0.2)
    assert len({row.lower_bound for row in rows}) == 1
    for row in rows:
        validate(row.first.problem, row.first.schedule, actual=True).check()
        assert row.ratio.min >= 1 - 1e-9


def test_a_rival_alone_is_measured_against_the_whole_problem() -> None:
    """The bound is the scenario's, although the rival solves a reduced problem."""
    (row,) = compare(find("thesis-4.2"), ["Multi-GPU MOP"])
    assert row.lower_bound == 5252.0
    assert row.ratio.min > 1.4


def test_some_scenario_compares_every_dispatch_policy() -> None:
    """All except Monte Carlo, which takes longer than the others together."""
    compared = {name for scenario in SCENARIOS.values() for name in schedulers(scenario)}
    compared |= set(AT_SUB_EPOCHS)
    assert set(POLICIES) - compared == {"monte-carlo"}
