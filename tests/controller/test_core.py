"""The controller's core with simulated workers: invariants of model hopping under all failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    Event,
    RunRequested,
    RunStarted,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
    WorkerJoined,
)
from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.records import Replica
from cerebro.contract.runs import FitPlan, FitRequest
from cerebro.contract.tasks.bodies import EvaluateTask, TaskBody
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state import ExperimentState, ModelState, RunState, TaskKey
from cerebro.state.experiment import fold
from cerebro.state.tasks.task import MAX_LOSSES
from cerebro.state.workers import slots_of
from research.simulation.cluster import Simulation
from research.simulation.scenario import DATASET, EXPERIMENT, Scenario


def request(models: int, epochs: int) -> FitRequest:
    """A fit of `models` models, ranked by loss."""
    return FitRequest(
        code="0" * 64,
        models=tuple({"batch_size": 1, "n": n} for n in range(models)),
        epochs=epochs,
        metric="loss",
        mode="min",
    )


def plan(
    models: int,
    partitions: int,
    *,
    validated: bool = False,
    rows: int = 1,
    parallel_plans: tuple[ParallelPlan, ...] = (),
) -> RunStarted:
    """The plan of that fit over `partitions` partitions."""
    return RunStarted(
        run="fit-1",
        plan=FitPlan(
            dataset=DATASET,
            models={f"m{n:02}": {"batch_size": 1} for n in range(models)},
            partitions=dict.fromkeys(range(partitions), rows),
            valid_partitions=(0,) if validated else (),
            parallel_plans=parallel_plans,
        ),
    )


def several_devices(*counts: int) -> dict[str, int]:
    """Map each worker to its number of devices."""
    return {f"worker-{number}": count for number, count in enumerate(counts)}


def simulate(
    scenario: Scenario, *, models: int, partitions: int, epochs: int = 1, validated: bool = False
) -> Simulation:
    """Return a finished simulation."""
    simulation = Simulation(scenario, request(models, epochs), plan(models, partitions, validated=validated))
    simulation.run()
    return simulation


def own_partition(workers: int) -> dict[str, list[int]]:
    """Each worker holds the partition with its number."""
    return {f"worker-{n}": [n] for n in range(workers)}


def assert_complete(state: ExperimentState, *, epochs: int, partitions: int) -> None:
    """Check that each model that did not fail trained on each partition once per epoch."""
    run = state.runs["fit-1"]
    for model in run.models.values():
        if model.state is ModelState.FAILED:
            continue
        assert model.state is ModelState.FINISHED
        trained = Counter((sub_epoch.epoch, sub_epoch.partition) for sub_epoch in model.sub_epochs)
        assert trained == {(e, p): 1 for e in range(1, epochs + 1) for p in range(partitions)}


def assert_exclusive(simulation: Simulation) -> None:
    """Check that devices and models have one attempt at a time, and that each attempt is committed at most once."""
    devices: dict[tuple[str, int], tuple[int, ...]] = {}
    at_device: dict[tuple[str, int | None], str] = {}
    of_model: dict[str, str] = {}
    committed: Counter[str] = Counter()
    for event in simulation.log:
        if isinstance(event, TaskAssigned):
            devices[event.task, event.attempt] = event.devices
        elif isinstance(event, TaskStarted):
            for slot in slots_of(devices[event.task, event.attempt]):
                assert (event.worker, slot) not in at_device
                at_device[event.worker, slot] = event.task
            if TaskKey.parse(event.task).kind == "train":
                model = TaskKey.parse(event.task).model or ""
                assert model not in of_model
                of_model[model] = event.task
        elif isinstance(event, TaskCommitted | TaskFailed | TaskRevoked):
            for slot in slots_of(devices[event.task, event.attempt]):
                if at_device.get((event.worker, slot)) == event.task:
                    del at_device[event.worker, slot]
            model = TaskKey.parse(event.task).model or ""
            if of_model.get(model) == event.task:
                del of_model[model]
            if isinstance(event, TaskCommitted):
                # A partition may be made several times, but each time by another attempt.
                committed[f"{event.task}/a{event.attempt}" if "/etl/" in event.task else event.task] += 1
    assert set(committed.values()) <= {1}


shapes = st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 3))
device_counts = st.lists(st.sampled_from((1, 1, 2, 3)), min_size=6, max_size=6)


@settings(deadline=None, max_examples=60)
@given(shape=shapes, times=st.randoms(use_true_random=False), validated=st.booleans(), counts=device_counts)
def test_every_model_trains_on_every_partition_once_per_epoch(shape, times, validated, counts) -> None:  # type: ignore[no-untyped-def]
    """Completeness, isolation and exclusive access hold for any grid, workers, devices and times."""
    models, workers, epochs = shape
    scenario = Scenario(
        replicas=own_partition(workers),
        sub_epoch_time=lambda body, worker: times.uniform(0.1, 5.0),
        devices=several_devices(*counts),
    )
    simulation = simulate(scenario, models=models, partitions=workers, epochs=epochs, validated=validated)
    state = fold(EXPERIMENT, simulation.log)
    assert state.runs["fit-1"].state is RunState.FINISHED
    assert_complete(state, epochs=epochs, partitions=workers)
    assert_exclusive(simulation)
    if validated:
        assert all(len(model.validation.metrics) == epochs for model in state.runs["fit-1"].models.values())


def test_a_failing_model_fails_alone() -> None:
    """An error in user code fails its model at the first attempt."""

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        bad = getattr(body, "model", "") == "m01"
        return Failure(kind=FailureKind.USER_ERROR, message="boom") if bad else None

    simulation = simulate(Scenario(replicas=own_partition(2), outcome=outcome), models=3, partitions=2)
    run = fold(EXPERIMENT, simulation.log).runs["fit-1"]
    assert run.state is RunState.FINISHED
    assert {m.id: m.state for m in run.models.values()} == {
        "m00": ModelState.FINISHED,
        "m01": ModelState.FAILED,
        "m02": ModelState.FINISHED,
    }
    assert sum(isinstance(e, TaskFailed) for e in simulation.log) == 1


@pytest.mark.parametrize("validated", [True, False])
def test_a_model_that_lacks_the_metric_fails_alone(*, validated: bool) -> None:
    """The message has the missing and the returned metrics."""

    def metrics(body: TaskBody) -> Mapping[str, float]:
        return {"accuracy": 0.5} if getattr(body, "model", "") == "m01" else {"loss": 1.0}

    scenario = Scenario(replicas=own_partition(2), metrics=metrics)
    run = fold(
        EXPERIMENT, simulate(scenario, models=3, partitions=2, epochs=2, validated=validated).log
    ).runs["fit-1"]
    assert run.state is RunState.FINISHED
    states = {m.id: m.state for m in run.models.values()}
    assert states == {"m00": ModelState.FINISHED, "m01": ModelState.FAILED, "m02": ModelState.FINISHED}
    failure = run.models["m01"].failures.final
    assert failure is not None
    assert "metric 'loss' was not returned" in failure.message
    assert "returned: accuracy" in failure.message


@pytest.mark.parametrize("kind", [FailureKind.NON_FINITE, FailureKind.USER_ERROR, FailureKind.CRASH])
def test_a_model_whose_validation_fails_in_one_epoch_fails_alone(kind: FailureKind) -> None:
    """Causes are a NaN, a wrong type and a dead process; the rank uses earlier epochs."""

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        is_bad = isinstance(body, EvaluateTask) and body.model == "m01" and body.epoch == 2
        return Failure(kind=kind, message="loss became nan in evaluation") if is_bad else None

    scenario = Scenario(replicas=own_partition(2), outcome=outcome)
    run = fold(EXPERIMENT, simulate(scenario, models=3, partitions=2, epochs=3, validated=True).log).runs[
        "fit-1"
    ]
    assert run.state is RunState.FINISHED
    states = {m.id: m.state for m in run.models.values()}
    assert states == {"m00": ModelState.FINISHED, "m01": ModelState.FAILED, "m02": ModelState.FINISHED}
    failure = run.models["m01"].failures.final
    assert failure is not None
    assert "loss became nan" in failure.message
    assert run.best_epoch(run.models["m01"]) == 1


def test_a_failure_cause_of_many_models_is_reported_once() -> None:
    """The first line has the main cause with its traceback; other causes have one line each with their models."""

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure:
        model = getattr(body, "model", "")
        message = "KeyError: 'x'\nand more" if model in ("m03", "m05") else "ValueError: boom"
        frames = 'Traceback (most recent call last):\n  File "spec.py", line 3, in train\n'
        return Failure(kind=FailureKind.USER_ERROR, message=message, traceback=f"{frames}{message}\n")

    simulation = simulate(Scenario(replicas=own_partition(2), outcome=outcome), models=9, partitions=2)
    error = fold(EXPERIMENT, simulation.log).runs["fit-1"].failures.error
    assert error.splitlines() == [
        "all 9 models failed, 7 of them: ValueError: boom",
        "Traceback (most recent call last):",
        '  File "spec.py", line 3, in train',
        "m03, m05: KeyError: 'x'",
    ]


def test_the_failure_of_a_single_model_is_the_runs_error() -> None:
    """The message does not count it."""
    failure = Failure(kind=FailureKind.USER_ERROR, message="ValueError: boom")
    scenario = Scenario(replicas=own_partition(1), outcome=lambda body, attempt, worker: failure)
    run = fold(EXPERIMENT, simulate(scenario, models=1, partitions=1).log).runs["fit-1"]
    assert run.failures.error == "the only model failed: ValueError: boom"


@pytest.mark.parametrize(("crashes", "survives"), [(2, True), (3, False)])
def test_a_crashing_sub_epoch_gets_three_attempts(crashes: int, survives: bool) -> None:
    """A model whose process always dies fails."""

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        if getattr(body, "model", "") == "m00" and getattr(body, "sub_epoch", 0) == 1 and attempt <= crashes:
            return Failure(kind=FailureKind.CRASH, message="killed")
        return None

    simulation = simulate(Scenario(replicas=own_partition(2), outcome=outcome), models=2, partitions=2)
    model = fold(EXPERIMENT, simulation.log).runs["fit-1"].models["m00"]
    assert (model.state is ModelState.FINISHED) == survives


def test_a_corrupt_checkpoint_reopens_the_previous_sub_epoch() -> None:
    """The next sub-epoch reports the damage; a new attempt replaces the file."""
    messages: list[int] = []

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        if getattr(body, "model", "") == "m00" and getattr(body, "sub_epoch", 0) == 2 and not messages:
            messages.append(attempt)
            return Failure(kind=FailureKind.CHECKPOINT, message="checksum")
        return None

    scenario = Scenario(replicas=own_partition(3), outcome=outcome)
    simulation = simulate(scenario, models=2, partitions=3)
    model = fold(EXPERIMENT, simulation.log).runs["fit-1"].models["m00"]
    assert model.state is ModelState.FINISHED
    assert sorted(sub_epoch.attempt for sub_epoch in model.sub_epochs) in ([1, 1, 2], [1, 2, 2])
    assert Counter(sub_epoch.partition for sub_epoch in model.sub_epochs) == {0: 1, 1: 1, 2: 1}


def test_a_full_volume_pauses_the_run_until_there_is_room() -> None:
    """The run shows the reason and continues automatically."""
    messages: list[int] = []

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        if not messages:
            messages.append(attempt)
            return Failure(kind=FailureKind.STORAGE_FULL, message="no room", needs_bytes=1000)
        return None

    simulation = simulate(Scenario(replicas=own_partition(2), outcome=outcome), models=2, partitions=2)
    types = [event.type for event in simulation.log]
    assert types.index("RunPaused") < types.index("RunResumed")
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=1, partitions=2)


def test_a_run_survives_a_controller_crash_at_any_write() -> None:
    """For each write of a small run, a crash there still leaves a complete run."""
    replicas = own_partition(2)
    undisturbed = simulate(Scenario(replicas=replicas), models=3, partitions=2, epochs=2, validated=True)
    assert undisturbed.writes > 10
    for write in range(undisturbed.writes + 1):
        scenario = Scenario(replicas=replicas, crash_before=frozenset({write}))
        simulation = simulate(scenario, models=3, partitions=2, epochs=2, validated=True)
        state = fold(EXPERIMENT, simulation.log)
        assert state.runs["fit-1"].state is RunState.FINISHED, f"crash at write {write}"
        assert_complete(state, epochs=2, partitions=2)
        assert_exclusive(simulation)


def test_the_same_scenario_gives_the_same_log() -> None:
    """The core has no hidden randomness."""
    first = simulate(Scenario(replicas=own_partition(3)), models=4, partitions=3)
    second = simulate(Scenario(replicas=own_partition(3)), models=4, partitions=3)
    assert first.log == second.log
    assert any(isinstance(event, TaskAssigned) for event in first.log)


def test_a_task_that_always_kills_its_worker_fails() -> None:
    log: list[Event] = [
        RunRequested(run="fit-1", request=request(2, 1)),
        WorkerJoined(
            worker="worker-0",
            incarnation="0",
            weight=1,
            kinds=("train",),
            replicas=(Replica(dataset=DATASET, partition=0),),
        ),
        plan(2, 1),
    ]
    key = "fit-1/train/m00/e1/p0"
    for attempt in range(1, MAX_LOSSES + 2):
        named: Any = {"task": key, "attempt": attempt, "worker": "worker-0"}
        log += [
            TaskAssigned(**named),
            TaskStarted(**named),
            TaskRevoked(**named, reason="gone", loss=FailureKind.CRASH),
        ]
    before = fold(EXPERIMENT, log[:-1]).runs["fit-1"].models["m00"]
    after = fold(EXPERIMENT, log).runs["fit-1"].models
    assert before.state is ModelState.ACTIVE
    assert after["m00"].state is ModelState.FAILED
    assert "lost 6 times" in (after["m00"].failures.final.message if after["m00"].failures.final else "")
    assert after["m01"].state is ModelState.ACTIVE
