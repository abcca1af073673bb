"""Problems of the papers: workers with one sub-epoch at a time, and nodes with several GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cerebro.errors import InstanceError
from cerebro.scheduling.problem import Problem, TimedPlan


def open_shop(
    times: Sequence[Sequence[float]],
    available: Sequence[Sequence[int]] | None = None,
    *,
    epochs: int = 1,
    sizes: Sequence[float] = (),
) -> Problem:
    """Build a problem with workers that run one sub-epoch at a time.

    Args:
        times: ``times[i][j]``, seconds of a sub-epoch of model `i` on worker `j` (T of the seed paper, table
            3).
        available: ``available[p]``, workers with partition `p`. Default: partition `j` on worker `j`.
        epochs: number of epochs.
        sizes: relative sizes of the partitions; default 1.

    Raises:
        InstanceError: see `Problem`.
    """
    width = len(times[0]) if times else 0
    for number, row in enumerate(times):
        if len(row) != width:
            raise InstanceError(
                f"times[{number}] has {len(row)} entries, but times[0] has {width}: give one for each worker"
            )
    holders = tuple((j,) for j in range(width)) if available is None else tuple(map(tuple, available))
    return Problem(
        models=tuple(f"m{number}" for number in range(len(times))),
        workers=tuple(f"worker-{number}" for number in range(width)),
        gpus=(1,) * width,
        parallel_plans=tuple(tuple((TimedPlan(seconds=seconds),) for seconds in row) for row in times),
        holders=holders,
        sizes=tuple(sizes),
        epochs=epochs,
    )


def multi_gpu(
    nodes: Sequence[int], runtimes: Mapping[str, Mapping[int, Mapping[int, float]]], *, epochs: int = 1
) -> Problem:
    """Build the thesis's problem (section 4.3).

    Each model trains once on each node, on some of its GPUs.

    Args:
        nodes: GPUs of each node (GPU_n of the thesis, table 4.1).
        runtimes: model -> node -> number of GPUs -> seconds (G and R of table 4.1).
        epochs: number of epochs.

    Raises:
        InstanceError: see `Problem`; or a node does not exist.
    """
    for model, places in runtimes.items():
        for node in places:
            if not 0 <= node < len(nodes):
                raise InstanceError(
                    f"model {model!r} has runtimes for node {node}, expected a node from 0 to {len(nodes) - 1}"
                )
    return Problem(
        models=tuple(runtimes),
        workers=tuple(f"node-{number}" for number in range(len(nodes))),
        gpus=tuple(nodes),
        parallel_plans=tuple(
            tuple(
                tuple(TimedPlan(gpus=gpus, seconds=s) for gpus, s in sorted(places.get(node, {}).items()))
                for node in range(len(nodes))
            )
            for places in runtimes.values()
        ),
        holders=tuple((node,) for node in range(len(nodes))),
        epochs=epochs,
    )


def is_open_shop(problem: Problem) -> bool:
    """True for the paper's plain case.

    One GPU per worker, one parallel plan, one holder per partition, one partition per worker, one epoch,
    nothing started and no gangs.
    """
    return (
        problem.is_single
        and not any(problem.gangs)
        and problem.epochs == 1
        and all(count == 1 for count in problem.gpus)
        and sorted(held for (held, *more) in problem.holders if not more) == list(range(problem.num_workers))
        and all(mask == problem.all_partitions for mask in problem.remaining_partitions)
        and not any(problem.model_ready)
        and not any(map(any, problem.gpu_ready))
    )
