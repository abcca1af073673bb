"""The live loop with several experiments: concurrent progress and isolated faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from cerebro.contract.events import (
    PriorityChanged,
    RunRequested,
    RunStarted,
    RunStopRequested,
    TaskAssigned,
    TaskCommitted,
)
from cerebro.contract.priority import HIGH, NORMAL
from cerebro.contract.records import (
    ExperimentRecord,
    Hyperparameters,
    Locator,
    Locators,
    Replica,
    WorkerRecord,
)
from cerebro.contract.rest import api
from cerebro.contract.runs import EtlPlan, EtlRequest, EvaluateRequest, FitRequest, PartitionPlan
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult
from cerebro.errors import ClusterError
from cerebro.runtime.kvs.client import KvsClient
from cerebro.runtime.volumes import Volumes
from cerebro.state import ExperimentState, RunState
from cerebro.state.experiment import fold
from controller.decisions.core import Core
from controller.loop import leadership, log_follower, loop
from controller.loop.log_follower import LogFollower
from controller.loop.open_runs import Opened
from controller.loop.run_decisions import RunDecisions
from controller.planning import SpawnedProcess
from controller.preparation import plan_maker
from controller.preparation.plan_maker import PlanMaker
from controller.scaling import cluster_decision
from controller.settings import Settings
from controller.sharing import claims
from controller.sharing.rounds import RunOffer
from research.simulation.store import VirtualStore
from tests.controller.preparations import prepared_by
from tests.controller.test_loop import Nobody
from tests.state.stories import SHA

WORKERS = ("worker-0", "worker-1")


class Cluster(VirtualStore):
    """A store whose workers do a task each time the controller is idle, one second apart."""

    def __init__(self, *experiments: str) -> None:
        self.now = 0.0
        super().__init__(lambda: self.now)
        self.cursors = dict.fromkeys(WORKERS, 0)
        self.lasting: set[str] = set()
        """Experiments whose tasks never finish."""
        self.running: dict[str, str] = {}
        self.tick_s = 1.0
        self.workers_left: tuple[str, ...] = WORKERS
        self.notify: Callable[[], None] = lambda: None
        for name in experiments:
            self.begin(name)
        for name in WORKERS:
            kinds = ("etl", "train", "valid")
            self.register(WorkerRecord(worker=name, incarnation="a", weight=1.0, cores=1, kinds=kinds))

    def begin(self, name: str) -> None:
        """Create an experiment and request ETL."""
        self.create_experiment(
            ExperimentRecord(name=name, locators=Locators(train=Locator(metadata="t.csv")))
        )
        self.append(name, RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)))

    def watch(self, cursors: Mapping[str, int], cluster: int, wait_s: float) -> api.WatchAnswer:
        answer = super().watch(cursors, cluster, wait_s)
        if wait_s and not answer.events and answer.cluster == cluster:
            self.now += self.tick_s
            for number, name in enumerate(self.workers_left):
                self._work(name, number)
            self.notify()
        return answer

    def _work(self, name: str, number: int) -> None:
        """Execute the inbox, except revoked tasks."""
        items = self.inbox(name, "a", self.cursors[name], wait_s=0)
        held = {entry.dataset for entry in self._workers[name].record.replicas}
        for item in items:
            self.cursors[name] = item.seq
            if item.body is None or self.running.get(name):
                continue
            start = api.Start(experiment=item.experiment, task=item.task, attempt=item.attempt)
            if item.experiment in self.lasting:
                self.report(name, api.ReportRequest(incarnation="a", lease_s=86400, steps=(start,)))
                self.running[name] = f"{item.experiment}/{item.task}"
                continue
            checkpoint = (
                CheckpointRef(name=item.task, checksum="-", size=1) if "/train/m" in item.task else None
            )
            result = TaskResult(rows=1, metrics={"loss": 0.5}, checkpoint=checkpoint)
            commit = api.Commit(
                experiment=item.experiment, task=item.task, attempt=item.attempt, result=result
            )
            held.add(item.experiment)
            replicas = tuple(Replica(dataset=dataset, partition=number) for dataset in sorted(held))
            self.report(
                name,
                api.ReportRequest(incarnation="a", lease_s=10.0, steps=(start, commit), replicas=replicas),
            )
        running = self.running.get(name)
        self.report(name, api.ReportRequest(incarnation="a", lease_s=10.0, running=running))

    def fit(self, name: str, models: int = 2, epochs: int = 2) -> None:
        hyperparams: tuple[Hyperparameters, ...] = tuple({"batch_size": 1, "n": n} for n in range(models))
        fit_request = FitRequest(
            code=SHA, models=hyperparams, epochs=epochs, metric="loss", mode="min", planner=False
        )
        self.append(name, RunRequested(run="fit-1", request=fit_request))

    def state(self, name: str) -> ExperimentState:
        """Return the fold of the log."""
        return fold(name, self.events(name))

    def is_over(self, name: str, run: str = "etl-1") -> bool:
        """Return True if the run has finished."""
        known = self.state(name).runs.get(run)
        return known is not None and known.state is RunState.FINISHED


@pytest.fixture
def controlled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., loop.Controller]:
    """Return a function that runs a controller until a condition holds."""

    def prepared(record: ExperimentRecord, *given: Any) -> EtlPlan:
        parts = (PartitionPlan(partition=n, worker=name, rows=1) for n, name in enumerate(WORKERS))
        return EtlPlan(dataset=record.name, splits={"train": tuple(parts)})

    monkeypatch.setattr(plan_maker, "Preparation", prepared_by(prepared))

    def control(
        store: Cluster, until: Callable[[], object], *, open_runs: int = 8, turns: int = 2000
    ) -> loop.Controller:
        settings = Settings(
            server="-",
            token="-",
            holder="me",
            tick_s=0.001,
            lease_s=1e9,
            open_runs=open_runs,
            volumes=Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path / "volumes")}),
        )
        controller = loop.Controller(cast(KvsClient, store), settings, Nobody(), SpawnedProcess())
        left = [turns]

        def notify() -> None:
            left[0] -= 1
            assert left[0], "it did not happen"
            if until():
                controller.stop.set()

        store.notify = notify
        controller.run()
        return controller

    return control


def test_started_runs_continue_under_a_lower_limit(
    controlled: Callable[..., loop.Controller],
) -> None:
    """A controller with a lower limit continues all started runs and starts no others."""
    store = Cluster("one", "two", "three")
    controlled(store, lambda: all(store.is_over(name) for name in ("one", "two", "three")))
    for name in ("one", "two"):
        store.fit(name, models=3)

    def has_begun(name: str) -> bool:
        run = store.state(name).runs.get("fit-1")
        return run is not None and run.plan is not None

    controlled(store, lambda: has_begun("one") and has_begun("two"))
    store.fit("three")
    controlled(store, lambda: store.is_over("three", "fit-1"), open_runs=1)
    runs = [store.state(name).runs["fit-1"] for name in ("one", "two", "three")]
    assert all(run.state is RunState.FINISHED for run in runs)
    assert runs[2].clock.started >= max(run.clock.ended for run in runs[:2])
    newest_first = max(runs[0].clock.started, runs[1].clock.started)
    assert newest_first < min(runs[0].clock.ended, runs[1].clock.ended), "neither waited for the other"


def test_the_report_lists_active_runs_and_devices(
    controlled: Callable[..., loop.Controller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report lists runs, their devices and the total; it precedes the first task of a run."""
    monkeypatch.setattr(leadership, "LEASE_S", 0.0)  # report at each turn of the loop
    store, observed = Cluster("one", "two"), list[api.Attended]()
    controlled(store, lambda: store.is_over("one") and store.is_over("two"))
    for name in ("one", "two"):
        store.fit(name, models=3)
    store.append("one", PriorityChanged(run="fit-1", priority=HIGH))

    def is_done() -> bool:
        attended = store.queued().attended
        names = {(each.experiment, each.run) for each in attended.runs}
        for name in ("one", "two"):
            run = store.state(name).runs["fit-1"]
            assert (name, "fit-1") in names or run.plan is None or not run.is_open
        observed.append(attended)
        return store.is_over("one", "fit-1") and store.is_over("two", "fit-1")

    controlled(store, is_done)
    both = [
        attended
        for attended in observed
        if len(attended.runs) == 2 and any(run.devices for run in attended.runs)
    ]
    assert {attended.devices for attended in both} == {len(WORKERS)}
    assert {sum(run.devices for run in attended.runs) for attended in both} <= {1, 2}
    for attended in both:
        assert {(run.experiment, run.priority) for run in attended.runs} == {("one", HIGH), ("two", NORMAL)}
    assert any(run.could_use_more for attended in both for run in attended.runs)


