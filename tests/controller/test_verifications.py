"""Verification under the controller's core: it finds faulty machines and does not disturb training."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import TaskAssigned, TaskCommitted, TaskFailed
from cerebro.contract.tasks.bodies import TaskBody, TrainTask, VerificationTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state import ExperimentState, ModelState, Run, RunState, TaskKey
from cerebro.state.experiment import fold
from cerebro.state.tasks.verification_texts import result_text
from cerebro.state.tasks.verifications import VerificationState
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Scenario, WorkerOutage
from tests.controller.test_core import assert_complete, assert_exclusive, plan, request

GIB = 1 << 30


def everywhere(workers: int, partitions: int = 3) -> dict[str, list[int]]:
    return {f"worker-{n}": [*range(partitions)] for n in range(workers)}


def simulate(
    scenario: Scenario,
    *,
    verify: float = 1.0,
    models: int = 4,
    epochs: int = 2,
    partitions: int = 3,
    seed: int = 0,
) -> Simulation:
    scenario.device_kind = "cpu"
    fit_request = request(models, epochs).model_copy(update={"verify": verify, "seed": seed})
    simulation = Simulation(scenario, fit_request, plan(models, partitions))
    simulation.run(limit=50_000)
    return simulation


def fitted(simulation: Simulation) -> Run:
    return fold(EXPERIMENT, simulation.log).runs["fit-1"]


def reexecutions(simulation: Simulation) -> list[TaskCommitted]:
    return [
        event
        for event in simulation.log
        if isinstance(event, TaskCommitted) and TaskKey.parse(event.task).kind == "verify"
    ]


def wrong_at(*bad: str):  # type: ignore[no-untyped-def]
    return lambda body, attempt, worker: f"wrong-{worker}" if worker in bad else "right"


def test_a_share_of_the_sub_epochs_is_re_executed_elsewhere_and_is_equal() -> None:
    """Another worker re-executes each drawn sub-epoch once, from its original input checkpoint."""
    given: list[VerificationTask] = []

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        if isinstance(body, VerificationTask):
            given.append(body)
        return None

    simulation = simulate(Scenario(replicas=everywhere(3), outcome=outcome))
    run = fitted(simulation)
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=2, partitions=3)
    assert_exclusive(simulation)
    done = reexecutions(simulation)
    assert len({event.task for event in done}) == len(done) == len(run.verifications.known) >= 4
    for verification in run.verifications.known.values():
        assert verification.state is VerificationState.EQUAL
        assert verification.reexecutions[0].worker != verification.completed.worker
        assert result_text(verification) == f"equal to the bit on {verification.reexecutions[0].worker}"
    for body in given:
        sub_epochs = run.models[body.model].sub_epochs
        assert body.expected == sub_epochs[body.sub_epoch].checkpoint.ref()
        assert body.checkpoint == (
            sub_epochs[body.sub_epoch - 1].checkpoint.ref() if body.sub_epoch else None
        )
        assert (body.epoch, body.partition) == (
            sub_epochs[body.sub_epoch].epoch,
            sub_epochs[body.sub_epoch].partition,
        )
    assert simulation.store.workers_health().workers == {}


def test_a_worker_that_computes_wrongly_is_found_and_quarantined() -> None:
    """Two other workers agree, so one sub-epoch is enough, and no model fails."""
    simulation = simulate(Scenario(replicas=everywhere(3), state_of=wrong_at("worker-1")), models=6)
    run, health = fitted(simulation), simulation.store.workers_health()
    assert health.quarantined() == {"worker-1"}
    found = [verification for verification in run.verifications.known.values() if verification.wrong]
    assert {verification.wrong for verification in found} == {"worker-1"}
    assert all("worker-1 computed wrongly" in result_text(verification) for verification in found)
    assert {model.state for model in run.models.values()} == {ModelState.FINISHED}
    mark = health.of("worker-1").quarantine
    assert mark is not None
    assert mark.reason.startswith("a verification found that it computes wrongly: fit-1/train/")
    incidents = [(each.worker, each.what) for each in health.incidents]
    assert ("worker-1", "quarantined") in incidents
    assert any(
        each.action.startswith("checked because its machine may have failed") for each in health.incidents
    )


def test_of_two_workers_none_is_blamed_but_both_check_their_machines() -> None:
    """Without a third result, only the hardware check decides."""
    scenario = Scenario(
        replicas=everywhere(2),
        state_of=wrong_at("worker-1"),
        check=lambda name: "arithmetic: 3 rows came out wrong" if name == "worker-1" else "",
    )
    simulation = simulate(scenario)
    run, health = fitted(simulation), simulation.store.workers_health()
    differing = [
        verification
        for verification in run.verifications.known.values()
        if verification.state is VerificationState.DIFFERS
    ]
    assert differing
    assert all("no third worker has decided" in result_text(verification) for verification in differing)
    checked = {each.worker for each in health.incidents if each.what.startswith("check ")}
    assert checked == {"worker-0", "worker-1"}
    assert health.quarantined() == {"worker-1"}  # by its check
    assert run.state is RunState.FINISHED


def test_code_that_is_not_reproducible_blames_no_worker_and_ends_verification() -> None:
    """Each execution gives another result."""
    count = iter(range(10_000))
    simulation = simulate(
        Scenario(replicas=everywhere(4), state_of=lambda body, attempt, worker: str(next(count))), models=8
    )
    run = fitted(simulation)
    assert simulation.store.workers_health().quarantined() == set()
    judged = [
        verification
        for verification in run.verifications.known.values()
        if verification.state is VerificationState.JUDGED
    ]
    assert judged
    assert all("the code does not repeat itself" in result_text(verification) for verification in judged)
    assert run.verifications.is_hopeless
    assert len(reexecutions(simulation)) <= 12
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=2, partitions=3)


def test_a_sub_epoch_without_another_replica_holder_is_not_verified() -> None:
    """Each partition has one holder; the report says so and the run finishes normally."""
    simulation = simulate(Scenario(replicas={"worker-0": [0], "worker-1": [1]}), partitions=2)
    run = fitted(simulation)
    assert reexecutions(simulation) == []
    assert run.verifications.unverified == {"no other worker held the partition": 4 * 2 * 2}


def test_verifications_stay_within_their_share_and_delay_no_sub_epoch_for_long() -> None:
    """Verification uses a tenth of the sub-epochs; the makespan grows by less than that plus one sub-epoch."""
    without = simulate(Scenario(replicas=everywhere(3, 6)), verify=0.0, models=8, epochs=3, partitions=6)
    with_verifications = simulate(
        Scenario(replicas=everywhere(3, 6)), verify=0.1, models=8, epochs=3, partitions=6
    )
    sub_epochs = 8 * 3 * 6
    done = reexecutions(with_verifications)
    assert 0 < len(done) <= 0.2 * sub_epochs
    assert with_verifications.now <= without.now + len(done) / 3 + 3.0
    last_sub_epoch = max(
        e.time for e in with_verifications.log if isinstance(e, TaskCommitted) and "/train/" in e.task
    )
    # Found during the run, not only after training.
    assert sum(event.time < last_sub_epoch for event in done) >= len(done) / 2


def test_a_failed_reexecution_fails_neither_model_nor_run() -> None:
    """For any failure, the model and run continue, and the verification has a reason."""
    for kind in (FailureKind.USER_ERROR, FailureKind.CHECKPOINT, FailureKind.DATA, FailureKind.OUT_OF_MEMORY):

        def fails(body: TaskBody, attempt: int, worker: str, kind: FailureKind = kind) -> Failure | None:
            return Failure(kind=kind, message="injected") if isinstance(body, VerificationTask) else None

        simulation = simulate(Scenario(replicas=everywhere(3), outcome=fails))
        run = fitted(simulation)
        assert run.state is RunState.FINISHED
        assert {model.state for model in run.models.values()} == {ModelState.FINISHED}
        assert {result_text(verification) for verification in run.verifications.known.values()} == {
            "could not be done again: injected"
        }


@pytest.mark.parametrize("is_measured", [True, False])
def test_reexecutions_avoid_workers_known_to_have_too_little_memory(is_measured: bool) -> None:
    """Two of four workers are too small for m00. With a known need or an earlier failure, no re-execution
    runs out of memory; otherwise at most one does."""
    memory = {"worker-0": 4.0, "worker-1": 16.0, "worker-2": 4.0, "worker-3": 16.0}

    def needs(body: TaskBody) -> float:
        return 9.0 if getattr(body, "model", "") == "m00" else 1.0

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        limit = memory[worker]
        if not isinstance(body, TrainTask | VerificationTask) or needs(body) <= limit:
            return None
        return Failure(
            kind=FailureKind.OUT_OF_MEMORY, message="killed", memory_kind="host", limit_bytes=int(limit * GIB)
        )

    simulation = simulate(
        Scenario(
            replicas=everywhere(4, 2),
            outcome=outcome,
            memory={name: int(each * GIB) for name, each in memory.items()},
            peak_bytes=lambda body: int(needs(body) * GIB) if is_measured else 0,
        ),
        partitions=2,
        epochs=3,
    )
    killed = [e.task for e in simulation.log if isinstance(e, TaskFailed)]
    redone = [
        TaskKey.parse(task)._replace(kind="train", reexecution=None) for task in killed if "/verify/" in task
    ]
    assert len({*redone}) == len(redone)
    assert not is_measured or not redone
    assert not {str(key) for key in redone} & {*killed}
    assert fitted(simulation).state is RunState.FINISHED
    assert {e.worker for e in reexecutions(simulation) if "/m00/" in e.task} <= {"worker-1", "worker-3"}
    assert any("/m00/" in e.task for e in reexecutions(simulation)) or not is_measured


@pytest.mark.slow
def test_a_crash_at_any_write_does_not_change_the_verified_sub_epochs() -> None:
    """Each controller life verifies the same sub-epochs, and each re-execution is committed once."""
    expected = fitted(simulate(Scenario(replicas=everywhere(3)), verify=0.4)).verifications
    for number in range(0, 60, 3):
        scenario = Scenario(replicas=everywhere(3), crash_before=frozenset({number, number + 1}))
        simulation = simulate(scenario, verify=0.4)
        run = fitted(simulation)
        done = [event.task for event in reexecutions(simulation)]
        assert len(set(done)) == len(done)
        assert run.state is RunState.FINISHED
        drawn = {*run.verifications.known}
        assert all(name in drawn for name in expected.known) or run.verifications.unverified


def test_checkpoints_that_a_verification_reads_stay_until_it_finishes() -> None:
    """Each assigned sub-epoch has the instruction to keep them."""
    kept: list[tuple[int, frozenset[str]]] = []
    simulation: Simulation

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        if isinstance(body, TrainTask):
            kept.append((body.sub_epoch, frozenset(body.keep)))
            verifications = simulation.core.state.runs["fit-1"].verifications
            assert verifications.needed(body.model) <= {*body.keep}
        return None

    scenario = Scenario(replicas=everywhere(2, 4), outcome=outcome, device_kind="cpu")
    fit_request = request(4, 2).model_copy(update={"verify": 1.0})
    simulation = Simulation(scenario, fit_request, plan(4, 4))
    simulation.run(limit=50_000)
    assert any(len(names) > 3 for _, names in kept)


@settings(max_examples=30, deadline=None)
@given(
    outages=st.lists(st.tuples(st.integers(0, 3), st.floats(0.5, 30), st.floats(0.5, 30)), max_size=4),
    bad=st.sets(st.sampled_from(["worker-0", "worker-1", "worker-2", "worker-3"]), max_size=1),
    share=st.sampled_from([0.1, 0.5, 1.0]),
    crashes=st.frozensets(st.integers(0, 80), max_size=4),
)
def test_verifications_never_change_training(outages, bad, share, crashes) -> None:  # type: ignore[no-untyped-def]
    """Each model trains on each partition once per epoch, re-executions add no checkpoint, and a correct worker
    is never blamed."""
    scenario = Scenario(
        replicas=everywhere(4),
        state_of=wrong_at(*bad),
        outages=[WorkerOutage(worker=f"worker-{w}", start=s, length=n) for w, s, n in outages],
        crash_before=crashes,
    )
    simulation = simulate(scenario, verify=share)
    state: ExperimentState = fold(EXPERIMENT, simulation.log)
    assert_complete(state, epochs=2, partitions=3)
    assert {verification.wrong for verification in state.runs["fit-1"].verifications.known.values()} <= {
        "",
        *bad,
    }
    assert simulation.store.workers_health().quarantined() <= bad
    for event in reexecutions(simulation):
        assert event.result.checkpoint is None
    open_now = [e for e in simulation.log if isinstance(e, TaskAssigned | TaskFailed)]
    assert open_now
