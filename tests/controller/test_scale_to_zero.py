"""Clusters that scale to zero while unused, and scale up again."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    RunFinished,
    RunPaused,
    RunRequested,
    RunResumed,
    TaskAssigned,
    TaskStarted,
)
from cerebro.contract.records import PodRef, SizeRequest, WorkerRecord, WorkerSetStatus, WorkerStatus
from cerebro.contract.runs import FitRequest
from cerebro.errors import ClusterError, StoreUnavailableError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.state import RunState, TaskKey
from cerebro.state.experiment import fold
from controller.scaling import membership
from controller.scaling.arrivals import FILLING_S, STALLED_S, WAITED_S, Arrivals
from controller.scaling.autoscaler.policy import HOLD_S
from controller.scaling.autoscaler.scale_to_zero import DesiredSize, ScaleToZero, ScaleToZeroRules
from controller.scaling.autoscaler.use import Use, use_of
from controller.scaling.membership import Membership
from controller.scaling.orchestrator import Fleet, Pod
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Neighbour, Scenario
from research.simulation.store import VirtualStore
from tests.clocks import set_monotonic
from tests.controller.test_core import own_partition, plan, request
from tests.controller.test_membership import Manager
from tests.state.stories import Story

IDLE_S = 60.0


def rested(
    *,
    join_s: list[float],
    at: float,
    least: int = 0,
    crash_before: frozenset[int] = frozenset(),
) -> Simulation:
    """Workers with a partition each and these start times; one fit, and another at time `at`."""
    workers = len(join_s)
    again = plan(3, workers).model_copy(update={"run": "fit-2"})
    simulation = Simulation(
        Scenario(
            replicas=own_partition(workers),
            has_pods=True,
            crash_before=crash_before,
            scale_to_zero=ScaleToZeroRules(is_on=True, idle_s=IDLE_S, least=least),
            join_s=lambda pod: join_s[int(pod.rpartition("-")[2])],
            lease_s=40.0,
        ),
        request(3, 2),
        plan(3, workers),
        neighbours=[Neighbour(name=EXPERIMENT, request=request(3, 2), plan=again, at=at)],
    )
    simulation.run()
    return simulation


def assert_as_before(simulation: Simulation, workers: int) -> None:
    """Check that both fits finished and that each partition was made once, by the ETL run."""
    state = fold(EXPERIMENT, simulation.log)
    for name in ("fit-1", "fit-2"):
        run = state.runs[name]
        assert run.state is RunState.FINISHED
        for model in run.models.values():
            trained = Counter((sub_epoch.epoch, sub_epoch.partition) for sub_epoch in model.sub_epochs)
            assert trained == {(e, p): 1 for e in (1, 2) for p in range(workers)}
    counts = Counter(
        TaskKey.parse(e.task).run for e in simulation.log if isinstance(e, TaskAssigned) and "/etl/" in e.task
    )
    assert counts == {"etl-1": workers}


def test_a_cluster_scales_to_zero_and_back() -> None:
    """The first sub-epoch starts within fifteen seconds of the first worker."""
    simulation = rested(join_s=[40.0, 70.0, 200.0, 45.0], at=1000.0)
    ended = next(e.time for e in simulation.log if isinstance(e, RunFinished) and e.run == "fit-1")
    requested_at = next(e.time for e in simulation.log if isinstance(e, RunRequested) and e.run == "fit-2")
    (down, none), (up, all_of_them) = simulation.sizes[:2]
    assert (none, all_of_them) == (0, 4)
    assert IDLE_S <= down - ended <= IDLE_S + 15
    assert up - requested_at <= 15
    first = next(e.time for e in simulation.log if isinstance(e, TaskStarted) and e.task.startswith("fit-2/"))
    assert first - requested_at <= 15 + 40
    assert_as_before(simulation, 4)


@settings(max_examples=40, deadline=None)
@given(
    join_s=st.lists(st.sampled_from([0.0, 1.0, 30.0, 90.0, 400.0]), min_size=1, max_size=4),
    at=st.sampled_from([30.0, 70.0, 75.0, 80.0, 100.0, 900.0]),
    least=st.integers(0, 1),
    crash_before=st.frozensets(st.integers(0, 120), max_size=3),
)
def test_scaling_to_zero_and_back_rebuilds_nothing(
    join_s: list[float], at: float, least: int, crash_before: frozenset[int]
) -> None:
    """For any request time, start times, and controller crashes."""
    simulation = rested(join_s=join_s, at=at, least=least, crash_before=crash_before)
    assert_as_before(simulation, len(join_s))
    requested_at = next(e.time for e in simulation.log if isinstance(e, RunRequested) and e.run == "fit-2")
    first = next(e.time for e in simulation.log if isinstance(e, TaskStarted) and e.task.startswith("fit-2/"))
    assert first - requested_at <= 15 + IDLE_S + min(join_s)
    assert all(size in (least, len(join_s)) for _, size in simulation.sizes)


# --- Idle time ---


def scale_to_zero(*, least: int = 0, most: int = 0, previous_size: int = 0) -> ScaleToZero:
    return ScaleToZero(
        ScaleToZeroRules(is_on=True, idle_s=IDLE_S, least=least, most=most), previous_size=previous_size
    )


def next_size(
    it: ScaleToZero,
    now: float,
    size: int,
    *,
    is_used: bool,
    wished_at: float = math.inf,
    chosen_at: float = -math.inf,
    **known: object,
) -> DesiredSize | None:
    return it.update(now, size=size, use=Use(is_used, wished_at), chosen_at=chosen_at, **known)  # type: ignore[arg-type]


def test_workers_are_released_after_idle_time() -> None:
    """Not earlier, not during a run, not below the minimum, and not within an hour of a user's choice."""
    it = scale_to_zero(least=1)
    assert next_size(it, 0.0, 4, is_used=True) is None
    assert next_size(it, 10.0, 4, is_used=False) is None
    assert next_size(it, 69.0, 4, is_used=False) is None
    assert next_size(it, 71.0, 4, is_used=False, chosen_at=71.0 - HOLD_S / 2) is None
    assert next_size(it, 72.0, 4, is_used=False) == DesiredSize(1, "no run for 1 min")
    assert next_size(scale_to_zero(least=1), 1e9, 1, is_used=False) is None
    assert next_size(ScaleToZero(ScaleToZeroRules()), 1e9, 4, is_used=False) is None


