"""Forecast inputs for tests of the autoscaler."""

from __future__ import annotations

from controller.scaling.autoscaler.forecast import Outlook


def outlook(
    models: int,
    partitions: int,
    epochs: int,
    *,
    sub_epoch_s: float = 300.0,
    workers: int | None = None,
    sigma: float = 0.1,
    join_s: float = 120.0,
    made_s: float = 60.0,
    slow: float = 1.0,
) -> Outlook:
    """Return the outlook of a run that has not started, with equal models; `slow` delays the first worker."""
    count = workers or partitions
    pace = (slow, *(1.0,) * (count - 1))
    return Outlook(
        seconds=tuple(tuple(sub_epoch_s * each for each in pace) for _ in range(models)),
        fixed=((0.0,) * count,) * models,
        gpus=(1,) * count,
        pace=pace,
        sizes=(1.0,) * partitions,
        holders=tuple((p % count,) for p in range(partitions)),
        remaining_partitions=((1 << partitions) - 1,) * models,
        ahead=(epochs - 1,) * models,
        model_ready=(0.0,) * models,
        gpu_ready=((0.0,),) * count,
        order=tuple(range(count)),
        sigma=sigma,
        made_s=made_s,
        join_s=join_s,
    )
