"""The gain from training a model on several workers at once when models are fewer than workers.

Hopping leaves a worker idle while no model is free for it (MOP paper, section 5.7). A *gang* of q workers trains one
model with the gradients of all members, each from its own partition. The cost per batch limits the gain: the gradients
are summed over the network. Here this is a formula with stated assumptions. The figures show which numbers of a cluster
matter; nothing is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cerebro.errors import InstanceError
from cerebro.scheduling.planning.planner import plan
from cerebro.scheduling.problem import Problem, TimedPlan
from cerebro.scheduling.schedule import Placement, Schedule
from research.problems import open_shop

_HOP_LATENCY_S = 1e-4
"""Latency of a message between two workers."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """Properties of a model and a network that matter for gangs.

    Attributes:
        name: name for people.
        batch_s: seconds that one worker computes for a batch. Assumption: q workers with an equal share of the rows
            each need 1 / q of this time. Small batches do not reach it in practice.
        gradient_bytes: bytes summed for each batch. Assumption: after the backward pass, not during it.
        bytes_per_s: bytes that each worker sends and receives at once.
    """

    name: str
    batch_s: float
    gradient_bytes: float
    bytes_per_s: float

    def all_reduce_s(self, workers: int) -> float:
        """Seconds of a ring all-reduce, which is optimal in bytes.

        Each worker sends 2 (q - 1) / q times the gradient in 2 (q - 1) messages (Patarasuk and Yuan 2009).
        """
        sent = 2 * (workers - 1) / workers * self.gradient_bytes
        return sent / self.bytes_per_s + 2 * (workers - 1) * _HOP_LATENCY_S

    def speed_up(self, workers: int) -> float:
        """Speed of a gang relative to one worker."""
        return self.batch_s / (self.batch_s / workers + self.all_reduce_s(workers))


def with_gangs(problem: Problem, training: Training) -> Problem:
    """Return the problem with gangs of every size for each model, limited by their slowest workers.

    Raises:
        InstanceError: a model has several parallel plans on a worker, or no plan.
    """
    if any(len(parallel_plans) != 1 for row in problem.parallel_plans for parallel_plans in row):
        raise InstanceError(
            "a gang's time follows from one parallel plan of the model on each worker: give one"
        )
    sizes = range(2, min(problem.num_workers, problem.num_partitions) + 1)
    return replace(
        problem,
        gangs=tuple(
            tuple(
                TimedPlan(
                    workers=members,
                    seconds=max(parallel_plans[0].seconds for parallel_plans in row)
                    / training.speed_up(members),
                    technique="ddp",
                )
                for members in sizes
            )
            for row in problem.parallel_plans
        ),
    )


def sub_clusters(problem: Problem, members: int, *, time_limit_s: float = 1.0) -> Schedule:
    """Schedule fixed gangs of equal size (the last may be smaller); models hop between gangs as between workers.

    Args:
        problem: problem with gangs; partition `p` on worker `p`, one GPU each.
        time_limit_s: limit for the planner, which orders the sub-epochs.
    """
    groups = _groups(problem, members)
    times = [[_sub_epoch_s(problem, model, group) for group in groups] for model in range(problem.num_models)]
    found = plan(open_shop(times, epochs=problem.epochs), time_limit_s=time_limit_s).schedule
    return Schedule.of(_on(problem, u.model, groups[u.partition], u.start, u.epoch) for u in found.sub_epochs)


def _groups(problem: Problem, members: int) -> list[tuple[int, ...]]:
    workers = range(problem.num_workers)
    return [tuple(workers[first : first + members]) for first in workers[::members]]


def _on(problem: Problem, model: int, group: Sequence[int], start: float, epoch: int) -> Placement:
    return Placement(
        model=model,
        partition=group[0],
        worker=group[0],
        start=start,
        end=start + _sub_epoch_s(problem, model, group),
        epoch=epoch,
        technique="ddp" if len(group) > 1 else "",
        other_members=tuple((worker, worker) for worker in group[1:]),
    )


def _sub_epoch_s(problem: Problem, model: int, group: Sequence[int]) -> float:
    if len(group) == 1:
        return problem.seconds(model, group[0], group[0])
    (parallel_plan,) = (gang for gang in problem.gangs[model] if gang.workers == len(group))
    return parallel_plan.sub_epoch_s(sum(problem.sizes[worker] for worker in group))