@pytest.mark.parametrize(
    ("bounds", "most", "expected"), [(None, 0, 4), ((6, 12), 0, 6), ((1, 2), 0, 2), (None, 3, 3)]
)
def test_a_run_scales_the_cluster_to_its_former_size(
    bounds: tuple[int, int] | None, most: int, expected: int
) -> None:
    """The number respects the run's and the cluster's limits, also after a change of leader."""
    it = scale_to_zero(previous_size=4, most=most)
    assert next_size(it, 0.0, 0, is_used=True, bounds=bounds) == DesiredSize(expected, "a run is requested")


def test_a_run_behind_a_paused_run_needs_no_workers() -> None:
    """When the first run resumes or finishes, the newest waiting run counts."""
    story = Story()
    story.etl()
    story.fit()
    behind = FitRequest.model_validate(story.run.request.model_dump())
    for name in ("fit-2", "fit-3"):
        story.append(RunRequested(run=name, request=behind))

    def use(queued: int = 3) -> Use:
        return use_of([story.state], story.state.going_on(), queued)

    assert use().is_used
    story.append(RunPaused(run="fit-1", reason="no workers are wanted"))
    assert use() == Use(is_used=False, wished_at=-math.inf)
    assert use(queued=4).is_used  # an unread run of another experiment
    story.append(RunResumed(run="fit-1"))
    assert (use().is_used, use().wished_at) == (True, story.time)
    story.append(RunRequested(run="fit-4", request=behind))
    assert use(4).wished_at == story.time
    story.append(RunFinished(run="fit-1", outcome="stopped"))
    assert (use(3).is_used, [run.id for run in use(3).runs]) == (True, ["fit-2"])


