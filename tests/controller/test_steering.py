"""User commands on an active run, at any time and with controller crashes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    ClientEvent,
    ModelResumed,
    ModelRetried,
    ModelStopRequested,
    PreemptionRequested,
    RunFinished,
    SubEpochSaved,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.rest import api
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state import ModelState, RunState
from cerebro.state.experiment import fold
from controller.decisions.core import Core
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Preemption, Scenario, WorkerOutage
from tests.controller.disturbed import disturbed
from tests.controller.test_core import (
    assert_complete,
    assert_exclusive,
    device_counts,
    own_partition,
    plan,
    request,
)
from tests.controller.test_fit_dispatch import told_step_by_step


class Steered(Simulation):
    """A simulated fit with user commands (seconds, event)."""

    def __init__(
        self,
        scenario: Scenario,
        commands: list[tuple[float, ClientEvent]],
        *,
        models: int = 3,
        epochs: int = 2,
    ) -> None:
        self._has_ended = False
        super().__init__(scenario, request(models, epochs), plan(models, len(scenario.replicas), rows=10))
        for time, event in commands:
            self.at(time, event)

    def at(self, time: float, event: ClientEvent) -> None:
        """Give the command at this time."""
        self._at(time, lambda: self._wish(event) if not self._has_ended else None)

    def go_on(self, *events: ClientEvent) -> None:
        """Give commands after the run has ended; drop later scheduled ones."""
        self._has_ended = True
        for event in events:
            self._wish(event)
        self._fold(self.core, self.store.events(EXPERIMENT, self.core.state.seq))
        self.run(is_begun=True)

    def _wish(self, event: ClientEvent) -> None:
        self.store.append(EXPERIMENT, event)


def stop(model: str) -> ClientEvent:
    return ModelStopRequested(run="fit-1", model=model, by="ann")


def resume(model: str) -> ClientEvent:
    return ModelResumed(run="fit-1", model=model, by="ann")


def retry(model: str) -> ClientEvent:
    return ModelRetried(run="fit-1", model=model, by="ann")


def states(simulation: Simulation) -> dict[str, str]:
    """Map models to their states, by a new fold of the log."""
    return {m.id: m.state.value for m in fold(EXPERIMENT, simulation.log).runs["fit-1"].models.values()}


def test_a_stopped_model_frees_its_worker_at_once() -> None:
    """The worker releases its sub-epoch at the next batch and starts another model at once."""
    simulation = Steered(Scenario(replicas=own_partition(2), sub_epoch_time=lambda b, w: 10.0), [])
    simulation.at(1.0, stop("m00"))
    simulation.run()
    log = simulation.log
    (at,) = [n for n, event in enumerate(log) if event.type == "ModelStopRequested"]
    request = next(event for event in log[at:] if isinstance(event, PreemptionRequested))
    released = next(event for event in log[at:] if isinstance(event, TaskFailed))
    started = next(
        event for event in log[at:] if isinstance(event, TaskStarted) and event.worker == released.worker
    )
    assert "m00" in request.task
    assert request.task == released.task
    assert released.failure.kind is FailureKind.PREEMPTED
    assert request.time == released.time == started.time == 1.0
    assert states(simulation) == {"m00": "stopped", "m01": "finished", "m02": "finished"}
    assert fold(EXPERIMENT, log).runs["fit-1"].state is RunState.FINISHED


def test_an_unresponsive_worker_has_half_a_minute_to_release_its_task() -> None:
    """Then the attempt is revoked, and the worker's restarted process begins another model."""
    replicas, deaf = own_partition(2), frozenset({"worker-0", "worker-1"})
    simulation = Steered(Scenario(replicas=replicas, sub_epoch_time=lambda b, w: 100.0, deaf=deaf), [])
    simulation.at(1.0, stop("m00"))
    simulation.run()
    (revoked,) = [event for event in simulation.log if isinstance(event, TaskRevoked)]
    assert "m00" in revoked.task
    assert revoked.reason == "its model was stopped"
    assert 31.0 <= revoked.time <= 33.0
    assert len([event for event in simulation.log if isinstance(event, PreemptionRequested)]) == 1


