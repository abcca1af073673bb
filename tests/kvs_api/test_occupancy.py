"""Device assignments under random interleavings of controllers and workers, in both stores."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from cerebro.contract.events import ClusterEvent, WorkerJoined, WorkerLost
from cerebro.contract.records import QUEUE_DEPTH, ExperimentRecord
from cerebro.contract.rest import api
from cerebro.errors import ConflictError, NotFoundError
from research.simulation.store import VirtualStore
from tests.kvs_api.bench import LOCATORS, LONG_S, SHORT_S, AnyStore, Bench, body, worker, worker_step
from tests.kvs_api.real import Service
from tests.kvs_api.test_contract import pass_a_moment
from tests.state.exclusive import assert_exclusive

EXPERIMENTS = ("one", "two")
WORKERS = ("worker-0", "worker-1")
TASKS = tuple(f"etl-1/etl/train/p{number}" for number in range(5))
DEVICES = 3

experiments, workers, tasks = st.sampled_from(EXPERIMENTS), st.sampled_from(WORKERS), st.sampled_from(TASKS)
some_devices = st.sets(st.integers(0, DEVICES - 1), max_size=DEVICES).map(lambda found: tuple(sorted(found)))


@dataclass
class Open:
    """An open attempt, according to the calls' outcomes."""

    attempt: int
    worker: str
    incarnation: str
    devices: tuple[int, ...]
    is_running: bool = False