@pytest.mark.parametrize("least", [0, 1])
def test_a_run_that_waits_for_space_keeps_one_worker(least: int) -> None:
    """That worker reports when space is available; then all workers return."""
    it = scale_to_zero(least=least)
    full = Use(is_used=False, is_full=True)
    for now in (0.0, 2 * IDLE_S, 2 * IDLE_S + 1):
        found = it.update(now, size=4, use=full)
    assert found == DesiredSize(1, "no run for 2 min")
    for now in (200.0, 1e6):
        assert it.update(now, size=1, use=full) is None
    assert it.status_text(1) == "the cluster is scaled down to 1 of 4 workers; a run scales it up"
    assert next_size(it, 1e6, 1, is_used=True) == DesiredSize(4, "a run is requested")
    assert next_size(it, 1e6 + 1, 4, is_used=True) is None
    assert (it.previous_size, it.status_text(4)) == (0, "")


def test_a_run_that_waits_for_space_restores_one_worker() -> None:
    """An idle cluster gets one worker, unless a user requested zero later."""
    it = scale_to_zero(previous_size=4)
    full = Use(is_used=False, is_full=True, wished_at=5.0)
    assert it.update(0.0, size=0, use=full, scaled_to_zero_at=6.0) is None
    assert it.update(0.0, size=0, use=full) == DesiredSize(1, "a run waits for free space")
    assert it.update(1.0, size=1, use=full) is None
    assert next_size(it, 2.0, 1, is_used=True) == DesiredSize(4, "a run is requested")


# --- Starting workers ---


def statuses(*numbers: int, kinds: tuple[str, ...] = ("train", "etl")) -> list[WorkerStatus]:
    """Workers of these pods."""
    return [
        WorkerStatus(
            record=WorkerRecord(
                worker=f"w-{number}-{kind}",
                incarnation="a",
                weight=1.0,
                cores=1,
                kinds=(kind,),
                pod=PodRef(name=f"w-{number}", uid=f"u{number}", container=kind),
            ),
            silent_s=0.0,
        )
        for number in numbers
        for kind in kinds
    ]


def fleet(*numbers: int, size: int, pending: tuple[int, ...] = (), **fields: Any) -> Fleet:
    """Pods with these numbers, and unschedulable pods with the `pending` numbers."""
    stuck = {f"w-{n}": Pod(uid=f"u{n}", problem="no node fits: 0/3", is_pending=True) for n in pending}
    return Fleet(pods={f"w-{n}": Pod(uid=f"u{n}") for n in numbers} | stuck, size=size, **fields)


def test_data_is_partitioned_for_all_requested_workers() -> None:
    """ETL plans wait until both containers of each pod have registered, for ten minutes at most."""
    it = Arrivals()
    half = [*statuses(0), *statuses(1, kinds=("train",))]
    observed = [(statuses(0), fleet(0, size=1), 0.0)]
    observed += [(statuses(0), fleet(0, 1, size=2), 10.0), (half, fleet(0, 1, size=2), 11.0)]
    observed += [
        (statuses(0), fleet(0, 1, size=2), 10.0 + WAITED_S),
        (statuses(0, 1), fleet(0, 1, size=3), 700.0),
    ]
    observed += [(statuses(0, 1, 2), fleet(0, 1, 2, size=3), 701.0)]
    messages = []
    for workers, pods, now in observed:
        it.observe(workers, pods, now)
        messages.append(it.progress_text if it.is_awaited else None)
    one_of_two, two_of_three = (f"workers are starting: {n} of {n + 1}" for n in (1, 2))
    assert messages == [None, one_of_two, one_of_two, None, two_of_three, None]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(("is_scaling_up", "patience_s"), [(True, WAITED_S), (False, FILLING_S)])
def test_missing_partitions_are_not_rebuilt_while_a_cluster_scales_up(
    is_scaling_up: bool, patience_s: float, is_known: bool
) -> None:
    """The grace period is ten minutes, also for new nodes and new leaders; otherwise one minute, for
    scheduled pods only."""
    it = Arrivals()
    if is_known:
        it.observe(statuses(0), fleet(0, size=1), 0.0)
    pods = fleet(0, 1, size=3, pending=(2,)) if is_scaling_up else fleet(0, 1, size=3)
    it.observe(statuses(0), pods, 1.0, is_scaling_up=is_scaling_up)
    assert it.is_filling
    it.observe(statuses(0), pods, patience_s, is_scaling_up=is_scaling_up)
    assert it.is_filling
    it.observe(statuses(0), pods, 1.0 + patience_s, is_scaling_up=is_scaling_up)
    assert not it.is_filling


