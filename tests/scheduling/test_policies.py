from __future__ import annotations

import copy
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.dispatch import dispatch
from cerebro.scheduling.dispatch_state import DispatchState
from cerebro.scheduling.policies import DEFAULT_POLICY, POLICIES
from cerebro.scheduling.policies.pairing import pair
from cerebro.scheduling.problem import Problem
from cerebro.scheduling.remaining_work import NEVER
from cerebro.scheduling.schedule import Placement
from research.problems import open_shop
from tests.scheduling.instances import open_shops, problems

SIZES = [(1, 1), (2, 5), (4, 3), (5, 5), (7, 7), (8, 6), (9, 13), (16, 16), (18, 13), (24, 18), (40, 16)]


def narrow(num_models: int, num_workers: int, seed: int) -> Problem:
    """Near-equal times: models +-15 %, workers +-5 %."""
    rng = random.Random(seed)
    workers = [rng.uniform(0.95, 1.05) for _ in range(num_workers)]
    models = [rng.uniform(0.85, 1.15) for _ in range(num_models)]
    return open_shop([[a * b for b in workers] for a in models])


def mean_ratio(name: str, cases: list[Problem]) -> float:
    return statistics.fmean(
        dispatch(problem, POLICIES[name], seed=seed).makespan / lower_bound(problem)
        for seed, problem in enumerate(cases)
    )


def idle(state: DispatchState) -> list[int]:
    return [worker for worker, gpus in enumerate(state.free) if gpus]


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=15, deadline=None)
@given(problem=problems(max_models=4, max_workers=3, max_gpus=2, is_begun=False), data=st.data())
def test_a_choice_is_eligible_repeatable_and_changes_no_state(
    name: str, problem: Problem, data: st.DataObject
) -> None:
    """The choice can start, a repeat gives the same choice, and the state does not change."""
    state, policy = DispatchState(problem), POLICIES[name]
    for _ in range(data.draw(st.integers(0, 12))):
        choices = [(w, m, mask) for w in range(problem.num_workers) for m, mask in state.eligible(w)]
        if choices and (not state.running or data.draw(st.booleans())):
            worker, model, mask = data.draw(st.sampled_from(choices))
            state.start(Placement(worker, model, mask.bit_length() - 1), state.now)
        elif state.running:
            state.finish(data.draw(st.sampled_from(sorted(state.running))), state.now + 1.0)
    before = copy.deepcopy(state.__dict__)
    choice = policy.choose(state, idle(state), random.Random(5))
    assert policy.choose(state, idle(state), random.Random(5)) == choice
    assert state.__dict__ == before
    if choice is not None:
        assert any(
            m == choice.model and mask >> choice.partition & 1 for m, mask in state.eligible(choice.worker)
        )


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"cyclic"}))
@settings(max_examples=20, deadline=None)
@given(problem=problems(max_gpus=2, is_begun=False))
def test_a_policy_without_waits_finds_an_eligible_sub_epoch(name: str, problem: Problem) -> None:
    """If any worker can start a sub-epoch, the policy starts one; a slow holder may leave it to a fast holder."""
    state = DispatchState(problem)
    while any(any(state.eligible(worker)) for worker in idle(state)):
        choice = POLICIES[name].choose(state, idle(state), random.Random(1))
        if choice is None:
            assert state.holders.is_replicated
            assert state.running
            break
        state.start(choice)


@pytest.mark.parametrize("name", ["lrptw", "cyclic"])
@pytest.mark.parametrize(("num_models", "num_workers"), SIZES)
def test_equal_times_meet_the_bound(name: str, num_models: int, num_workers: int) -> None:
    """Homogeneous instances get an optimal schedule despite rounding of sums of 0.1."""
    problem = open_shop([[0.1] * num_workers] * num_models)
    assert dispatch(problem, POLICIES[name]).makespan == pytest.approx(lower_bound(problem), rel=1e-9)


