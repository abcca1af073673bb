from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.errors import InstanceError
from cerebro.scheduling.conditions import Conditions, Join, Outage, Reality, Straggler
from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.policies import POLICIES
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Placement
from cerebro.scheduling.validator import validate
from research.problems import open_shop
from tests.scheduling.instances import problems

LRPTW = POLICIES["lrptw"]
SQUARE = open_shop([[10.0, 10.0], [10.0, 10.0]])


@st.composite
def befallen(draw: st.DrawFn) -> tuple[Problem, Conditions]:
    """Generate a problem with slow, absent and late workers."""
    problem = draw(problems(max_models=4, max_workers=3, max_partitions=4, max_gpus=3, max_epochs=2))
    worker = st.integers(0, problem.num_workers - 1)
    moment = st.integers(0, 30).map(float)
    length = st.integers(1, 20).map(float)
    slow = st.builds(
        Straggler, worker=worker, factor=st.sampled_from((0.5, 2.0, 5.0)), start=moment, seconds=length
    )
    away = st.builds(Outage, worker=worker, start=moment, seconds=length)
    conditions = Conditions(
        sigma=draw(st.sampled_from((0.0, 0.3))),
        stragglers=tuple(draw(st.lists(slow, max_size=2))),
        outages=tuple(draw(st.lists(away, max_size=3))),
        joins=tuple(draw(st.lists(st.builds(Join, worker=worker, at=moment), max_size=1))),
        estimates=draw(st.sampled_from(("given", "equal"))),
    )
    return problem, conditions


def overlaps(sub_epoch: Placement, start: float, end: float) -> bool:
    return sub_epoch.start < end - 1e-9 and start < sub_epoch.end - 1e-9


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=20, deadline=None)
@given(problem=problems(max_models=5, max_workers=4, max_partitions=4, max_gpus=3))
def test_every_policy_makes_valid_schedules(name: str, problem: Problem) -> None:
    """Each policy finishes, and the validator finds no violation, including durations."""
    validate(problem, dispatch(problem, POLICIES[name])).check()


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=20, deadline=None)
@given(case=befallen(), seed=st.integers(0, 9))
def test_every_policy_survives_noise_stragglers_and_outages(
    name: str, case: tuple[Problem, Conditions], seed: int
) -> None:
    """With noise, stragglers, outages, late workers and unknown times, each sub-epoch runs exactly once,
    never on an absent worker, and the makespan respects the clairvoyant bound."""
    problem, conditions = case
    schedule = dispatch(problem, POLICIES[name], seed=seed, conditions=conditions)
    validate(problem, schedule, actual=True).check()
    for sub_epoch in schedule.sub_epochs:
        assert not any(overlaps(sub_epoch, *absence) for absence in conditions.absences(sub_epoch.worker))
    assert schedule.makespan >= Reality(problem, conditions, seed).bound() - 1e-6


@settings(max_examples=20, deadline=None)
@given(case=befallen(), name=st.sampled_from(sorted(POLICIES)), seed=st.integers(0, 9))
def test_the_same_seed_gives_the_same_schedule(
    case: tuple[Problem, Conditions], name: str, seed: int
) -> None:
    problem, conditions = case
    first = dispatch(problem, POLICIES[name], seed=seed, conditions=conditions)
    assert dispatch(problem, POLICIES[name], seed=seed, conditions=conditions) == first


def test_noise_belongs_to_sub_epochs_and_not_to_policies() -> None:
    """Two policies meet the same real durations, so their makespans are comparable."""
    problem, noisy = open_shop([[3.0, 5.0, 4.0]] * 5, epochs=2), Conditions(sigma=0.4)
    taken = []
    for name in ("random", "fifo"):
        sub_epochs = dispatch(problem, POLICIES[name], seed=3, conditions=noisy).sub_epochs
        taken.append({(u.model, u.partition, u.epoch): round(u.end - u.start, 9) for u in sub_epochs})
    assert taken[0] == taken[1]
    assert len(set(taken[0].values())) == len(taken[0])


def test_another_holder_repeats_a_lost_sub_epoch() -> None:
    """A sub-epoch moves from Q' to Q when its worker is lost, and another holder executes it (paper, section 5.6)."""
    problem = open_shop([[10.0, 10.0]], available=[[0, 1]])
    schedule = dispatch(problem, LRPTW, conditions=Conditions(outages=(Outage(worker=0, start=4.0),)))
    assert [(sub_epoch.worker, sub_epoch.start, sub_epoch.end) for sub_epoch in schedule.sub_epochs] == [
        (1, 4.0, 14.0)
    ]


def test_a_lost_sub_epoch_waits_for_its_only_holder() -> None:
    """Without another holder it restarts from the beginning when the worker returns."""
    outage = Conditions(outages=(Outage(worker=0, start=4.0, seconds=3.0),))
    schedule = dispatch(open_shop([[10.0]]), LRPTW, conditions=outage)
    assert [(sub_epoch.start, sub_epoch.end) for sub_epoch in schedule.sub_epochs] == [(7.0, 17.0)]


def test_a_run_that_cannot_end_raises_with_the_reason() -> None:
    """The only holder of a partition never returns: the error names model, partition and worker."""
    conditions = Conditions(outages=(Outage(worker=1, start=5.0),))
    with pytest.raises(InstanceError, match=r"'m\d' has yet to train on partition 1.*worker-1.*comes back"):
        dispatch(SQUARE, LRPTW, conditions=conditions)


def test_a_worker_that_joins_is_used_at_once() -> None:
    """Its replica halves the remaining time."""
    problem = open_shop([[10.0, 10.0]] * 8, available=[[0, 1]])
    schedule = dispatch(problem, LRPTW, conditions=Conditions(joins=(Join(worker=1, at=20.0),)))
    assert schedule.makespan == 50.0
    assert min(sub_epoch.start for sub_epoch in schedule.sub_epochs if sub_epoch.worker == 1) == 20.0


def test_rounding_does_not_separate_equal_times() -> None:
    """Sums of 0.1 that differ in the last bit count as equal, so the Latin square meets its bound."""
    problem = open_shop([[0.1] * 7] * 7)
    assert dispatch(problem, LRPTW).makespan == pytest.approx(0.7, abs=1e-9)


def test_the_clairvoyant_bound_includes_absences_and_slow_spells() -> None:
    """A column of 20 s, 5 s of absence and 10 s at half speed: 30 s."""
    conditions = Conditions(
        outages=(Outage(worker=0, start=0.0, seconds=5.0),),
        stragglers=(Straggler(worker=0, factor=2.0, start=5.0, seconds=10.0),),
    )
    assert Reality(SQUARE, conditions, 0).bound() == 30.0
    assert Reality(SQUARE, Conditions(), 0).bound() == 20.0