# --- Requests to the cluster manager ---


def watched(store: VirtualStore, manager: Manager, **rules: object) -> Membership:
    known = ScaleToZeroRules(is_on=True, idle_s=IDLE_S, **rules)  # type: ignore[arg-type]
    return Membership(cast(KvsClient, store), manager, lease_s=10.0, tick_s=0.0, scale_to_zero=known)


def turn(watcher: Membership, now: float, *, is_used: bool) -> None:
    """Do one turn, as the loop does."""
    watcher.reconcile(now)
    watcher.snapshot(now)
    watcher.size.adapt(Use(is_used=is_used))
    watcher.reconcile(now)


def test_a_new_leader_restores_the_former_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store keeps the number of workers; the page shows that the cluster is scaled to zero."""
    store, manager = VirtualStore(lambda: 0.0), Manager(pods=fleet(0, 1, size=2))
    watcher = watched(store, manager, least=0)
    for now in (0.0, 10.0, HOLD_S + 1):
        turn(watcher, now, is_used=False)
    assert manager.sizes == [0]
    manager.pods = fleet(size=0)
    turn(watcher, HOLD_S + 2, is_used=False)
    assert store.worker_set_status() == WorkerSetStatus(
        note="the cluster is scaled down to none of 2 workers; a run scales it up", size_before_zero=2, size=0
    )
    heir = watched(store, manager, least=0)
    away = iter([StoreUnavailableError("no answer")])
    read_status = store.worker_set_status

    def worker_set_status() -> WorkerSetStatus:
        if (error := next(away, None)) is not None:
            raise error
        return read_status()

    monkeypatch.setattr(store, "worker_set_status", worker_set_status)
    heir.take_over()
    with pytest.raises(StoreUnavailableError):
        heir.reconcile()  # before it reports again
    turn(heir, HOLD_S + 3, is_used=True)
    assert manager.sizes == [0, 2]
    manager.pods = fleet(0, size=2)
    for status in statuses(0):
        store.register(status.record)
    turn(heir, HOLD_S + 4, is_used=True)
    assert store.worker_set_status() == WorkerSetStatus(
        note="workers are starting: 1 of 2", size_before_zero=2, size=2
    )
    manager.pods = fleet(0, 1, size=2)
    store.register(statuses(1)[0].record)
    store.register(statuses(1)[1].record)
    turn(heir, HOLD_S + 5, is_used=True)
    assert store.worker_set_status() == WorkerSetStatus(size=2)


@pytest.mark.parametrize("is_by_request", [True, False])
def test_a_users_size_holds_for_an_hour_under_any_leader(*, is_by_request: bool) -> None:
    """The choice may come from `cerebro scale` or the cluster manager, and expires after an hour."""
    store, manager = VirtualStore(lambda: 0.0), Manager(pods=fleet(0, size=1))
    watcher = watched(store, manager, least=1)
    turn(watcher, 0.0, is_used=False)
    if is_by_request:
        store.request_size(SizeRequest(workers=2, by="ann"))
        watcher.on_notification()
        watcher.reconcile(100.0)
        assert manager.sizes.pop() == 2
    manager.pods = fleet(0, 1, size=2)
    turn(watcher, 100.0, is_used=False)
    for now in (150.0, 1000.0, 3000.0, 100.0 + HOLD_S - 1):
        heir = watched(store, manager, least=1)
        heir.take_over()
        turn(heir, now, is_used=False)
        turn(heir, min(now + IDLE_S, 100.0 + HOLD_S - 1), is_used=False)
    assert manager.sizes == []
    turn(heir, 100.0 + HOLD_S + IDLE_S, is_used=False)
    assert manager.sizes == [1]


def test_a_new_leader_does_not_mistake_the_autoscalers_size_for_a_users(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first controller crashes between the scaling and the removal of the request."""
    store, manager = VirtualStore(lambda: 0.0), Manager(pods=fleet(0, size=1))
    first = watched(store, manager, least=1)
    turn(first, 0.0, is_used=False)
    first.size.request(2, "it pays")

    def die(*_: object) -> None:
        raise _DiedError

    with monkeypatch.context() as patch, suppress(_DiedError):
        patch.setattr(store, "withdraw_size_request", die)
        first.reconcile(1.0)
    manager.pods = fleet(0, 1, size=2)
    heir = watched(store, manager, least=1)
    heir.take_over()
    turn(heir, 10.0, is_used=False)
    assert heir.size.history().chosen_at == -math.inf


