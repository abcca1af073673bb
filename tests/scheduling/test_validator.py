"""The validator accepts valid schedules and names each violation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cerebro.scheduling.bounds import lower_bound
from cerebro.scheduling.problem import Problem, TimedPlan
from cerebro.scheduling.schedule import Placement, Schedule
from cerebro.scheduling.validator import validate
from research.problems import multi_gpu, open_shop
from tests.scheduling.instances import problems

ANY = problems(max_gpus=3, max_parallel_plans=2)
SQUARE = open_shop([[1.0, 2.0], [2.0, 1.0]])
SUB_EPOCHS = (
    Placement(model=0, partition=0, worker=0, start=0.0, end=1.0),
    Placement(model=1, partition=1, worker=1, start=0.0, end=1.0),
    Placement(model=0, partition=1, worker=1, start=1.0, end=3.0),
    Placement(model=1, partition=0, worker=0, start=1.0, end=3.0),
)


def one_after_the_other(problem: Problem) -> Schedule:
    """Return a sequential, valid schedule of any problem."""
    now = max(*problem.model_ready, *(ready[-1] for ready in problem.gpu_ready))
    sub_epochs = []
    for model, left in enumerate(problem.remaining_partitions):
        for epoch in range(1, problem.epochs + 1):
            for partition in range(problem.num_partitions):
                if epoch > 1 or left >> partition & 1:
                    worker = problem.places(model, partition)[-1]
                    parallel_plan = problem.parallel_plans[model][worker][-1]
                    end = now + parallel_plan.seconds * problem.sizes[partition] + parallel_plan.fixed
                    sub_epochs.append(
                        Placement(
                            model=model,
                            partition=partition,
                            worker=worker,
                            start=now,
                            end=end,
                            epoch=epoch,
                            gpus=parallel_plan.gpus,
                        )
                    )
                    now = end
    return Schedule.of(sub_epochs)


def complaints(problem: Problem, sub_epochs: tuple[Placement, ...], *, actual: bool = False) -> str:
    return "\n".join(validate(problem, Schedule.of(sub_epochs), actual=actual).violations)


@given(ANY)
@settings(deadline=None, max_examples=80)
def test_a_valid_schedule_has_no_violations(problem: Problem) -> None:
    """The report has the makespan, the problem's bound and the gap between them."""
    schedule = one_after_the_other(problem)
    report = validate(problem, schedule).check()
    assert report.violations == ()
    assert report.makespan == schedule.makespan
    assert report.lower_bound == lower_bound(problem) <= report.makespan
    assert report.gap >= 0


@given(ANY, st.data())
@settings(deadline=None, max_examples=60)
def test_a_missing_sub_epoch_is_named(problem: Problem, data: st.DataObject) -> None:
    sub_epochs = one_after_the_other(problem).sub_epochs
    assume(sub_epochs)
    lost = data.draw(st.sampled_from(sub_epochs))
    said = complaints(problem, tuple(sub_epoch for sub_epoch in sub_epochs if sub_epoch is not lost))
    name = f"model 'm{lost.model}' on partition {lost.partition} in epoch {lost.epoch}"
    assert said == f"{name} runs never, expected once"


@given(ANY, st.data())
@settings(deadline=None, max_examples=60)
def test_a_repeated_sub_epoch_is_named(problem: Problem, data: st.DataObject) -> None:
    """Even if it causes no conflict."""
    schedule = one_after_the_other(problem)
    assume(schedule.sub_epochs)
    again = data.draw(st.sampled_from(schedule.sub_epochs))
    later = again._replace(start=schedule.makespan, end=schedule.makespan + again.end - again.start)
    said = complaints(problem, (*schedule.sub_epochs, later))
    name = f"model 'm{again.model}' on partition {again.partition} in epoch {again.epoch}"
    assert f"{name} runs 2 times, expected once" in said