def test_a_stopped_model_resumes_within_its_sub_epoch() -> None:
    """Batches before the stop are not repeated, and the whole sub-epoch is committed."""
    scenario = Scenario(replicas=own_partition(2), sub_epoch_time=lambda b, w: 100.0, saves=True)
    simulation = Steered(scenario, [(60.0, stop("m00")), (61.0, resume("m00"))], epochs=1)
    simulation.run()
    log = simulation.log
    (saved,) = [event for event in log if isinstance(event, SubEpochSaved)]
    committed = next(event for event in log if isinstance(event, TaskCommitted) and event.task == saved.task)
    assert saved.savepoint.rows == committed.result.resumed_rows == 0.6 * committed.result.rows
    started = [event.time for event in log if isinstance(event, TaskStarted) and event.task == saved.task]
    assert committed.time - started[-1] == pytest.approx(40.0)
    assert_complete(fold(EXPERIMENT, log), epochs=1, partitions=2)
    run = fold(EXPERIMENT, log).runs["fit-1"]
    assert sum(sub_epoch.rows for sub_epoch in run.models["m00"].sub_epochs) == run.models["m00"].effort.rows
    assert run.models["m00"].effort.repeated_attempts == 0


def test_a_crashed_sub_epoch_resumes_before_its_model_trains_elsewhere() -> None:
    """Its worker is busy with another model; the sub-epoch is next there."""

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        is_hit = isinstance(body, TrainTask) and (body.model, body.sub_epoch, attempt) == ("m00", 0, 2)
        return Failure(kind=FailureKind.CRASH, message="killed") if is_hit else None

    scenario = Scenario(
        replicas=own_partition(2), sub_epoch_time=lambda b, w: 100.0, outcome=outcome, saves=True
    )
    simulation = Steered(scenario, [(60.0, stop("m00")), (60.5, resume("m00"))], epochs=1)
    simulation.run()
    started = [e.task for e in simulation.log if isinstance(e, TaskStarted) and "/m00/" in e.task]
    assert len(started) == 4
    assert len(set(started[:3])) == 1
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=1, partitions=2)


@pytest.mark.parametrize(("away_s", "resumed"), [(50.0, 6), (70.0, 0)])
def test_a_model_waits_for_its_savepoints_holder_as_long_as_it_had_trained(
    away_s: float, resumed: int
) -> None:
    """Its only holder stops after a minute of the sub-epoch. If it returns within a minute, the model
    continues; otherwise it trains on the other partition and restarts this one."""
    scenario = Scenario(
        replicas=own_partition(2),
        sub_epoch_time=lambda body, worker: 100.0 if isinstance(body, TrainTask) else 1.0,
        outages=[Preemption(worker="worker-0", start=61.0, length=away_s)],
        saves=True,
        has_pods=True,
    )
    simulation = Steered(scenario, [], models=1, epochs=1)
    simulation.run()
    (saved,) = [event for event in simulation.log if isinstance(event, SubEpochSaved)]
    commits = {
        e.task: e.result for e in simulation.log if isinstance(e, TaskCommitted) and "/train/m" in e.task
    }
    assert commits[saved.task].resumed_rows == resumed
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=1, partitions=2)


def test_a_retried_model_continues_with_the_failed_sub_epoch() -> None:
    """Completed sub-epochs stay, and attempts count from zero."""
    is_broken = [True]

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        is_hit = is_broken and isinstance(body, TrainTask) and body.model == "m01" and body.sub_epoch == 2
        return Failure(kind=FailureKind.USER_ERROR, message="boom") if is_hit else None

    simulation = Steered(Scenario(replicas=own_partition(2), outcome=outcome), [])
    simulation.run()
    assert states(simulation)["m01"] == "failed"
    is_broken.clear()
    simulation.go_on(retry("m01"))
    state = fold(EXPERIMENT, simulation.log)
    assert_complete(state, epochs=2, partitions=2)
    assert set(states(simulation).values()) == {"finished"}
    assert_exclusive(simulation)


COMMANDS: list[Callable[[str], ClientEvent]] = [stop, resume, retry]
moments = st.lists(
    st.tuples(st.floats(0.1, 25.0), st.sampled_from(COMMANDS), st.integers(0, 3)), min_size=1, max_size=8
)