def installing(store: VirtualStore, manager: Manager, number: int) -> Membership:
    """A new leader; `number` is the chart's `worker.replicas`."""
    membership = Membership(cast(KvsClient, store), manager, lease_s=10.0, tick_s=0.0, installed=number)
    membership.take_over()
    return membership


def test_a_new_worker_set_gets_the_size_of_the_chart_values() -> None:
    """Each new set is scaled once, which does not count as a user's choice."""
    store, manager = VirtualStore(lambda: 0.0), Manager(pods=fleet(0, size=1, set_uid="a"))
    first = installing(store, manager, 2)
    turn(first, 10.0, is_used=False)
    assert manager.sizes == [2]
    manager.pods = fleet(0, 1, size=2, set_uid="a")
    turn(first, 11.0, is_used=False)
    assert first.size.history().chosen_at == -math.inf
    manager.pods = fleet(0, 1, 2, size=3, set_uid="a")  # by `kubectl scale`
    turn(first, 20.0, is_used=False)
    turn(installing(store, manager, 2), 30.0, is_used=False)
    assert manager.sizes == [2]
    manager.pods = fleet(0, size=1, set_uid="b")
    turn(installing(store, manager, 2), 40.0, is_used=False)
    assert manager.sizes == [2, 2]


def test_a_new_run_withdraws_a_pending_scale_to_zero() -> None:
    """A pending request for zero workers is withdrawn."""
    store, manager = VirtualStore(lambda: 0.0), Manager(pods=fleet(0, size=1))
    watcher = watched(store, manager, least=0)
    for now in (0.0, HOLD_S):
        watcher.snapshot(now)
        watcher.size.adapt(Use(is_used=False))
    assert store.size_request() == SizeRequest(
        workers=0, by="autoscaler", reason=f"no run for {HOLD_S / 60:.0f} min"
    )
    watcher.size.adapt(Use(is_used=True))
    watcher.reconcile()
    assert (store.size_request(), manager.sizes) == (None, [])


@pytest.mark.parametrize(("requested", "wakes"), [(15.0, False), (40.0, True)])
def test_older_runs_do_not_override_a_users_scale_to_zero(requested: float, wakes: bool) -> None:
    """The choice counts from the request, although pods stop later."""
    store, manager = VirtualStore(lambda: 0.0), Manager(pods=fleet(0, 1, size=2))
    watcher = watched(store, manager, least=0)
    used = Use(is_used=True, wished_at=requested)
    for now in (0.0, 10.0):
        watcher.snapshot(now)
        watcher.size.adapt(used)
    watcher.snapshot(20.0)
    store.request_size(SizeRequest(workers=0, by="ann", pause=True))
    watcher.reconcile(is_running=True)
    watcher.snapshot(30.0)
    watcher.reconcile()
    manager.pods = fleet(size=0)
    for now in (50.0, 60.0):
        watcher.snapshot(now)
        watcher.size.adapt(used)
        watcher.reconcile()
    assert manager.sizes == ([0, 2] if wakes else [0])


class _DiedError(Exception):
    """The controller is gone."""


