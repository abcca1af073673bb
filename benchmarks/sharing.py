"""Runs that share a cluster, simulated by the live core with 8 workers.

Sub-epochs take 5 minutes, or an hour where stated, with log-normal noise of sigma 0.1. Each bar compares two
simulations of the same requests and durations: in sequence, as with ``controller.openRuns: 1``, and in parallel. The
start of child processes is not simulated: the minimum hold time limits it to a twentieth of a worker's time.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable

from benchmarks.figure import Figure
from cerebro.contract.events import PreemptionRequested, RunStarted, TaskStarted
from cerebro.contract.priority import NORMAL, weight
from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.state import Run
from research.simulation.cluster import Simulation
from research.simulation.scenario import DATASET, EXPERIMENT, Neighbour, Scenario

WORKERS = 8
SUB_EPOCH_S = 300.0
SIGMA = 0.1
SEEDS = 3
OTHER = "other"
SUB_EPOCHS_PER_WORKER = 50


def benchmark() -> list[Figure]:
    """Measure a short run behind a long one, two runs of few models, long sub-epochs, and shares by priority."""
    return [_behind(), _few(), _long_sub_epochs(), *(_shares(priority) for priority in (NORMAL, NORMAL - 1))]


def _behind() -> Figure:
    """Request the short run an hour after the start of the long one."""
    waits: list[tuple[float, float]] = []
    longer: list[float] = []
    for seed in range(SEEDS):
        after, beside = (_pair(most, (16, 10), (4, 1), seed=seed, at=3600.0) for most in (1, 8))
        waits.append((beside[1], after[1]))
        longer.append(beside[0] / after[0])
    return Figure(
        what="sharing: a short run (4 models x 1 epoch) behind a long one (16 x 10): from request to end, against "
        "one after the other",
        measured=_hours(waits),
        ratio=statistics.fmean(now / was for now, was in waits),
        bar=0.085,
        sense="at most",
        notes=(
            f"at most {max(now / was for now, was in waits):.3f} in {SEEDS} runs",
            f"the long run takes {100 * (statistics.fmean(longer) - 1):.1f} % longer than alone",
        ),
    )


def _few() -> Figure:
    ratios, ends = [], []
    for seed in range(SEEDS):
        after, beside = (max(_pair(most, (4, 2), (4, 2), seed=seed)) for most in (1, 8))
        ratios.append(beside / after)
        ends.append((beside, after))
    return Figure(
        what="sharing: two runs of 4 models x 2 epochs on 8 workers, against one after the other",
        measured=_hours(ends),
        ratio=statistics.fmean(ratios),
        bar=0.6,
        sense="at most",
        notes=(f"at most {max(ratios):.3f} in {SEEDS} runs",),
    )


def _long_sub_epochs() -> Figure:
    """Request a run 20 minutes after the start of another one, with and without savepoints."""
    waits: dict[bool, list[float]] = {False: [], True: []}
    ends: dict[bool, list[float]] = {False: [], True: []}
    preemptions = 0
    for seed in range(SEEDS):
        for saves in (False, True):
            simulation = _simulation(
                8, (24, 1), (24, 1), seed=seed, at=1200.0, sub_epoch_s=3600.0, saves=saves
            )
            simulation.run()
            events = simulation.store.events(OTHER)
            waits[saves].append(next(e.time for e in events if isinstance(e, TaskStarted)) - 1200.0)
            ends[saves].append(simulation.now)
            preemptions += sum(isinstance(event, PreemptionRequested) for event in (*events, *simulation.log))
    now, was = statistics.fmean(waits[True]), statistics.fmean(waits[False])
    longer = statistics.fmean(ends[True]) / statistics.fmean(ends[False]) - 1
    return Figure(
        what="sharing: wait of a second run for its first device, sub-epochs of an hour, preempted at savepoints",
        measured=f"{now:.0f} s, without savepoints {was:.0f} s",
        ratio=now / was,
        bar=0.1,
        sense="at most",
        notes=(
            f"{preemptions / SEEDS:.0f} preemptions of {2 * 24 * WORKERS} sub-epochs",
            f"both runs end {100 * longer:+.1f} % later than without preemption",
        ),
    )


def _shares(priority: int) -> Figure:
    """Measure the shares of two long runs over 50 sub-epochs a worker; the second has this priority."""
    ratio = weight(NORMAL) / weight(priority)
    due = ratio / (ratio + 1)
    errors = []
    for seed in range(SEEDS):
        simulation = _simulation(8, (24, 4), (24, 4), seed=seed, priority=priority)
        simulation.run()
        sub_epochs = sorted(
            (sub_epoch.ended, name == EXPERIMENT, sub_epoch.seconds)
            for name in (EXPERIMENT, OTHER)
            for model in _run(simulation, name).models.values()
            for sub_epoch in model.sub_epochs
        )[: SUB_EPOCHS_PER_WORKER * WORKERS]
        had = sum(seconds for _, is_first, seconds in sub_epochs if is_first)
        errors.append(abs(had / sum(seconds for _, _, seconds in sub_epochs) - due))
    return Figure(
        what=f"sharing: error of the shares of two runs, weights {ratio:g}:1, over {SUB_EPOCHS_PER_WORKER} "
        f"sub-epochs a worker",
        measured=f"{100 * statistics.fmean(errors):.2f} % of the cluster on average",
        ratio=100 * max(errors),
        bar=3,
        sense="at most",
        measure="%",
    )


# --- simulations ---------------------------------------------------------------------------------


def _pair(
    max_open: int, first: tuple[int, int], second: tuple[int, int], *, seed: int, at: float = 0.0
) -> tuple[float, float]:
    """Return the seconds from request to end of two runs, given as (models, epochs)."""
    simulation = _simulation(max_open, first, second, seed=seed, at=at)
    simulation.run()
    return _run(simulation, EXPERIMENT).clock.ended, _run(simulation, OTHER).clock.ended - at


def _simulation(
    max_open: int,
    first: tuple[int, int],
    second: tuple[int, int],
    *,
    seed: int,
    at: float = 0.0,
    priority: int = NORMAL,
    sub_epoch_s: float = SUB_EPOCH_S,
    saves: bool = False,
) -> Simulation:
    rows = 1000 if saves else 1  # a batch has one row, and a savepoint follows a batch
    request, plan = _fit(*first, rows)
    other, other_plan = _fit(*second, rows)
    return Simulation(
        Scenario(
            replicas={f"worker-{n}": [n] for n in range(WORKERS)},
            sub_epoch_time=_sub_epoch_time(seed, sub_epoch_s),
            lease_s=3600.0,
            saves=saves,
            saves_every_s=300.0 if saves else 0.0,
        ),
        request,
        plan,
        neighbours=[Neighbour(name=OTHER, request=other, plan=other_plan, at=at, priority=priority)],
        max_open=max_open,
    )


def _sub_epoch_time(seed: int, mean_s: float) -> Callable[[TaskBody, str], float]:
    """Return a function with the same seconds for a sub-epoch of a run in every simulation."""

    def seconds(body: TaskBody, worker: str) -> float:
        # An attempt that continues from a savepoint has the time of the first one.
        body = body.model_copy(update={"savepoint": None}) if isinstance(body, TrainTask) else body
        return mean_s * random.Random(f"{seed} {body.model_dump_json()} {worker}").lognormvariate(0.0, SIGMA)

    return seconds


def _fit(models: int, epochs: int, rows: int) -> tuple[FitRequest, RunStarted]:
    names: dict[str, Hyperparameters] = {f"m{n:02}": {"batch_size": 1, "of": models} for n in range(models)}
    request = FitRequest(
        code="0" * 64, models=tuple(names.values()), epochs=epochs, metric="loss", mode="min", planner=False
    )
    plan = FitPlan(dataset=DATASET, models=names, partitions=dict.fromkeys(range(WORKERS), rows))
    return request, RunStarted(run="fit-1", plan=plan)


def _run(simulation: Simulation, experiment: str) -> Run:
    return simulation.cores[experiment].state.runs["fit-1"]


def _hours(pairs: list[tuple[float, float]]) -> str:
    """Format mean hours, in parallel and in sequence."""
    now, was = (statistics.fmean(side) / 3600 for side in zip(*pairs, strict=True))
    return f"{now:.2f} h, one after the other {was:.2f} h"