@settings(deadline=None, max_examples=40)
@given(
    commands=moments,
    shape=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3)),
    outages=st.lists(st.tuples(st.integers(0, 2), st.floats(0.1, 20), st.floats(0.1, 30)), max_size=2),
    faults=st.dictionaries(
        st.tuples(st.integers(0, 3), st.integers(0, 6)),
        st.sampled_from(
            [FailureKind.CRASH, FailureKind.CHECKPOINT, FailureKind.OUT_OF_MEMORY, FailureKind.USER_ERROR]
        ),
        max_size=3,
    ),
    times=st.randoms(use_true_random=False),
    devices=device_counts,
)
def test_invariants_hold_under_any_commands_at_any_time(  # type: ignore[no-untyped-def]
    commands, shape, outages, faults, times, devices
) -> None:
    """Models train on each partition once per epoch on one worker at a time, the dispatch state is correct, the
    queue empties, and stopped or failed models can finish later."""
    models, workers, epochs = shape
    scenario = disturbed(workers, outages=outages, faults=faults, times=times, devices=devices)
    scenario.saves = True
    timed_commands = [(time, command(f"m{model:02}")) for time, command, model in commands]
    simulation = Steered(scenario, timed_commands, models=models, epochs=epochs)
    simulation.run()
    assert told_step_by_step(simulation)
    run = fold(EXPERIMENT, simulation.log).runs["fit-1"]
    for model in list(run.models.values()):
        if model.state is ModelState.STOPPED:
            simulation.go_on(resume(model.id))
        elif model.state is ModelState.FAILED:
            simulation.go_on(retry(model.id))
    assert told_step_by_step(simulation)
    if FailureKind.CHECKPOINT not in faults.values():  # otherwise a sub-epoch may be committed twice
        assert_exclusive(simulation)
    state = fold(EXPERIMENT, simulation.log)
    assert_complete(state, epochs=epochs, partitions=workers)
    assert simulation.store.queue() == ()


def test_a_steered_run_survives_a_crash_around_any_write() -> None:
    """Crash before and after each write while models stop, resume and retry."""

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        is_hit = isinstance(body, TrainTask) and body.model == "m02" and body.sub_epoch == 1 and attempt == 1
        return Failure(kind=FailureKind.USER_ERROR, message="boom") if is_hit else None

    commands = [(0.5, stop("m00")), (2.5, resume("m00")), (3.2, stop("m01")), (3.4, retry("m02"))]

    def steered(crash_before: frozenset[int]) -> Simulation:
        scenario = Scenario(replicas=own_partition(2), outcome=outcome, crash_before=crash_before)
        simulation = Steered(scenario, commands)
        simulation.run()
        simulation.go_on(resume("m01"))
        return simulation

    undisturbed = steered(frozenset())
    assert undisturbed.writes > 15
    for write in range(undisturbed.writes + 1):
        simulation = steered(frozenset({write}))
        state = fold(EXPERIMENT, simulation.log)
        assert state.runs["fit-1"].state is RunState.FINISHED, f"crash at write {write}"
        assert_complete(state, epochs=2, partitions=2)
        assert_exclusive(simulation)


def test_a_run_with_a_just_resumed_model_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command arrives between the decision to finish the run and its write, which is then refused."""
    simulation = Steered(Scenario(replicas=own_partition(2)), [(0.5, stop("m01"))])
    decide = simulation.store.decide
    resumed: list[int] = []

    def just_before(experiment: str, request: api.DecideRequest) -> api.DecideAnswer:
        is_end = any(isinstance(s, api.Note) and isinstance(s.event, RunFinished) for s in request.steps)
        if is_end and not resumed:
            resumed.append(simulation.store.append(EXPERIMENT, resume("m01")))
        return decide(experiment, request)

    monkeypatch.setattr(simulation.store, "decide", just_before)
    simulation.run()
    assert resumed
    assert set(states(simulation).values()) == {"finished"}
    assert [event.type for event in simulation.log].count("RunFinished") == 1


@settings(deadline=None, max_examples=20)
@example(
    outages=[
        (1, 0.6845030033802318, 2.6007754552861257),
        (3, 13.013158103983441, 12.468915532295355),
        (0, 4.900692136586557, 3.0100939123566204),
    ]
)
@given(outages=st.lists(st.tuples(st.integers(0, 3), st.floats(0.1, 20), st.floats(0.1, 60)), max_size=3))
def test_an_idle_worker_without_the_savepoint_revokes_no_queued_sub_epoch(
    outages: list[tuple[int, float, float]],
) -> None:
    """The model must wait for the holder of its savepoint, so an idle worker without it must not claim it."""
    scenario = Scenario(
        replicas=own_partition(4),
        sub_epoch_time=lambda body, worker: 3.0,
        outages=[
            WorkerOutage(worker=f"worker-{w}", start=start, length=length) for w, start, length in outages
        ],
    )
    simulation = Simulation(scenario, request(5, 1), plan(5, 4))
    perform, left = simulation._perform, [400]

    def counted(core: Core, steps: list[object]) -> bool:
        left[0] -= 1
        assert left[0], "the controller writes and writes"
        return perform(core, steps)  # type: ignore[arg-type]

    simulation._perform = counted  # type: ignore[method-assign,assignment]
    simulation.run()
