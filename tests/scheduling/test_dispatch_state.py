"""`DispatchState`: its incremental sums equal recomputed sums after any change."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.scheduling.dispatch_state import DispatchState
from cerebro.scheduling.planning.decoder import Decoder
from cerebro.scheduling.policies import CriticalFirst
from cerebro.scheduling.problem import Problem, TimedPlan
from cerebro.scheduling.remaining_work import NEVER
from cerebro.scheduling.schedule import Placement
from research.problems import open_shop
from tests.scheduling.instances import problems

SINGLE = problems(max_gpus=2)


def sums(state: DispatchState) -> tuple[list[float], list[float]]:
    return list(state.work.model_left), list(state.work.worker_left)


def snapshot(state: DispatchState) -> tuple[object, ...]:
    """Return all data that a policy can read."""
    return (
        *([list(row) for row in table] for table in (state.work.time, state.work.need, state.work.fixed)),
        *(list(part) for part in (state.holders.held, state.open, state.epoch, state.free)),
        dict(state.running),
        sums(state),
        state.now,
    )


def step(state: DispatchState, data: st.DataObject) -> None:
    """Apply one random change to the state."""
    eligible = [
        Placement(worker, model, partition)
        for worker in range(len(state.holders.held))
        for model, mask in state.eligible(worker)
        for partition in range(len(state.sizes))
        if mask >> partition & 1
    ]
    trained = [
        (model, partition)
        for model, mask in enumerate(state.open)
        for partition in range(len(state.sizes))
        if (state.epoch_masks[model] & ~mask) >> partition & 1 and model not in state.running
    ]
    what = data.draw(
        st.sampled_from(
            ("start", "finish", "release", "reopen", "set_time", "set_parallel_plan", "set_held", "drop")
        )
    )
    if what == "start" and eligible:
        state.start(data.draw(st.sampled_from(eligible)), at=state.now + 1)
    elif what == "finish" and state.running:
        state.finish(data.draw(st.sampled_from(sorted(state.running))), at=state.now + 1)
    elif what == "release" and state.running:
        state.release(data.draw(st.sampled_from(sorted(state.running))))
    elif what == "reopen" and trained:
        state.reopen(*data.draw(st.sampled_from(trained)))
    elif what == "set_time":
        model = data.draw(st.integers(0, len(state.work.time) - 1))
        worker = data.draw(st.integers(0, len(state.holders.held) - 1))
        fixed = data.draw(st.sampled_from((0.0, 3.0)))
        state.set_time(model, worker, data.draw(st.sampled_from((1.0, 2.5, 7.0, NEVER))), fixed)
    elif what == "set_parallel_plan":
        model = data.draw(st.integers(0, len(state.work.time) - 1))
        worker = data.draw(st.integers(0, len(state.holders.held) - 1))
        need = data.draw(st.integers(1, state.gpus[worker]))
        fixed = data.draw(st.sampled_from((0.0, 3.0)))
        state.set_parallel_plan(model, worker, data.draw(st.sampled_from((1.0, 2.5, NEVER))), need, fixed)
    elif what == "set_held":
        worker = data.draw(st.integers(0, len(state.holders.held) - 1))
        state.set_held(worker, data.draw(st.integers(0, (1 << len(state.sizes)) - 1)))
    elif what == "drop":
        idle = sorted(set(range(len(state.open))) - set(state.running))
        if idle:
            state.drop(data.draw(st.sampled_from(idle)))


@given(SINGLE, st.data())
@settings(deadline=None, max_examples=150)
def test_incremental_sums_equal_recomputed_sums(problem: Problem, data: st.DataObject) -> None:
    """Sub-epochs start, finish, are released or repeated, estimates change, and workers join or leave.

    In a cross-validation, the models' epochs have different partitions.
    """
    state = DispatchState(problem)
    if data.draw(st.booleans()):
        masks = st.integers(1, (1 << len(state.sizes)) - 1)
        state.set_partitions([data.draw(masks) for _ in state.open])
        state.recount()
    for _ in range(data.draw(st.integers(1, 12))):
        step(state, data)
        running = sums(state)
        state.recount()
        anew = sums(state)
        assert running[0] == pytest.approx(anew[0], abs=1e-9)
        assert running[1] == pytest.approx(anew[1], abs=1e-9)


@given(SINGLE, st.data())
@settings(deadline=None, max_examples=60)
def test_a_copied_state_is_independent(problem: Problem, data: st.DataObject) -> None:
    """Except for estimates, changes of the copy do not affect the original."""
    state = DispatchState(problem)
    for _ in range(3):
        step(state, data)
    before = snapshot(state)
    copy = state.copy()
    assert snapshot(copy) == before
    for choice in [(w, m, mask) for w in range(len(copy.holders.held)) for m, mask in copy.eligible(w)][:1]:
        worker, model, mask = choice
        copy.start(Placement(worker, model, mask.bit_length() - 1), at=99.0)
        copy.finish(model)
    copy.set_held(0, 0)
    copy.drop(0)
    assert snapshot(state) == before


@given(SINGLE, st.data())
@settings(deadline=None, max_examples=60)
def test_a_release_undoes_a_start(problem: Problem, data: st.DataObject) -> None:
    """The sub-epoch is open, the model idle and the GPUs free again."""
    state = DispatchState(problem)
    eligible = [(w, m, mask) for w in range(len(state.holders.held)) for m, mask in state.eligible(w)]
    before = snapshot(state)
    for worker, model, mask in eligible:
        state.start(Placement(worker, model, mask.bit_length() - 1))
        state.release(model)
        assert snapshot(state) == before


@given(problems(max_gpus=2, is_begun=False))
@settings(deadline=None, max_examples=60)
def test_a_complete_run_leaves_all_sums_zero(problem: Problem) -> None:
    """Each sub-epoch is eligible when it starts, and all sums are zero in the end."""
    state = DispatchState(problem)
    sub_epochs = 0
    while any(state.open):
        worker, model, mask = next(
            (w, m, mask) for w in range(problem.num_workers) for m, mask in state.eligible(w)
        )
        state.start(Placement(worker, model, mask.bit_length() - 1))
        assert all(other != model for w in range(problem.num_workers) for other, _ in state.eligible(w))
        state.finish(model)
        sub_epochs += 1
    assert sub_epochs == problem.num_sub_epochs
    assert sums(state)[0] == pytest.approx([0.0] * problem.num_models, abs=1e-9)
    assert sums(state)[1] == pytest.approx([0.0] * problem.num_workers, abs=1e-9)


@given(problems(max_gpus=4, is_begun=False))
def test_a_workers_remaining_work_is_divided_by_its_gpus(problem: Problem) -> None:
    """Like the decoder, the state divides the work by the GPUs, if each partition has one holder."""
    parallel_plans = tuple(
        tuple(each or (TimedPlan(seconds=1.0),) for each in row) for row in problem.parallel_plans
    )
    single = replace(
        problem, parallel_plans=parallel_plans, holders=tuple(held[:1] for held in problem.holders)
    )
    decoder = Decoder(single, [[0] * single.num_workers] * single.num_models)
    assert DispatchState(single).work.worker_left == pytest.approx(decoder.worker_left[:-1])


@pytest.mark.parametrize(("gpus", "models"), [((3, 1), 4), ((2, 2), 3), ((4, 4), 12)])
def test_every_free_gpu_gets_a_sub_epoch_if_models_are_scarce(gpus: tuple[int, ...], models: int) -> None:
    """Critical first pairs models with all free GPUs at once."""
    problem = replace(open_shop([[1.0, 1.0]] * models), gpus=gpus, gpu_ready=())
    state = DispatchState(problem)
    while idle := [worker for worker in (0, 1) if state.free[worker]]:
        choice = CriticalFirst().choose(state, idle, Random(0))
        if choice is None:
            break
        state.start(choice)
    assert len(state.running) == min(models, sum(gpus))
    assert all(free >= 0 for free in state.free)