def test_cyclic_meets_the_bound_of_near_equal_times() -> None:
    """Policies without waits are off by per cents, the Latin square with waits by per mille."""
    cases = [narrow(16, 16, seed) for seed in range(8)]
    assert mean_ratio("cyclic", cases) < 1.005
    assert mean_ratio("lrptw", cases) > 1.03


@settings(max_examples=40, deadline=None)
@given(problem=open_shops(max_models=6, max_workers=5))
def test_cyclic_always_has_a_choice_in_an_idle_open_shop(problem: Problem) -> None:
    """While nothing runs in an open shop, the policy itself always has a choice."""
    state = DispatchState(problem)
    while any(state.open):
        choice = POLICIES["cyclic"].choose(state, idle(state), random.Random(0))
        if choice is not None:
            state.start(choice)
        else:
            state.finish(min(state.running))


def test_critical_first_leaves_long_sub_epochs_to_fast_holders() -> None:
    """The other holder is ten times faster, and the long model on the slow worker would end last."""
    state = DispatchState(open_shop([[1.0, 10.0], [0.1, 1.0]], available=[[0, 1], [0, 1]]))
    assert POLICIES["lrptw"].choose(state, [1], random.Random(0)) == Placement(1, 1, 0)
    state.drop(1)
    assert POLICIES["lrptw"].choose(state, [1], random.Random(0)) is None
    assert POLICIES["lrptw"].choose(state, [0, 1], random.Random(0)) == Placement(0, 0, 0)


def test_dry_runs_are_better_than_random_and_no_worse_than_critical_first() -> None:
    """An average over instances where critical first is not optimal."""
    cases = [narrow(9, 6, seed) for seed in range(4)]
    assert mean_ratio("monte-carlo", cases) < mean_ratio("random", cases) - 0.01
    assert mean_ratio("monte-carlo", cases) <= mean_ratio("lrptw", cases)


def test_dry_runs_degrade_to_critical_first_on_huge_problems() -> None:
    """There are more sub-epochs than one decision may simulate."""
    state = DispatchState(narrow(300, 10, 0))
    chosen = POLICIES["monte-carlo"].choose(state, idle(state), random.Random(0))
    assert chosen == POLICIES["lrptw"].choose(state, idle(state), random.Random(0))


@st.composite
def pairings(draw: st.DrawFn) -> tuple[dict[int, int], list[int]]:
    """Generate compatible workers and models, and the criticality of models."""
    workers, models = draw(st.integers(0, 6)), draw(st.integers(1, 6))
    fits = {worker: draw(st.integers(0, 2**models - 1)) for worker in range(workers)}
    return fits, sorted(draw(st.lists(st.integers(0, 3), min_size=models, max_size=models)))


@given(case=pairings())
def test_pairing_is_optimal(case: tuple[dict[int, int], list[int]]) -> None:
    """Earlier workers have priority, then more critical models; the expected result comes from exhaustive search."""
    fits, level = case
    found = pair(fits, level)
    assert all(fits[worker] >> place & 1 for worker, place in found.items())
    assert len(set(found.values())) == len(found)
    every: list[dict[int, int]] = [{}]
    for worker, mask in fits.items():
        every += [
            {**each, worker: place}
            for each in every
            for place in range(len(level))
            if mask >> place & 1 and place not in each.values()
        ]

    def worth(each: dict[int, int]) -> tuple[list[bool], list[int]]:
        critical = [sum(level[place] == step for place in each.values()) for step in range(4)]
        return [worker in each for worker in fits], critical

    assert worth(found) == max(worth(each) for each in every)


