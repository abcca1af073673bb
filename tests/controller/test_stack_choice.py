"""The choice between stacks and separate training, by the run's own sub-epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.commands.planning import parallel_plans_of
from cerebro.contract.parallel_plans import SINGLE, TechniqueChoice
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.contract.tasks.failures import FailureKind
from cerebro.state import ModelState
from cerebro.state.models.parallel_plans import describe_plans, lines
from cerebro.state.runs.parts.stack_times import size_class
from research.simulation.cluster import Simulation
from research.simulation.scenario import Scenario
from tests.controller.disturbed import disturbed
from tests.controller.test_core import own_partition, plan, request
from tests.controller.test_fit_dispatch import told_step_by_step
from tests.controller.test_fused_groups import (
    assert_groups_are_sound,
    fit_of,
    fused,
    groups_of,
    inspection,
)
from tests.controller.test_parallel_plans import DEVICE, failing
from tests.controller.test_parallel_plans import parallel_plans_of as used_plans

BOTH = (
    TechniqueChoice(name="single", processes="one"),
    TechniqueChoice(name="fused", params={"models": 16}, processes="one"),
)
CHECKPOINTING = TechniqueChoice(name="checkpointing", processes="one")


def chosen(
    scenario: Scenario,
    *,
    models: int,
    epochs: int,
    partitions: int,
    stack_s: float,
    most: int = 16,
    named: Sequence[TechniqueChoice] = BOTH,
) -> Simulation:
    """Return a finished run that names these: one model takes 1 s, a stack `stack_s`, whatever its size."""

    def seconds(body: TaskBody, worker: str) -> float:
        used = body.parallel_plan if isinstance(body, TrainTask) else None
        return stack_s if used is not None and used.fused_models else scenario.sub_epoch_time(body, worker)

    fit = request(models, epochs).model_copy(update={"techniques": named, "has_shared_order": True})
    plans = tuple(
        fused(most) if each.fused_models else each for each in parallel_plans_of(named, (), {"worker-0": 1})
    )
    simulation = Simulation(
        replace(scenario, sub_epoch_time=seconds),
        fit,
        plan(models, partitions, rows=4, parallel_plans=plans),
    )
    simulation.run(limit=20_000)
    return simulation


def sizes(simulation: Simulation) -> list[int]:
    """Return the number of models of each assignment of sub-epochs, in order."""
    return [*map(len, groups_of(simulation))]


@pytest.mark.parametrize("named", [BOTH, BOTH[::-1]])
def test_single_and_fused_may_be_named_in_any_order(named: Sequence[TechniqueChoice]) -> None:
    """The plans of the run are the same."""
    assert parallel_plans_of(named, (), {"worker-0": 1}) == (fused(16), SINGLE)


@pytest.mark.parametrize(
    ("named", "labels"),
    [
        ((CHECKPOINTING, *BOTH), ["checkpointing", "fused(models=16)", "single"]),
        ((*BOTH, CHECKPOINTING), ["fused(models=16)", "single", "checkpointing"]),
        ((BOTH[1], CHECKPOINTING), ["fused(models=16)", "checkpointing", "single"]),
        ((CHECKPOINTING, BOTH[1]), ["checkpointing", "fused(models=16)", "single"]),
    ],
)
def test_named_techniques_keep_their_order_beside_stacks(
    named: Sequence[TechniqueChoice], labels: Sequence[str]
) -> None:
    """Only a stack named after `single` moves, directly before it."""
    assert [plan.label for plan in parallel_plans_of(named, (), {"worker-0": 1})] == labels


@pytest.mark.parametrize(
    ("named", "groups"),
    [((*BOTH, CHECKPOINTING), [(0, 1)]), ((BOTH[1], CHECKPOINTING), [(0,), (1,)])],
)
def test_a_model_that_lacks_memory_alone_joins_no_stack(
    named: Sequence[TechniqueChoice], groups: Sequence[tuple[int, ...]]
) -> None:
    """A stack needs more memory, so the model uses the next plan, and `single` is never tried again."""
    unusable = {(model, "single"): DEVICE for model in ("m00", "m01")}
    scenario = Scenario(
        replicas=own_partition(1), outcome=failing(unusable), inspection=inspection(*groups, most=16)
    )
    simulation = chosen(scenario, models=2, epochs=3, partitions=1, stack_s=0.5, named=named)
    for model in fit_of(simulation).models.values():
        assert model.state is ModelState.FINISHED
        assert [*model.failures.ruled_out] == ["single"]
        assert used_plans(simulation, model.id) == ["-", *["checkpointing"] * 3]


def test_a_slower_stack_is_measured_twice() -> None:
    """Two stacks of four models are trained on the two workers; then all models train separately."""
    scenario = Scenario(replicas=own_partition(2), inspection=inspection(tuple(range(8)), most=16))
    simulation = chosen(scenario, models=8, epochs=4, partitions=2, stack_s=6.0)
    found = sizes(simulation)
    assert [each for each in map(size_class, found) if each > 1] == [4, 4]
    assert found[0] == 1
    run = fit_of(simulation)
    assert (
        "models like m00 on virtual: a sub-epoch takes 1 s separately, 1.5 s in a stack of 4: they train separately"
        in lines(run)
    )
    for model in run.models.values():
        times = {each.parallel_plan.label: each.seconds for each in describe_plans(run, model)}
        assert times == pytest.approx({"fused(models=16)": 1.5, "single": 1.0})


def test_a_plan_besides_single_and_fused_shows_no_measured_time() -> None:
    """The run measures only these two."""
    scenario = Scenario(replicas=own_partition(1), inspection=inspection(tuple(range(8)), most=16))
    simulation = chosen(scenario, models=8, epochs=4, partitions=1, stack_s=1.0, named=(*BOTH, CHECKPOINTING))
    run = fit_of(simulation)
    times = {each.parallel_plan.label: each.seconds for each in describe_plans(run, run.models["m00"])}
    assert times["single"] == pytest.approx(1.0)
    assert times["fused(models=16)"] is not None
    assert times["checkpointing"] is None


def test_faster_stacks_grow_up_to_the_share_of_the_models() -> None:
    """Models train separately once, then in stacks of 4, then in ever larger ones."""
    scenario = Scenario(replicas=own_partition(1), inspection=inspection(tuple(range(16)), most=16))
    found = sizes(chosen(scenario, models=16, epochs=8, partitions=1, stack_s=1.5))
    assert found[0] == 1
    classes = [*dict.fromkeys(map(size_class, found))]
    assert classes == [1, 4, 8, 16]
    assert set(found[-4:]) == {16}


def test_large_stacks_wait_for_the_models_of_their_worker() -> None:
    """Once stacks of 16 are fastest, no small stack is queued behind a running one."""
    scenario = Scenario(replicas=own_partition(1), inspection=inspection(tuple(range(16)), most=16))
    found = sizes(chosen(scenario, models=16, epochs=10, partitions=1, stack_s=1.5))
    assert found[found.index(16) :] == [16] * (len(found) - found.index(16))


@settings(deadline=None, max_examples=40)
@given(
    shape=st.tuples(st.integers(2, 8), st.integers(1, 3), st.integers(1, 4)),
    most=st.sampled_from([2, 4, 8]),
    stack_s=st.floats(0.1, 20),
    devices=st.lists(st.integers(1, 2), max_size=3),
    outages=st.lists(st.tuples(st.integers(0, 2), st.floats(0.1, 20), st.floats(0.1, 30)), max_size=3),
    faults=st.dictionaries(
        st.tuples(st.integers(0, 7), st.integers(0, 8)),
        st.sampled_from([FailureKind.CRASH, FailureKind.NON_FINITE, FailureKind.OUT_OF_MEMORY]),
        max_size=3,
    ),
    crashes=st.frozensets(st.integers(1, 120), max_size=3),
    times=st.randoms(use_true_random=False),
)
def test_a_run_that_chooses_trains_everything_once(
    shape: tuple[int, int, int],
    most: int,
    stack_s: float,
    devices: list[int],
    outages: list[tuple[int, float, float]],
    faults: Mapping[tuple[int, int], FailureKind],
    crashes: frozenset[int],
    times: Random,
) -> None:
    """After any times, losses and crashes: sound groups, all sub-epochs, and the same choice after a restart."""
    models, workers, epochs = shape
    scenario = replace(
        disturbed(workers, outages=outages, faults=faults, times=times, devices=devices),
        inspection=inspection(tuple(range(models)), most=most),
        crash_before=crashes,
    )
    simulation = chosen(
        scenario, models=models, epochs=epochs, partitions=workers, stack_s=stack_s, most=most
    )
    assert told_step_by_step(simulation)
    assert_groups_are_sound(simulation.log)
    for model in fit_of(simulation).models.values():
        assert model.state in (ModelState.FAILED, ModelState.FINISHED)
        if model.state is ModelState.FINISHED:
            for epoch in range(1, epochs + 1):
                trained = [completed.partition for completed in model.sub_epochs if completed.epoch == epoch]
                assert sorted(trained) == list(range(workers))
