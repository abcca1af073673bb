"""Broken machines under the controller's core: checked, quarantined within limits, without lost models."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import TaskAssigned, TaskCommitted, TaskFailed
from cerebro.contract.records import WorkerStatus
from cerebro.contract.stored.health import (
    CONTROLLER,
    CheckResult,
    HealthAnswer,
    Probe,
    Quarantine,
    QuarantineWorkerRequest,
    ReleaseRequest,
    WorkerCheck,
    WorkerHealth,
)
from cerebro.contract.tasks.bodies import TaskBody, TrainTask
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.errors import ConflictError
from cerebro.state import ModelState, RunState
from cerebro.state.experiment import fold
from cerebro.state.tasks.task import MAX_DEVICE_FAILURES
from cerebro.state.worker_quarantine import machine_exclusions
from cerebro.state.workers import Ended
from controller.exclusions.health import Checked, Quarantined, Released, Spared, act
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Outcome, Scenario, WorkerOutage
from tests.controller.test_core import assert_complete, assert_exclusive, own_partition, plan, request
from tests.kvs_api.bench import worker

ECC = Failure(kind=FailureKind.DEVICE, message="CUDA error: uncorrectable ECC error encountered")
ILLEGAL = Failure(
    kind=FailureKind.USER_ERROR, message="CUDA error: an illegal memory access", may_be_device=True
)
PLAIN = Failure(kind=FailureKind.USER_ERROR, message="KeyError: 'label'")
KILLED = Failure(kind=FailureKind.CRASH, message="the process ended by signal SIGSEGV")


def at(bad: str, failure: Failure = ECC) -> Outcome:
    """Fail each sub-epoch on one worker."""
    return lambda body, attempt, name: failure if isinstance(body, TrainTask) and name == bad else None


def simulate(scenario: Scenario, *, models: int = 6, epochs: int = 2, partitions: int = 0) -> Simulation:
    scenario.has_pods = True
    simulation = Simulation(
        scenario, request(models, epochs), plan(models, partitions or len(scenario.replicas))
    )
    simulation.run()
    return simulation


def failures(simulation: Simulation) -> list[TaskFailed]:
    return [event for event in simulation.log if isinstance(event, TaskFailed)]


# --- Broken machine ---


def test_one_bad_card_ends_no_grid() -> None:
    """After two failures its partition is rebuilt elsewhere, and all models finish."""
    simulation = simulate(Scenario(replicas=own_partition(3), outcome=at("worker-1")), models=16)
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=2, partitions=3)
    assert len(failures(simulation)) <= 2
    known = simulation.store.workers_health()
    assert known.quarantined() == {"worker-1"}
    commits = [e for e in simulation.log if isinstance(e, TaskCommitted) and e.task == "fit-1/etl/train/p1"]
    assert commits
    assert "worker-1-etl" not in {event.worker for event in commits}
    assert [each.what for each in known.incidents] == ["check passed", "quarantined"]


def test_a_worker_gets_no_tasks_during_its_check() -> None:
    """This lasts from the request of the check until its result."""
    failed: list[float] = []

    def once(body: TaskBody, attempt: int, name: str) -> Failure | None:
        if isinstance(body, TrainTask) and name == "worker-1" and not failed:
            failed.append(1.0)
            return ECC
        return None

    simulation = simulate(Scenario(replicas=own_partition(3), outcome=once))
    (end,) = (event.time for event in failures(simulation))
    check = simulation.store.workers_health().of("worker-1").check
    assert check is not None
    assert check.ended is not None
    assert check.requested >= end
    given_meanwhile = [
        event
        for event in simulation.log
        if isinstance(event, TaskAssigned)
        and event.worker == "worker-1"
        and check.requested < event.time < check.ended
    ]
    assert given_meanwhile == []
    assert simulation.store.workers_health().quarantined() == set()


def test_a_task_moves_to_another_worker_after_a_hardware_failure() -> None:
    """If another worker holds the partition, the task moves there without a charged attempt."""
    tried: list[str] = []

    def once(body: TaskBody, attempt: int, name: str) -> Failure | None:
        if getattr(body, "model", "") == "m01" and getattr(body, "sub_epoch", -1) == 0:
            tried.append(name)
            return ECC if len(tried) == 1 else None
        return None

    held = {"worker-0": [0, 1], "worker-1": [0, 1]}
    simulation = Simulation(Scenario(replicas=held, outcome=once), request(4, 2), plan(4, 2))
    simulation.run(limit=20_000)
    assert len(set(tried[:2])) == 2
    state = fold(EXPERIMENT, simulation.log)
    assert_complete(state, epochs=2, partitions=2)
    (task,) = (t for t in state.runs["fit-1"].tasks.by_key.values() if t.device_failures)
    assert (task.failures, task.device_failures) == (0, 1)


def test_failures_on_all_machines_blame_no_single_worker() -> None:
    """Tasks fail finally, half of the workers at most are quarantined, and the report explains why."""
    everywhere: Outcome = lambda body, attempt, name: ECC if isinstance(body, TrainTask) else None  # noqa: E731
    simulation = simulate(Scenario(replicas=own_partition(4), outcome=everywhere), models=3)
    run = fold(EXPERIMENT, simulation.log).runs["fit-1"]
    assert run.state is RunState.FAILED
    assert "possibly no single worker is the cause" in run.failures.error
    assert all(task.device_failures <= MAX_DEVICE_FAILURES for task in run.tasks.by_key.values())
    known = simulation.store.workers_health()
    assert len(known.quarantined()) <= 2
    assert "not quarantined" in {each.what for each in known.incidents}


def test_models_failed_by_a_broken_machine_are_retried() -> None:
    """A later check shows that the machine was broken, so failures of any kind there are retried."""
    scenario = Scenario(
        replicas=own_partition(3),
        outcome=at("worker-1", KILLED),
        check=lambda name: "memory: 1 word" if name == "worker-1" else "",
    )
    simulation = simulate(scenario, models=4)
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=2, partitions=3)
    assert simulation.store.workers_health().quarantined() == {"worker-1"}


# --- Error in user code ---


@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_in_all_models_costs_one_attempt_and_no_quarantine(workers: int) -> None:
    """A broken device can raise the same error, so one more attempt and a check follow before the report."""
    ends = []
    for failure in (PLAIN, ILLEGAL):
        mistake: Outcome = lambda body, attempt, name, failure=failure: (  # type: ignore[misc]  # noqa: E731
            failure if isinstance(body, TrainTask) else None
        )
        simulation = simulate(Scenario(replicas=own_partition(workers), outcome=mistake))
        run = fold(EXPERIMENT, simulation.log).runs["fit-1"]
        assert run.state is RunState.FAILED
        assert failure.message in run.failures.error
        assert simulation.store.workers_health().quarantined() == set()
        ends.append((len(failures(simulation)), run.clock.ended))
    (plain, plain_s), (alike, alike_s) = ends
    assert alike - plain <= 1
    assert alike_s - plain_s <= 3.0


def test_success_on_another_worker_proves_a_hardware_failure() -> None:
    """The next such failure moves too; after two of them the worker is quarantined."""
    held = {"worker-0": [0, 1], "worker-1": [0, 1], "worker-2": [0, 1]}
    scenario = Scenario(replicas=held, outcome=at("worker-1", ILLEGAL))
    simulation = Simulation(scenario, request(8, 2), plan(8, 2))
    simulation.run(limit=20_000)
    run = fold(EXPERIMENT, simulation.log).runs["fit-1"]
    assert {model.state for model in run.models.values()} == {ModelState.FINISHED}
    assert simulation.store.workers_health().quarantined() == {"worker-1"}


# --- Manual quarantine ---


def test_a_user_quarantines_and_releases_a_worker() -> None:
    """It releases its tasks and its partition is rebuilt elsewhere; after release it gets tasks again."""
    scenario = Scenario(replicas=own_partition(3), sub_epoch_time=lambda body, name: 2.0, has_pods=True)
    simulation = Simulation(scenario, request(6, 4), plan(6, 3))
    store = simulation.store
    mine = QuarantineWorkerRequest(reason="its fan is loud", by="ada")
    simulation._at(5.0, lambda: store.quarantine_worker("worker-1", mine))
    simulation._at(40.0, lambda: store.release_worker("worker-1", ReleaseRequest(by="ada")))
    simulation.run(limit=20_000)
    assert_complete(fold(EXPERIMENT, simulation.log), epochs=4, partitions=3)
    given = [e.time for e in simulation.log if isinstance(e, TaskAssigned) and e.worker == "worker-1"]
    assert not [time for time in given if 5.0 < time < 40.0]
    assert [time for time in given if time < 5.0]
    assert [time for time in given if time >= 40.0]
    assert failures(simulation) == [] or {f.failure.kind for f in failures(simulation)} == {
        FailureKind.PREEMPTED
    }


# --- Random faults ---


@settings(deadline=None, max_examples=60)
@given(
    workers=st.integers(2, 5),
    models=st.integers(1, 6),
    has_replicas=st.booleans(),
    bad=st.dictionaries(st.integers(0, 4), st.sampled_from((ECC, ILLEGAL, KILLED)), max_size=2),
    share=st.sampled_from((0.3, 1.0)),
    failing_checks=st.sets(st.integers(0, 4), max_size=2),
    outages=st.lists(
        st.tuples(st.integers(0, 4), st.floats(0.1, 20), st.floats(0.1, 60)),
        max_size=1,
    ),
    people=st.lists(st.tuples(st.floats(0.5, 30), st.integers(0, 4), st.booleans()), max_size=3),
    crash=st.sets(st.integers(0, 60), max_size=2),
    times=st.randoms(use_true_random=False),
)
def test_quarantine_never_loses_a_partition(  # type: ignore[no-untyped-def]
    workers, models, has_replicas, bad, share, failing_checks, outages, people, crash, times
) -> None:
    """For any failures, quarantines, releases and losses, the run finishes, at most half of the workers are
    quarantined, and surviving models are complete."""

    def outcome(body: TaskBody, attempt: int, name: str) -> Failure | None:
        failure = bad.get(int(name.removesuffix("-etl")[7:])) if isinstance(body, TrainTask) else None
        return failure if failure is not None and times.random() < share else None

    scenario = Scenario(
        # Without pods, partitions cannot be rebuilt, so each has two holders.
        replicas={f"worker-{n}": [n, (n + 1) % workers] for n in range(workers)}
        if has_replicas
        else own_partition(workers),
        has_pods=not has_replicas,
        sub_epoch_time=lambda body, name: times.uniform(0.5, 4.0),
        outcome=outcome,
        check=lambda name: "memory: 1 word" if int(name[7:]) in failing_checks else "",
        outages=[
            WorkerOutage(worker=f"worker-{number}", start=start, length=length)
            for number, start, length in outages
            if number < workers
        ],
        crash_before=frozenset(crash),
    )
    simulation = Simulation(scenario, request(models, 2), plan(models, workers))

    def person(number: int, takes: bool) -> None:
        name, store = f"worker-{number % workers}", simulation.store
        with suppress(ConflictError):  # it is the last worker, or is not quarantined
            if takes:
                store.quarantine_worker(name, QuarantineWorkerRequest(reason="mine", by="ada"))
            else:
                store.release_worker(name, ReleaseRequest(by="ada"))

    for time, number, takes in people:
        simulation._at(time, partial(person, number, takes))
    simulation.run(limit=20_000)
    state = fold(EXPERIMENT, simulation.log)
    run = state.runs["fit-1"]
    assert not run.is_open
    assert_exclusive(simulation)
    for model in run.models.values():
        assert model.state in (ModelState.FINISHED, ModelState.FAILED)
        if model.state is ModelState.FINISHED:
            sub_epochs = sorted((sub_epoch.epoch, sub_epoch.partition) for sub_epoch in model.sub_epochs)
            assert sub_epochs == [(epoch, p) for epoch in (1, 2) for p in range(workers)]
    assert len(simulation.store.workers_health().quarantined()) <= workers // 2
    if not bad:
        assert_complete(state, epochs=2, partitions=workers)


# --- Quarantine rule ---


def status(name: str, *, kinds: tuple[str, ...] = ("etl", "train"), silent_s: float = 0.0) -> WorkerStatus:
    record = worker("a", name).model_copy(update={"kinds": kinds})
    return WorkerStatus(record=record, silent_s=silent_s)


def ended(task: str, failure: Failure | None = None, *, at_s: float = 100.0) -> Ended:
    is_device = failure is not None and failure.kind is FailureKind.DEVICE
    return Ended(at_s, task, task.rsplit("/", maxsplit=1)[-1], failure, is_device)


FOUR = [status(f"worker-{number}") for number in range(4)]


def with_gpus(name: str, incarnation: str = "a") -> WorkerStatus:
    record = worker(incarnation, name).model_copy(
        update={"kinds": ("etl", "train"), "gpus": ("NVIDIA A100",)}
    )
    return WorkerStatus(record=record, silent_s=0.0)


def test_workers_with_gpus_check_them_once_for_each_process() -> None:
    """A new process is checked again, and an unanswered check is not repeated. Workers without GPUs have no check."""
    several = [with_gpus("worker-0", "a"), status("worker-2")]

    def new_checks(known: HealthAnswer, now: float, statuses: list[WorkerStatus] = several) -> list[Checked]:
        return [each for each in act(statuses, known, {}, now) if isinstance(each, Checked)]

    (first,) = new_checks(HealthAnswer(), 100.0)
    assert (first.worker, first.reason) == ("worker-0", "its process is new")

    waiting = WorkerCheck(requested=100.0, reason=first.reason, by=CONTROLLER)
    unanswered = HealthAnswer(workers={"worker-0": WorkerHealth(check=waiting)})
    assert new_checks(unanswered, 300.0) == []
    assert len(new_checks(unanswered, 701.0)) == 1
    assert machine_exclusions(several, unanswered, 101.0) == ()  # it trains during the check

    result = CheckResult(incarnation="a", probes=(Probe(name="memory"),))
    finished = waiting.model_copy(update={"ended": 104.0, "result": result})
    answered = HealthAnswer(workers={"worker-0": WorkerHealth(check=finished)})
    assert new_checks(answered, 105.0) == new_checks(answered, 1e6) == []
    restarted = [with_gpus("worker-0", "b")]
    assert len(new_checks(answered, 105.0, restarted)) == 1

    bad = result.model_copy(update={"probes": (Probe(name="memory", problem="1 word"),)})
    failed = HealthAnswer(
        workers={"worker-0": WorkerHealth(check=finished.model_copy(update={"result": bad}))}
    )
    (action,) = act([*several, *FOUR[3:]], failed, {}, 105.0)
    assert isinstance(action, Quarantined)


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        ([], None),
        ([ended("a"), ended("b")], None),
        ([ended("a", ECC)], Checked),
        ([ended("a", ILLEGAL)], Checked),
        ([ended("a", ECC), ended("b"), ended("c", ECC)], Quarantined),
        ([ended("a", ECC), ended("b"), ended("a", ECC)], Quarantined),
        ([ended("a", PLAIN)], None),
        ([ended("a", PLAIN), ended("b", PLAIN)], Checked),
        ([ended("a", PLAIN), ended("b"), ended("c", PLAIN)], None),
        ([ended("a", KILLED), ended("a", KILLED)], None),
    ],
)
def test_failed_attempts_lead_to_a_check_or_a_quarantine(
    attempts: list[Ended], expected: type | None
) -> None:
    """One hardware failure, or two models that fail in a row, request a check; two hardware failures
    quarantine the worker."""
    found = list(act(FOUR, HealthAnswer(), {"worker-1": attempts}, 1000.0))
    assert [type(each) for each in found] == ([expected] if expected else [])


def test_a_release_clears_earlier_evidence() -> None:
    """Earlier failures and earlier failed checks do not count."""
    released = Quarantine(is_on=False, reason="r", by="ada", time=200.0)
    check = WorkerCheck(
        requested=150.0, reason="r", by="ada", ended=160.0, result=CheckResult(incarnation="a", problem="p")
    )
    known = HealthAnswer(workers={"worker-1": WorkerHealth(quarantine=released, check=check)})
    before = [ended("a", ECC), ended("b", ECC)]
    assert list(act(FOUR, known, {"worker-1": before}, 1000.0)) == []
    after = [*before, ended("c", ECC, at_s=300.0), ended("d", ECC, at_s=301.0)]
    assert [type(each) for each in act(FOUR, known, {"worker-1": after}, 1000.0)] == [Quarantined]


@pytest.mark.parametrize(
    ("by", "host", "expected"),
    [
        (CONTROLLER, "node-2", [Released]),
        (CONTROLLER, "node-1", []),
        ("ada", "node-2", []),
        (CONTROLLER, "", []),
    ],
)
def test_an_automatic_quarantine_applies_to_one_node(by: str, host: str, expected: list[type]) -> None:
    """A pod with the same name on another node gets tasks again; a manual quarantine stays."""
    mark = Quarantine(reason="r", by=by, time=1.0, host="node-1")
    known = HealthAnswer(workers={"worker-1": WorkerHealth(quarantine=mark)})
    moved = FOUR[1].model_copy(update={"record": FOUR[1].record.model_copy(update={"host": host})})
    found = act([FOUR[0], moved, *FOUR[2:]], known, {"worker-1": [ended("a", ECC)]}, 1000.0)
    assert [type(each) for each in found] == expected


def test_a_failed_check_quarantines_within_the_limits() -> None:
    """For any requester. The last worker is spared, with a reason."""
    check = WorkerCheck(
        requested=1.0,
        reason="r",
        by="ada",
        ended=2.0,
        result=CheckResult(incarnation="a", probes=(Probe(name="memory", problem="1 word"),)),
    )
    known = HealthAnswer(workers={"worker-1": WorkerHealth(check=check)})
    (found,) = act(FOUR, known, {}, 1000.0)
    assert found == Quarantined(worker="worker-1", reason="its check failed: memory: 1 word")
    (spared,) = act([FOUR[1]], known, {}, 1000.0)
    assert isinstance(spared, Spared)
    assert "the last worker that trains" in spared.why


@pytest.mark.parametrize(
    ("changes", "is_of_machine", "expected"),
    [
        ({}, False, False),  # an unfinished check next to computing sub-epochs
        ({}, True, True),  # a possibly broken worker gets no new task
        ({"incarnation": "old"}, True, False),
        ({"ended": -7000.0}, True, False),
    ],
)
def test_only_a_recent_check_of_the_current_process_counts(
    changes: dict[str, str | float], is_of_machine: bool, expected: bool
) -> None:
    """Checks of an earlier process, old checks, and checks without enough time or memory do not count."""
    check = WorkerCheck(
        requested=1.0,
        reason=f"{'its machine may have failed: ' if is_of_machine else ''}r",
        by="controller",
        ended=float(changes.get("ended", 2.0)),
        result=CheckResult(incarnation=str(changes.get("incarnation", "a")), problem="it hung"),
    )
    known = HealthAnswer(workers={"worker-1": WorkerHealth(check=check)})
    found = [each for each in act(FOUR, known, {}, 1000.0) if isinstance(each, Quarantined)]
    assert bool(found) is expected


def test_if_most_workers_fail_none_is_quarantined() -> None:
    """Three of four workers have failed, so the fourth is spared."""
    ended_attempts = {f"worker-{n}": [ended(f"a{n}", ECC), ended(f"b{n}", ECC)] for n in range(3)}
    found = list(act(FOUR, HealthAnswer(), ended_attempts, 1000.0))
    assert {type(each) for each in found} == {Spared}
    assert "the cluster is the cause" in found[0].why  # type: ignore[union-attr]