@pytest.mark.parametrize("shape", ["equal", "narrow", "staircase", "scarce"])
def test_thousands_of_workers_are_paired(shape: str) -> None:
    """No recursion or step limit applies: equal models, few choices, an augmenting chain through all workers,
    and too few models."""
    number = 3000
    everything = (1 << number) - 1
    fits = {
        "equal": dict.fromkeys(range(number), everything),
        "narrow": {worker: 0b111 << worker & everything for worker in range(number)},
        # Each worker displaces the previous one; the last worker moves all others.
        "staircase": {**{w: 0b11 << w & everything for w in range(number - 1)}, number - 1: 1},
        "scarce": dict.fromkeys(range(number), 0b1111),
    }[shape]
    found = pair(fits, [place // 100 for place in range(number)])
    assert len(found) == (4 if shape == "scarce" else number)
    assert len(set(found.values())) == len(found)


def test_the_default_policy_exists() -> None:
    assert DEFAULT_POLICY in POLICIES


@st.composite
def states(draw: st.DrawFn) -> DispatchState:
    """Generate a partly executed run: 2 to 6 models on 3 workers, some busy, with replicas, missing holders,
    long sub-epochs and models that do not fit."""
    models = draw(st.integers(2, 6))
    held = draw(st.lists(st.integers(0, 7), min_size=3, max_size=3) | st.just([1, 2, 4]))
    state = DispatchState.of_equals(models=models, sizes=[1, 1, 1], held=held, epochs=2)
    seconds = st.sampled_from([1.0, 1.0, 1.0, 3.0, 40.0])
    for model in range(models):
        times = draw(st.just([1.0] * 3) | st.lists(seconds, min_size=3, max_size=3))
        for worker, time in enumerate(times):
            state.set_time(model, worker, time, 0.0)
        state.set_epochs(model, 2, draw(st.integers(1, 2)), draw(st.integers(0, 7)))
    for model, worker in draw(st.sets(st.tuples(st.integers(0, models - 1), st.integers(0, 2)), max_size=3)):
        state.work.time[model][worker] = NEVER  # the worker is excluded for this model
    state.priority_score = draw(st.just([]) | st.lists(st.floats(0, 1), min_size=models, max_size=models))
    for worker in draw(st.sets(st.integers(0, 2), max_size=1)):
        found = list(state.startable(worker))
        if found:
            model, mask = draw(st.sampled_from(found))
            state.start(Placement(worker, model, (mask & -mask).bit_length() - 1))
    return state


def begun(policy: str, state: DispatchState, idle: set[int]) -> list[Placement]:
    """Start sub-epochs until the policy has no choice for the idle workers."""
    rng, found = random.Random(0), list[Placement]()
    while choice := POLICIES[policy].choose(state, sorted(idle - {each.worker for each in found}), rng):
        state.start(choice)
        found.append(choice)
    return found


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(deadline=None, max_examples=300)
@given(state=states(), priorities=st.lists(st.integers(-1, 1), min_size=6, max_size=6), data=st.data())
def test_models_of_the_highest_priority_go_first(
    policy: str, state: DispatchState, priorities: list[int], data: st.DataObject
) -> None:
    """After a round, no idle model could replace a started model of lower priority, and priorities never
    leave a worker idle that equal priorities would use."""
    idle = {worker for worker in data.draw(st.sets(st.integers(0, 2), min_size=1)) if state.free[worker]}
    equal = begun(policy, state.copy(), idle)
    for model in range(len(state.open)):
        state.set_priority(model, priorities[model])
    startable = {worker: {model for model, _ in state.startable(worker)} for worker in idle}
    found = begun(policy, state, idle)
    for choice in found:
        for model in startable[choice.worker] - state.running.keys():
            assert state.priority[model] <= state.priority[choice.model]
    assert bool(found) or not equal


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(deadline=None, max_examples=150)
@given(state=states(), priority=st.integers(-2, 2), idle=st.sets(st.integers(0, 2), min_size=1))
def test_a_common_priority_does_not_change_the_policys_choice(
    policy: str, state: DispatchState, priority: int, idle: set[int]
) -> None:
    """With one common priority, its value does not matter."""
    idle = {worker for worker in idle if state.free[worker]}
    expected = begun(policy, state.copy(), idle)
    for model in range(len(state.open)):
        state.set_priority(model, priority)
    assert begun(policy, state, idle) == expected
