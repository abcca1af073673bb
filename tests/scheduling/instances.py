"""Random scheduling problems for hypothesis. Times are small whole numbers, so their sums are exact."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import strategies as st

from cerebro.scheduling.problem import Problem, TimedPlan
from research.problems import open_shop

_T = TypeVar("_T")

TIMES = st.integers(1, 9).map(float)
FIXED = st.sampled_from((0.0, 0.0, 1.0, 3.0))
"""Seconds of a sub-epoch that do not depend on the partition's size."""


@st.composite
def open_shops(
    draw: st.DrawFn, *, max_models: int = 4, max_workers: int = 4, times: st.SearchStrategy[float] = TIMES
) -> Problem:
    """Generate the paper's problem: partition `j` on worker `j` only, one GPU each, nothing done yet."""
    width = draw(st.integers(1, max_workers))
    row = st.lists(times, min_size=width, max_size=width)
    return open_shop(draw(st.lists(row, min_size=1, max_size=max_models)))


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    max_models: int = 4,
    max_workers: int = 3,
    max_partitions: int = 3,
    max_gpus: int = 1,
    max_parallel_plans: int = 1,
    max_epochs: int = 2,
    is_begun: bool = True,
    times: st.SearchStrategy[float] = TIMES,
) -> Problem:
    """Generate any problem: replicas, models that fit only some workers, sizes and epochs.

    Args:
        max_gpus: Most GPUs of a worker.
        max_parallel_plans: Most parallel plans of a model on a worker, each with another number of GPUs.
        is_begun: True if the run may be half done, with models and workers that become ready later.
    """
    num_models, num_workers = draw(st.integers(1, max_models)), draw(st.integers(1, max_workers))
    gpus = draw(_of(num_workers, st.integers(1, max_gpus)))
    holder_set = st.lists(st.integers(0, num_workers - 1), min_size=1, unique=True).map(sorted).map(tuple)
    holders = draw(st.lists(holder_set, min_size=1, max_size=max_partitions))
    parallel_plans = [
        [draw(_parallel_plans(count, max_parallel_plans, times)) for count in gpus] for _ in range(num_models)
    ]
    for row in parallel_plans:
        for held in holders:
            if not any(row[w] for w in held):
                row[held[0]] = (TimedPlan(seconds=draw(times), fixed=draw(FIXED)),)
    whole = (1 << len(holders)) - 1
    ready = st.integers(0, 5).map(float) if is_begun else st.just(0.0)
    return Problem(
        models=tuple(f"m{number}" for number in range(num_models)),
        workers=tuple(f"worker-{number}" for number in range(num_workers)),
        gpus=tuple(gpus),
        parallel_plans=tuple(map(tuple, parallel_plans)),
        holders=tuple(holders),
        sizes=tuple(draw(_of(len(holders), st.sampled_from((1.0, 1.0, 0.5, 2.0))))),
        epochs=draw(st.integers(1, max_epochs)),
        remaining_partitions=tuple(
            draw(_of(num_models, st.integers(0, whole) if is_begun else st.just(whole)))
        ),
        model_ready=tuple(draw(_of(num_models, ready))),
        gpu_ready=tuple(tuple(draw(_of(count, ready))) for count in gpus),
    )


def multi_gpu_problems(
    *,
    max_models: int = 3,
    max_workers: int = 2,
    max_gpus: int = 3,
    max_parallel_plans: int = 2,
    max_epochs: int = 1,
) -> st.SearchStrategy[Problem]:
    """Generate problems with several GPUs per worker and several parallel plans, nothing done yet."""
    return problems(
        max_models=max_models,
        max_workers=max_workers,
        max_partitions=2,
        max_gpus=max_gpus,
        max_parallel_plans=max_parallel_plans,
        max_epochs=max_epochs,
        is_begun=False,
    )


def _of(length: int, each: st.SearchStrategy[_T]) -> st.SearchStrategy[list[_T]]:
    return st.lists(each, min_size=length, max_size=length)


def _parallel_plans(
    gpus: int, most: int, times: st.SearchStrategy[float]
) -> st.SearchStrategy[tuple[TimedPlan, ...]]:
    counts = st.lists(st.integers(1, gpus), max_size=min(most, gpus), unique=True).map(sorted)
    return counts.flatmap(
        lambda chosen: st.tuples(
            *(st.builds(TimedPlan, gpus=st.just(g), seconds=times, fixed=FIXED) for g in chosen)
        )
    )
