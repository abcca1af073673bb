"""Schedules as data: their order, their makespan, and which GPUs their sub-epochs run on."""

from __future__ import annotations

from hypothesis import given, settings

from cerebro.scheduling.problem import Problem
from cerebro.scheduling.schedule import Schedule, SubEpoch, devices
from tests.scheduling.brute import optimum
from tests.scheduling.instances import multi_gpu_problems


def sub_epoch(start: float, end: float, *, worker: int = 0, model: int = 0, gpus: int = 1) -> SubEpoch:
    return SubEpoch(model=model, partition=worker, worker=worker, start=start, end=end, gpus=gpus)


def test_sub_epochs_are_in_the_order_of_their_start() -> None:
    """Then of their worker: two schedules of the same sub-epochs are equal."""
    sub_epochs = [sub_epoch(1.0, 2.0), sub_epoch(0.0, 1.0, worker=1), sub_epoch(0.0, 1.0, model=1)]
    assert Schedule.of(sub_epochs) == Schedule.of(reversed(sub_epochs))
    assert [(u.start, u.worker) for u in Schedule.of(sub_epochs).sub_epochs] == [(0, 0), (0, 1), (1, 0)]


def test_the_makespan_is_the_last_end() -> None:
    """Not the end of the sub-epoch that starts last; 0 without sub-epochs."""
    assert Schedule.of([sub_epoch(0.0, 9.0), sub_epoch(1.0, 2.0, worker=1)]).makespan == 9
    assert Schedule(()).makespan == 0


def test_a_worker_s_sub_epochs_are_in_order() -> None:
    """By their start, whatever order they were given in."""
    schedule = Schedule.of(
        [sub_epoch(1.0, 2.0, model=1), sub_epoch(0.0, 1.0), sub_epoch(0.0, 1.0, worker=2, model=2)]
    )
    assert [u.model for u in schedule.by_worker()[0]] == [0, 1]
    assert [u.model for u in schedule.by_worker()[2]] == [2]


@given(multi_gpu_problems())
@settings(deadline=None, max_examples=40)
def test_sub_epochs_get_gpus_of_their_worker_for_themselves(problem: Problem) -> None:
    """As many as they take, none twice at once, none that the worker does not have."""
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
    """A sub-epoch that ends at 0.1 + 0.2 has left its GPU for one that starts at 0.3."""
    first, second = sub_epoch(0.0, 0.1 + 0.2), sub_epoch(0.3, 1.0, model=1)
    assert first.end > second.start
    assert devices([first, second]) == {first: (0,), second: (0,)}
