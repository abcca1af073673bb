"""Schedules as data: order, makespan, and the GPUs of each sub-epoch."""

from __future__ import annotations

from hypothesis import given, settings

from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Placement
from research.gantt import devices
from tests.scheduling.brute import optimum
from tests.scheduling.instances import multi_gpu_problems


def sub_epoch(start: float, end: float, *, worker: int = 0, model: int = 0, gpus: int = 1) -> Placement:
    return Placement(model=model, partition=worker, worker=worker, start=start, end=end, gpus=gpus)


@given(multi_gpu_problems())
@settings(deadline=None, max_examples=40)
def test_each_sub_epoch_has_its_own_gpus(problem: Problem) -> None:
    """Each sub-epoch gets its number of GPUs, with no conflict and within the worker's GPUs."""
    placed = devices(optimum(problem).sub_epochs)
    for one, gpus in placed.items():
        assert len(set(gpus)) == one.gpus
        assert max(gpus) < problem.gpus[one.worker]
        for other in placed:
            if (
                other != one
                and other.worker == one.worker
                and one.start < other.end
                and other.start < one.end
            ):
                assert not set(gpus) & set(placed[other])


def test_rounding_does_not_need_another_gpu() -> None:
    """A sub-epoch that ends at 0.1 + 0.2 frees its GPU for one that starts at 0.3."""
    first, second = sub_epoch(0.0, 0.1 + 0.2), sub_epoch(0.3, 1.0, model=1)
    assert first.end > second.start
    assert devices([first, second]) == {first: (0,), second: (0,)}