def test_the_report_lists_runs_waiting_for_their_own_experiment(
    controlled: Callable[..., loop.Controller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report lists the run while it waits."""
    monkeypatch.setattr(leadership, "LEASE_S", 0.0)  # report at each turn of the loop
    store, queues = Cluster("one"), set[tuple[api.QueueEntry, ...]]()
    controlled(store, lambda: store.is_over("one"))
    store.fit("one")
    best = EvaluateRequest(kind="test", fit="fit-1", split="test")
    store.append("one", RunRequested(run="test-1", request=best))

    def is_done() -> bool:
        queues.add(store.queued().attended.waiting)
        return store.is_over("one", "fit-1")

    controlled(store, is_done)
    assert queues == {(), (api.QueueEntry(experiment="one", run="test-1"),)}


@pytest.mark.parametrize(
    ("owner", "where"),
    [
        *((Core, name) for name in ("decide", "wake_s", "fit_of", "open_runs", "waiting")),
        *((claims, name) for name in ("claim", "held", "used", "ending", "all_slots", "training_slots")),
        *((cluster_decision, name) for name in ("ending", "busy")),
        (PlanMaker, "steps"),
    ],
)
def test_a_fault_in_one_core_does_not_stop_another(
    controlled: Callable[..., loop.Controller], monkeypatch: pytest.MonkeyPatch, owner: Any, where: str
) -> None:
    """The others continue, and the experiment continues after the fault."""
    store = Cluster("bad", "good")
    whole, is_broken, was_asked = getattr(owner, where), [True], [False]

    def broken(*given: Any, **named: Any) -> Any:
        of_bad = any(
            getattr(getattr(each, "state", each), "name", None) == "bad"
            for each in given
            if isinstance(each, Core | ExperimentState)
        )
        was_asked[0] |= of_bad
        if of_bad and is_broken[0]:
            raise ZeroDivisionError("nobody foresaw this")
        return whole(*given, **named)

    monkeypatch.setattr(owner, where, broken)
    monkeypatch.setattr("controller.loop.open_runs._FIRST_S", 0.01)
    monkeypatch.setattr("controller.loop.open_runs._LONGEST_S", 0.02)
    controlled(store, lambda: store.is_over("good"))
    assert was_asked[0]
    if where == "decide":
        assert not store.is_over("bad")
    is_broken[0] = False
    controlled(store, lambda: store.is_over("bad"))


def test_stopping_one_run_does_not_affect_the_other(controlled: Callable[..., loop.Controller]) -> None:
    """The other run has no revoked attempt and executes each sub-epoch once."""
    store = Cluster("one", "two")
    controlled(store, lambda: store.is_over("one") and store.is_over("two"))
    for name in ("one", "two"):
        store.fit(name, models=3)

    def stop_and_wait() -> bool:
        if any(isinstance(event, TaskCommitted) and "fit-1" in event.task for event in store.events("two")):
            store.append("two", RunStopRequested(run="fit-1"))
        return store.is_over("one", "fit-1")

    controlled(store, stop_and_wait)
    assert store.state("two").runs["fit-1"].state is RunState.STOPPED
    commits = Counter(e.task for e in store.events("one") if isinstance(e, TaskCommitted))
    assert set(commits.values()) == {1}


def test_a_long_log_does_not_delay_other_experiments(
    controlled: Callable[..., loop.Controller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller reads the log in small parts, and another experiment starts in between."""
    store = Cluster("long", "short")
    monkeypatch.setattr(log_follower, "_READING_S", 0.0)
    whole, pages, began = LogFollower._read_page, [None] * 50, list[int]()

    def slowly(self: LogFollower, each: Opened) -> bool:
        if each.core.state.name == "short" or not pages:
            return whole(self, each)
        pages.pop()
        if any(isinstance(event, RunStarted) for event in store.events("short")):
            began.append(len(pages))
        return True

    monkeypatch.setattr(LogFollower, "_read_page", slowly)
    controlled(store, lambda: store.is_over("short") and store.is_over("long"))
    assert began[0] > 10


def test_a_lost_partition_is_rebuilt_during_a_long_preprocessing(
    controlled: Callable[..., loop.Controller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The executor for tasks without a device alternates by past use."""
    store = Cluster("lossy")

    def prepared(record: ExperimentRecord, *given: Any) -> EtlPlan:
        many = 60 if record.name == "long" else 1
        parts = (PartitionPlan(partition=n, worker=name, rows=1) for n, name in enumerate(WORKERS))
        valid = (PartitionPlan(partition=n, worker=WORKERS[0], rows=1) for n in range(many))
        return EtlPlan(dataset=record.name, splits={"train": tuple(parts), "valid": tuple(valid)})

    monkeypatch.setattr(plan_maker, "Preparation", prepared_by(prepared))
    controlled(store, lambda: store.is_over("lossy"))
    store.tick_s = 30.0  # an executor changes hands after a minute at the earliest
    store.remove_worker("worker-1")
    store.begin("long")
    store.workers_left = WORKERS[:1]
    store.fit("lossy", models=1, epochs=1)
    controlled(store, lambda: store.is_over("lossy", "fit-1"))
    assert not store.is_over("long")
    remade = [e.task for e in store.events("lossy") if isinstance(e, TaskCommitted) and "/etl/" in e.task]
    assert "fit-1/etl/train/p1" in remade


def begin_to_train(store: Cluster, control: Callable[..., loop.Controller]) -> None:
    """Occupy each device with an endless sub-epoch of experiment `long`."""
    control(store, lambda: store.is_over("long") and store.is_over("short"))
    store.lasting.add("long")
    store.fit("long", models=3)
    control(store, lambda: len(store.running) == len(WORKERS))
    store.fit("short")


def has_sub_epochs(store: Cluster, name: str) -> bool:
    """Return True if the fit has had a task."""
    return any(isinstance(e, TaskAssigned) and e.task.startswith("fit-1") for e in store.events(name))


def test_an_experiment_keeps_its_devices_while_its_log_is_read(
    controlled: Callable[..., loop.Controller], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted controller knows the experiment only from worker reports, and queues no foreign sub-epochs there."""
    store = Cluster("long", "short")
    begin_to_train(store, controlled)
    monkeypatch.setattr(log_follower, "_READING_S", 0.0)
    whole, pages, alone = LogFollower._read_page, [None] * 50, list[bool]()
    decide = RunDecisions._decide

    def slowly(self: LogFollower, each: Opened) -> bool:
        if each.core.state.name == "short" or not pages:
            return whole(self, each)
        pages.pop()
        return True

    def record(self: RunDecisions, offer: RunOffer, *given: Any, **named: Any) -> bool:
        alone.append(offer.is_alone)
        return decide(self, offer, *given, **named)

    monkeypatch.setattr(LogFollower, "_read_page", slowly)
    monkeypatch.setattr(RunDecisions, "_decide", record)
    controlled(store, lambda: not pages)
    assert alone
    assert not any(alone)
    assert not has_sub_epochs(store, "short")


@pytest.mark.parametrize("is_read_anew", [True, False])
def test_a_faulty_experiment_keeps_its_devices(
    controlled: Callable[..., loop.Controller], monkeypatch: pytest.MonkeyPatch, *, is_read_anew: bool
) -> None:
    """This holds during its pause, and during a second fault while its log is read again."""
    store, faults, is_broken = Cluster("long", "short"), [0], [False]
    begin_to_train(store, controlled)
    whole, read = Core.decide, LogFollower._read_page

    def broken(self: Core, *given: Any) -> Any:
        if self.state.name == "long":
            is_broken[0] = True
            raise ZeroDivisionError("nobody foresaw this")
        return whole(self, *given)

    def unread(self: LogFollower, each: Opened) -> bool:
        if each.core.state.name == "long" and is_broken[0]:
            faults[0] += 1
            if is_read_anew:
                raise ZeroDivisionError("nor that")
        return read(self, each)

    monkeypatch.setattr(Core, "decide", broken)
    monkeypatch.setattr(LogFollower, "_read_page", unread)
    monkeypatch.setattr("controller.loop.open_runs._FIRST_S", 0.01)
    monkeypatch.setattr("controller.loop.open_runs._LONGEST_S", 0.02)
    monkeypatch.setattr("controller.loop.open_runs._REPORTED_S", 0.0)
    controlled(store, lambda: faults[0] >= 3)
    assert not has_sub_epochs(store, "short")
    # Once workers report no tasks, the devices are free for all.
    store.running.clear()
    controlled(store, lambda: has_sub_epochs(store, "short"))


@pytest.mark.parametrize("given", ["0", "-1", "many", "1.5"])
def test_an_invalid_number_of_open_runs_is_refused(given: str) -> None:
    """The error explains the setting."""
    environment = {"CEREBRO_TOKEN": "-", "CEREBRO_OPEN_RUNS": given}
    with pytest.raises(ClusterError, match=r"expected a number of at least 1 \(controller\.openRuns"):
        Settings.from_environment(environment)


def test_eight_runs_may_be_open_by_default() -> None:
    """With a limit of one, runs wait for each other."""
    assert Settings.from_environment({"CEREBRO_TOKEN": "-"}).open_runs == 8
    assert Settings.from_environment({"CEREBRO_TOKEN": "-", "CEREBRO_OPEN_RUNS": "1"}).open_runs == 1