@given(problems(is_begun=False, max_models=2, max_workers=2), st.data())
@settings(deadline=None, max_examples=60)
def test_a_model_in_two_places_is_named(problem: Problem, data: st.DataObject) -> None:
    """Two sub-epochs of a model overlap in time, on one worker or on two."""
    sub_epochs = one_after_the_other(problem).sub_epochs
    assume(len(sub_epochs) > 1 and sub_epochs[1].model == sub_epochs[0].model)
    shift = data.draw(st.floats(0.01, 1.0)) * (sub_epochs[0].end - sub_epochs[0].start)
    moved = sub_epochs[1]._replace(start=sub_epochs[1].start - shift, end=sub_epochs[1].end - shift)
    said = complaints(problem, (sub_epochs[0], moved, *sub_epochs[2:]))
    assert (
        f"model 'm0' on partition {sub_epochs[1].partition} in epoch {sub_epochs[1].epoch} starts at" in said
    )
    assert "runs" in said


@given(st.integers(1, 4), st.integers(2, 5))
@settings(deadline=None, max_examples=30)
def test_overbooked_gpus_are_named(gpus: int, models: int) -> None:
    """A node runs as many one-GPU models at once as it has GPUs."""
    problem = multi_gpu([gpus], {f"m{number}": {0: {1: 2.0}} for number in range(models)})
    sub_epochs = tuple(Placement(model=m, partition=0, worker=0, start=0.0, end=2.0) for m in range(models))
    said = complaints(problem, sub_epochs)
    assert said.count("GPUs would be taken") == max(0, models - gpus)


@given(ANY, st.data(), st.sampled_from((0.5, 0.999, 1.001, 2.0)))
@settings(deadline=None, max_examples=60)
def test_a_wrong_duration_is_named_unless_times_are_actual(
    problem: Problem, data: st.DataObject, factor: float
) -> None:
    """Planned durations must match the parallel plan; measured ones may differ."""
    sub_epochs = one_after_the_other(problem).sub_epochs
    assume(sub_epochs)
    last = sub_epochs[-1]
    other = last._replace(end=last.start + (last.end - last.start) * factor)
    said = complaints(problem, (*sub_epochs[:-1], other))
    assert said.startswith(f"model 'm{last.model}' on partition {last.partition} in epoch {last.epoch} takes")
    assert complaints(problem, (*sub_epochs[:-1], other), actual=True) == ""


def test_gpus_or_a_technique_without_a_parallel_plan_are_named() -> None:
    """GPUs and technique must match one of the model's parallel plans on the worker."""
    problem = Problem(
        models=("m",),
        workers=("w",),
        gpus=(4,),
        parallel_plans=(((TimedPlan(seconds=1.0, gpus=2, technique="fsdp"),),),),
        holders=((0,),),
    )
    right = Placement(model=0, partition=0, worker=0, start=0.0, end=1.0, gpus=2, technique="fsdp")
    assert complaints(problem, (right,)) == ""
    assert "runs on 1 GPUs of w by fsdp, for which" in complaints(problem, (right._replace(gpus=1),))
    assert "runs on 2 GPUs of w by ddp, for which" in complaints(problem, (right._replace(technique="ddp"),))


@pytest.mark.parametrize(
    ("late", "who"),
    [({"model_ready": (0.5, 0.0)}, "the model"), ({"gpu_ready": ((0.5,), (0.0,))}, "worker-0")],
)
def test_a_start_before_model_or_worker_is_ready_is_named(late: dict[str, Any], who: str) -> None:
    """Another task occupies them until then."""
    said = complaints(replace(SQUARE, **late), SUB_EPOCHS)
    assert said == f"model 'm0' on partition 0 in epoch 1 starts at 0 s, but {who} is ready at 0.5 s"


def test_epochs_out_of_order_are_named() -> None:
    """A model's second epoch begins after all sub-epochs of its first."""
    problem = open_shop([[1.0]], epochs=2)
    first = Placement(model=0, partition=0, worker=0, start=1.0, end=2.0)
    second = first._replace(start=0.0, end=1.0, epoch=2)
    assert "comes after model 'm0' on partition 0 in epoch 2, a later epoch" in complaints(
        problem, (first, second)
    )


def test_a_partition_trained_on_before_is_not_due_again() -> None:
    """A half-done epoch needs only the remaining partitions."""
    said = complaints(replace(SQUARE, remaining_partitions=(0b10, 0b11)), SUB_EPOCHS)
    assert said == "model 'm0' on partition 0 in epoch 1 runs once, expected never"