@pytest.mark.parametrize(
    "dies", ["before the manager was told", "after it", "once the request was gone", "later"]
)
@pytest.mark.parametrize(("requested", "wakes"), [(15.0, False), (400.0, True)])
def test_a_new_leader_respects_a_users_scale_to_zero(
    monkeypatch: pytest.MonkeyPatch, *, dies: str, requested: float, wakes: bool
) -> None:
    """After any crash of the previous leader, older runs start no workers and a later run does."""
    store, manager = VirtualStore(lambda: 0.0), Manager(pods=fleet(0, 1, size=2))
    store.set_worker_set_status(WorkerSetStatus(size_before_zero=2))
    first = watched(store, manager, least=0)
    first.reconcile(10.0)
    first.snapshot(10.0)
    store.request_size(SizeRequest(workers=0, by="ann"))
    first.on_notification()

    def die(*_: object) -> None:
        raise _DiedError

    where = {"before the manager was told": (manager, "scale"), "after it": (store, "withdraw_size_request")}
    with monkeypatch.context() as patch, suppress(_DiedError):
        if dies in where:
            patch.setattr(*where[dies], die)
        first.reconcile(20.0)
    if dies != "before the manager was told":
        manager.pods = fleet(size=0)
    if dies == "later":
        first.reconcile(30.0)
        first.snapshot(30.0)
        first.reconcile(31.0)
    heir = watched(store, manager, least=0)
    heir.take_over()
    for now in (300.0, 310.0, 320.0, 410.0, 420.0, 430.0, 440.0):
        heir.reconcile(now)
        heir.snapshot(now)
        heir.size.adapt(Use(is_used=now > requested, wished_at=requested))
        manager.pods = fleet(size=manager.sizes[-1])
    assert (manager.sizes[-1] == 2) == wakes
    assert (store.worker_set_status().scaled_to_zero_at is None) == wakes


def test_an_outdated_scale_to_zero_is_forgotten() -> None:
    """A user started workers while no controller led."""
    store, manager = VirtualStore(lambda: 0.0), Manager(pods=fleet(0, 1, size=2))
    store.set_worker_set_status(WorkerSetStatus(size_before_zero=2, scaled_to_zero_at=5.0))
    watcher = watched(store, manager, least=0)
    for now in (10.0, 20.0):
        watcher.snapshot(now)
        watcher.reconcile(now)
    assert store.worker_set_status().scaled_to_zero_at is None


def test_runs_are_paused_before_their_workers_leave() -> None:
    """The request waits until no run is active."""
    store, manager = VirtualStore(lambda: 0.0), Manager(pods=fleet(0, size=1))
    watcher = watched(store, manager)
    store.request_size(SizeRequest(workers=0, by="ann", pause=True))
    watcher.reconcile(is_running=True)
    assert (watcher.size.is_pausing, manager.sizes) == (True, [])
    watcher.reconcile(is_running=False)
    assert (watcher.size.is_pausing, manager.sizes) == (False, [0])


def test_a_size_without_nodes_is_not_requested_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request shrinks to the running workers for an hour, with the scheduler's reason."""
    clock = [0.0]
    set_monotonic(monkeypatch, lambda: clock[0], membership)
    store, manager = VirtualStore(lambda: 0.0), Manager(pods=fleet(0, size=2, pending=(1,)))
    watcher = watched(store, manager)
    manager.error = ClusterError("not now")
    for now in (0.0, STALLED_S, 2 * HOLD_S):
        clock[0] = now
        watcher.snapshot(now)
        watcher.size.adapt(Use(is_used=True))
    found = store.size_request()
    assert found is not None
    assert (found.workers, found.reason) == (1, "w-1 had not found a node after 15 min: no node fits: 0/3")
    assert watcher.size.history().chosen_at == 2 * HOLD_S
    manager.error, manager.pods = None, fleet(0, size=1)
    watcher.reconcile()
    assert store.worker_set_status() == WorkerSetStatus(
        note=f"1 of 2 workers are wanted now: {found.reason}", size=1, chosen_at=2 * HOLD_S
    )
    watcher.snapshot(2 * HOLD_S + 1)
    for size in (3, 1):
        manager.pods = fleet(0, size=size)
        watcher.snapshot(2 * HOLD_S + size)
        watcher.reconcile()
        assert "wanted now" not in store.worker_set_status().note