class Deciders(RuleBasedStateMachine):
    """Two controllers with their last terms, several experiments, and workers that report and restart at random."""

    def __init__(self, store: AnyStore, pass_a_moment: Callable[[], None]) -> None:
        super().__init__()
        self.store, self.pass_a_moment = store, pass_a_moment
        for name in EXPERIMENTS:
            store.create_experiment(ExperimentRecord(name=name, locators=LOCATORS))
        self.terms = {"controller-0": store.lead("controller-0", SHORT_S).term, "controller-1": 0}
        self.open: dict[tuple[str, str], Open] = {}
        self.attempts: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.lives: dict[str, int] = {}
        self.said: dict[str, str] = {}
        self.devices: dict[str, int] = {}
        for name in WORKERS:
            self.register(name, DEVICES)
            self.write_cluster_event("controller-0", name)

    # --- rules -----------------------------------------------------------------------------------

    @rule(name=workers, devices=st.integers(0, DEVICES))
    def register(self, name: str, devices: int) -> None:
        self.lives[name] = self.lives.get(name, 0) + 1
        self.devices[name] = max(1, devices)
        self.store.register(worker(self.incarnation(name), name, devices=devices))

    @rule(name=workers)
    def remove(self, name: str) -> None:
        with contextlib.suppress(NotFoundError):
            self.store.remove_worker(name)
        self.devices[name] = 0

    @rule(holder=st.sampled_from(["controller-0", "controller-1"]), name=workers)
    def write_cluster_event(self, holder: str, name: str) -> None:
        """Report to the cluster log that a worker joined or was lost, before or after it registers."""
        said, event = self.said.get(name, ""), cast("ClusterEvent | None", None)
        if said:
            event = WorkerLost(worker=name, incarnation=said, reason="-")
        elif self.devices[name]:
            event = WorkerJoined(worker=name, incarnation=self.incarnation(name), weight=1.0, kinds=())
        if event is None:
            return
        request = api.ClusterLogRequest(
            term=self.terms[holder], after=len(self.store.cluster_log()), events=(event,)
        )
        with contextlib.suppress(ConflictError):
            assert self.store.write_cluster_log(request).is_written
            assert self.leads(holder)
            self.said[name] = event.incarnation if isinstance(event, WorkerJoined) else ""

    @rule(holder=st.sampled_from(["controller-0", "controller-1"]))
    def lead(self, holder: str) -> None:
        self.pass_a_moment()
        self.terms[holder] = self.store.lead(holder, SHORT_S).term or self.terms[holder]

    @rule(
        holder=st.sampled_from(["controller-0", "controller-1"]),
        experiment=experiments,
        task=tasks,
        name=workers,
        devices=some_devices,
    )
    def assign(self, holder: str, experiment: str, task: str, name: str, devices: tuple[int, ...]) -> None:
        """Assign a task as a current or former leader, without a check of the devices."""
        attempt = self.attempts[experiment, task] + 1
        step = api.Assign(
            task=task,
            attempt=attempt,
            worker=name,
            incarnation=self.incarnation(name),
            devices=devices,
            body=body(task),
        )
        is_free = self.fits(name, devices) and (experiment, task) not in self.open
        is_free &= self.said[name] == self.incarnation(name)
        outcome = self.decide(holder, experiment, step)
        assert outcome == ("stale" if not self.leads(holder) else "done" if is_free else "refused")
        if outcome == "done":
            self.attempts[experiment, task] = attempt
            self.open[experiment, task] = Open(attempt, name, self.incarnation(name), devices)

    @rule(
        holder=st.sampled_from(["controller-0", "controller-1"]),
        experiment=experiments,
        task=tasks,
        is_forced=st.booleans(),
    )
    def revoke(self, holder: str, experiment: str, task: str, is_forced: bool) -> None:
        found = self.open.get((experiment, task))
        if found is None:
            return
        step = api.Revoke(task=task, attempt=found.attempt, worker=found.worker, reason="-", force=is_forced)
        if self.decide(holder, experiment, step) == "done":
            del self.open[experiment, task]

    @rule(
        op=st.sampled_from(["start", "start", "renew", "commit", "fail"]), experiment=experiments, task=tasks
    )
    def report(self, op: str, experiment: str, task: str) -> None:
        """Report as the attempt's process, current or replaced."""
        found = self.open.get((experiment, task))
        if found is None:
            return
        request = api.ReportRequest(
            incarnation=found.incarnation,
            lease_s=LONG_S,
            steps=(worker_step(op, found.attempt, task=task, experiment=experiment),),
        )
        self.pass_a_moment()
        answer = self.store.report(found.worker, request)
        assert answer.current == self.is_present(found)
        if not answer.current:
            return
        is_first = all(ahead[0] is found for ahead in self.queues(found))
        fits = {"start": not found.is_running and is_first, "fail": True}.get(op, found.is_running)
        repeated = op == "start" and found.is_running
        assert answer.outcomes[0].outcome == ("already" if repeated else "done" if fits else "refused")
        if fits and op == "start":
            found.is_running = True
        elif fits and op in ("commit", "fail"):
            del self.open[experiment, task]

    # --- invariants ------------------------------------------------------------------------------

    @invariant()
    def no_device_runs_two(self) -> None:
        running = [found for found in self.open.values() if found.is_running and self.is_present(found)]
        for one, other in combinations(running, 2):
            if one.worker == other.worker:
                assert set(one.devices or {None}).isdisjoint(other.devices or {None})

    def teardown(self) -> None:
        """Check that no device ran two attempts, and that all devices are free after all attempts end."""
        assert_exclusive({name: self.store.events(name) for name in EXPERIMENTS})
        self.pass_a_moment()
        holder = max(self.terms, key=lambda name: self.terms[name])
        self.terms[holder] = self.store.lead(holder, LONG_S).term
        for experiment, task in list(self.open):
            self.revoke(holder, experiment, task, True)
        for name in WORKERS:
            for _ in range(2):
                if self.said[name] != self.incarnation(name):
                    self.write_cluster_event(holder, name)
            for devices in [(), *((device,) for device in range(self.devices[name]))]:
                for number in range(QUEUE_DEPTH + 1):
                    self.assign(holder, "one", f"etl-1/etl/train/{name}-{devices}-{number}", name, devices)

    # --- model of the outcomes -------------------------------------------------------------------

    def incarnation(self, name: str) -> str:
        return f"{name}#{self.lives[name]}"

    def is_present(self, found: Open) -> bool:
        return bool(self.devices[found.worker]) and found.incarnation == self.incarnation(found.worker)

    def leads(self, holder: str) -> bool:
        return self.terms[holder] == max(self.terms.values())

    def decide(self, holder: str, experiment: str, step: api.Decision) -> str:
        request = api.DecideRequest(
            term=self.terms[holder], after=len(self.store.events(experiment)), steps=(step,)
        )
        try:
            return self.store.decide(experiment, request).outcomes[0].outcome
        except ConflictError:
            return "stale"

    def on(self, name: str, device: int | None) -> list[Open]:
        """Return the open attempts on a device of a worker's current process, oldest first.

        `None` selects attempts without a device.
        """
        return [
            found
            for found in self.open.values()
            if found.worker == name and self.is_present(found) and device in (found.devices or (None,))
        ]

    def queues(self, found: Open) -> Iterator[list[Open]]:
        return (self.on(found.worker, device) for device in found.devices or (None,))

    def fits(self, name: str, devices: tuple[int, ...]) -> bool:
        places = devices or (None,)
        return self.devices[name] > max(devices, default=0) and all(
            len(self.on(name, device)) < QUEUE_DEPTH for device in places
        )


def check(made: Callable[[], Deciders], **options: Any) -> None:
    """Run the state machine from a factory, because each run needs a new store."""
    run_state_machine_as_test(
        cast("type[Deciders]", made),
        settings=settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], **options),
    )


def test_no_interleaving_assigns_a_device_twice() -> None:
    """Tests the simulated store, whose results the real one must match."""
    now = [1000.0]

    def tick() -> None:
        now[0] += SHORT_S + 0.001

    check(lambda: Deciders(VirtualStore(lambda: now[0]), tick), max_examples=50, stateful_step_count=40)


@pytest.mark.slow
def test_no_interleaving_assigns_a_device_twice_in_the_real_store(service: Service) -> None:
    """Compares every result, and checks that no device runs two attempts or stays occupied."""
    with contextlib.closing(service.client()) as client:

        def begin() -> Deciders:
            service.database.empty()
            return Deciders(client, pass_a_moment)

        check(begin, max_examples=25, stateful_step_count=50)


def reason(bench: Bench, step: api.Assign) -> str:
    """Return the reason of a refused step."""
    request = api.DecideRequest(term=bench.term, after=len(bench.log()), steps=(step,))
    (outcome,) = bench.store.decide("one", request).outcomes
    assert outcome.outcome == "refused"
    return outcome.reason
