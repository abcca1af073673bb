"""A broken GPU, and a user error that looks like one, in simulation.

The live core runs 16 models on 4 workers in pods for 2 epochs, with sub-epochs of 5 minutes and log-normal noise of
sigma 0.1. Broken GPU: every sub-epoch of one worker raises the driver's text within a second; without quarantine, each
model would fail there. User error: every sub-epoch raises it on every worker.
"""

from __future__ import annotations

import random
import zlib

from benchmarks.figure import Figure
from cerebro.contract.events import RunStarted, TaskFailed
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state import ModelState
from research.simulation.cluster import Simulation
from research.simulation.scenario import DATASET, Scenario

MODELS, WORKERS, EPOCHS = 16, 4, 2
SUB_EPOCH_S, SIGMA = 300.0, 0.1
SEEDS = 5
BAD = "worker-1"
ECC = Failure(
    kind=FailureKind.DEVICE, message="AcceleratorError: CUDA error: uncorrectable ECC error encountered"
)
ILLEGAL = Failure(
    kind=FailureKind.USER_ERROR,
    message="AcceleratorError: CUDA error: an illegal memory access was encountered",
    may_be_device=True,
)
PLAIN = Failure(kind=FailureKind.USER_ERROR, message="KeyError: 'label'")


def benchmark() -> list[Figure]:
    """Measure both cases."""
    return [*_broken(), _mistake()]


def _broken() -> list[Figure]:
    given_up = max_failures = 0
    without, longer, is_left = [], [], True
    for seed in range(SEEDS):
        simulation = _simulation(seed, broken=True)
        run = simulation.run().runs["fit-1"]
        given_up += sum(model.state is not ModelState.FINISHED for model in run.models.values())
        failures = [event for event in simulation.log if isinstance(event, TaskFailed)]
        max_failures = max(max_failures, sum(each.worker == BAD for each in failures))
        is_left &= BAD in simulation.store.workers_health().quarantined()
        makers = {e.worker for e in simulation.log if e.type == "TaskCommitted" and "/etl/" in e.task}
        is_left &= bool(makers - {f"{BAD}-etl"})
        healthy = _simulation(seed, broken=False)
        without.append(healthy.run().runs["fit-1"].clock.ended)
        longer.append(run.clock.ended / without[-1])
    return [
        Figure(
            what=f"bad device: models given up, of {MODELS}, where every sub-epoch of one of {WORKERS} workers raises "
            '"uncorrectable ECC"',
            measured=f"{given_up} in {SEEDS} runs; its partition "
            + ("is made elsewhere" if is_left else "is NOT made elsewhere"),
            ratio=float(given_up + (not is_left)),
            bar=0,
            sense="at most",
            measure="models",
            notes=(f"{sum(longer) / SEEDS:.2f} x the time of {WORKERS} healthy workers",),
        ),
        Figure(
            what="bad device: failures before its worker is quarantined",
            measured=f"at most {max_failures} in {SEEDS} runs",
            ratio=float(max_failures),
            bar=2,
            sense="at most",
            measure="failures",
        ),
    ]


def _mistake() -> Figure:
    """Compare the user error with the same one under a text that no device raises."""
    extra, later, is_quarantined = 0, 0.0, False
    for seed in range(SEEDS):
        plain, looks_alike = (_simulation(seed, mistake=failure) for failure in (PLAIN, ILLEGAL))
        ends = [each.run().runs["fit-1"].clock.ended for each in (plain, looks_alike)]
        counts = [sum(isinstance(e, TaskFailed) for e in each.log) for each in (plain, looks_alike)]
        extra, later = max(extra, counts[1] - counts[0]), max(later, ends[1] - ends[0])
        is_quarantined |= bool(looks_alike.store.workers_health().quarantined())
    return Figure(
        what='bad device: attempts more for a mistake in all models that raises "illegal memory access"',
        measured=f"at most {extra} in {SEEDS} runs, told {later:.1f} s later; "
        + ("a worker was QUARANTINED" if is_quarantined else "no worker is quarantined"),
        ratio=float(extra + 100 * is_quarantined),
        bar=1,
        sense="at most",
        measure="attempts",
    )


def _simulation(seed: int, *, broken: bool = False, mistake: Failure | None = None) -> Simulation:
    def fails(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        if not isinstance(body, TrainTask):
            return None
        return ECC if broken and worker == BAD else mistake

    def sub_epoch_time(body: TaskBody, worker: str) -> float:
        if fails(body, 1, worker):
            return 1.0
        named = f"{seed}/{body.key}/{worker}"
        return SUB_EPOCH_S * random.Random(zlib.crc32(named.encode())).lognormvariate(0.0, SIGMA)

    request = FitRequest(
        code="0" * 64,
        models=tuple({"batch_size": 1} for _ in range(MODELS)),
        epochs=EPOCHS,
        metric="loss",
        mode="min",
        seed=seed,
    )
    plan = FitPlan(
        dataset=DATASET,
        models={f"m{number:02}": {"batch_size": 1} for number in range(MODELS)},
        partitions=dict.fromkeys(range(WORKERS), 1000),
    )
    scenario = Scenario(
        replicas={f"worker-{number}": [number] for number in range(WORKERS)},
        has_pods=True,
        sub_epoch_time=sub_epoch_time,
        outcome=fails,
    )
    return Simulation(scenario, request, RunStarted(run="fit-1", plan=plan))