def test_rounding_is_no_violation() -> None:
    """Sums in another order differ in their last digits, which is no overlap."""
    end = 0.1 + 0.2
    problem = open_shop([[end], [1.0]])
    sub_epochs = (
        Placement(model=0, partition=0, worker=0, start=0.0, end=end),
        Placement(model=1, partition=0, worker=0, start=0.3, end=1.3),
    )
    assert end > 0.3
    assert complaints(problem, sub_epochs) == ""


GANGS = replace(
    open_shop([[4.0] * 4] * 2),
    gangs=(
        (TimedPlan(workers=2, seconds=2.5), TimedPlan(workers=4, seconds=1.5)),
        (TimedPlan(workers=2, seconds=2.5),),
    ),
)


def together(*places: int, model: int = 0, start: float = 0.0, end: float | None = None) -> Placement:
    """Place a model on these partitions, each on the worker with the same number."""
    first, *others = places
    return Placement(
        model=model,
        partition=first,
        worker=first,
        start=start,
        end=start + {1: 4.0, 2: 5.0, 4: 6.0}[len(places)] if end is None else end,
        other_members=tuple((place, place) for place in others),
    )


IN_PAIRS = (
    together(0, 1),
    together(2, 3, start=5.0),
    together(2, 3, model=1),
    together(0, model=1, start=5.0),
    together(1, model=1, start=9.0),
)


def test_sets_that_cover_the_partitions_once_are_valid() -> None:
    """Sets may have any size. A gang shortens a model's own time, so the bound includes gangs."""
    report = validate(GANGS, Schedule.of(IN_PAIRS)).check()
    assert report.makespan == 13.0
    assert report.lower_bound == pytest.approx(10.0)
    alone = tuple(together(p, model=1, start=6.0 + 4 * p) for p in range(4))
    assert validate(GANGS, Schedule.of((together(0, 1, 2, 3), *alone))).check().gap > 0
    assert lower_bound(GANGS) < lower_bound(replace(GANGS, gangs=()))


@pytest.mark.parametrize(
    ("sub_epochs", "said"),
    [
        ((together(0, 1), *IN_PAIRS[2:]), "on partition 2 in epoch 1 runs never"),
        ((*IN_PAIRS, together(0, start=20.0)), "on partition 0 in epoch 1 runs 2 times"),
        (
            (together(0, 1), together(1, 2, start=5.0), *IN_PAIRS[2:]),
            "on partition 1 in epoch 1 runs 2 times",
        ),
        (
            (IN_PAIRS[0]._replace(other_members=((1, 0),)), *IN_PAIRS[1:]),
            "runs on worker-0 and worker-0, expected another worker for each partition",
        ),
        (
            (IN_PAIRS[0]._replace(other_members=((1, 2),)), *IN_PAIRS[1:]),
            "runs on worker-2, which does not hold partition 1",
        ),
        (
            (together(0, 1, end=4.0), *IN_PAIRS[1:]),
            "takes 4 s on worker-0 and worker-1, its parallel plan says 5 s",
        ),
        (
            (together(0, 1, 2, end=5.0), together(3, start=5.0), *IN_PAIRS[2:]),
            "the model has no parallel plan",
        ),
        (
            (*IN_PAIRS[:3], together(0, model=1, start=4.5), IN_PAIRS[4]),
            "while model 'm1' on partition 2 and 3",
        ),
        ((IN_PAIRS[0], together(2, 3, start=4.5), *IN_PAIRS[2:]), "2 of its 1 GPUs would be taken"),
        (
            (IN_PAIRS[0]._replace(other_members=((7, 1),)), *IN_PAIRS[1:]),
            "names partition 7, but there are 4",
        ),
        ((IN_PAIRS[0]._replace(other_members=((1, 7),)), *IN_PAIRS[1:]), "names worker 7, but there are 4"),
    ],
)
def test_an_invalid_set_is_named(sub_epochs: tuple[Placement, ...], said: str) -> None:
    """Sets that overlap or are incomplete, invalid members, and GPUs that are in use."""
    assert said in complaints(GANGS, sub_epochs)


def test_a_gang_starts_when_its_workers_are_ready() -> None:
    late = replace(GANGS, gpu_ready=((0.0,), (3.0,), (0.0,), (0.0,)))
    assert "worker-1 is ready at 3 s" in complaints(late, IN_PAIRS)
