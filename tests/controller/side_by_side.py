"""Several runs on one simulated cluster: generators, and checks of device slots."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

from cerebro.contract.events import (
    RunRequested,
    TaskAssigned,
    TaskCommitted,
    TaskFailed,
    TaskRevoked,
    TaskStarted,
)
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.runs import EtlRequest
from cerebro.state.workers import NO_DEVICE
from controller.decisions.core import Core
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Neighbour
from tests.controller.disturbed import disturbed
from tests.controller.test_core import plan, request
from tests.state.stories import SHA, Story

WORKERS = 3
ETL = EtlRequest(code=SHA, code_fingerprint=SHA)


def neighbour(
    name: str, models: int, epochs: int, *, at: float = 0.0, validated: bool = False, workers: int = WORKERS
) -> Neighbour:
    """A fit of another experiment."""
    started = plan(models, workers, validated=validated)
    return Neighbour(name=name, request=request(models, epochs), plan=started, at=at)


@dataclass(kw_only=True)
class Fits:
    """Fits of several experiments on workers with 1 to 3 devices, with controller crashes.

    Attributes:
        own: Models and epochs of the first experiment.
        others: Models, epochs, request time, and True if the models are validated.
        crashes: Write numbers; the controller crashes before each of these writes.
        devices: Number per worker.
        times: Source of random task durations.
    """

    own: tuple[int, int]
    others: list[tuple[int, int, float, bool]]
    crashes: frozenset[int]
    devices: list[int]
    times: Random

    @property
    def epochs(self) -> dict[str, int]:
        """Return the epochs of each experiment's fit."""
        return {EXPERIMENT: self.own[1], **{f"other-{n}": e for n, (_, e, _, _) in enumerate(self.others)}}

    def simulated(
        self,
        *,
        max_open: int,
        outages: Iterable[tuple[int, float, float]] = (),
        has_pods: bool = False,
        removed: Collection[tuple[int, float]] = (),
    ) -> Simulation:
        """Simulate all fits until they finish.

        `outages` are (worker, start, length) in seconds. With `has_pods`, ETL-only workers first make each
        experiment's partitions. `removed` lists (worker, time) of permanent losses with their disk.
        """
        scenario = disturbed(WORKERS, outages=outages, faults={}, times=self.times, devices=self.devices)
        scenario.crash_before, scenario.has_pods = self.crashes, has_pods
        scenario.removals = {f"worker-{number}": at for number, at in removed}
        models, epochs = self.own
        neighbours = [
            neighbour(f"other-{n}", m, e, at=at + has_pods, validated=validated)
            for n, (m, e, at, validated) in enumerate(self.others)
        ]
        simulation = Simulation(
            scenario,
            request(models, epochs),
            plan(models, WORKERS),
            neighbours=neighbours,
            max_open=max_open,
        )
        for each in neighbours if has_pods else ():
            simulation.store.append(each.name, RunRequested(run="etl-1", request=ETL))
        simulation.run(limit=20_000)
        return simulation


FITS = st.builds(
    Fits,
    own=st.tuples(st.integers(1, 5), st.integers(1, 2)),
    others=st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 2), st.floats(0, 20), st.booleans()),
        min_size=1,
        max_size=3,
    ),
    crashes=st.frozensets(st.integers(0, 60), max_size=3),
    devices=st.lists(st.integers(1, 3), min_size=WORKERS, max_size=WORKERS),
    times=st.randoms(use_true_random=False),
)


def assert_apart(simulation: Simulation) -> int:
    """Check that no device slot runs two attempts at once or is assigned to two runs.

    Returns the number of attempts that used the executors without a device.
    """
    running: defaultdict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    held: defaultdict[tuple[str, int], list[tuple[float, float, str]]] = defaultdict(list)
    for name in simulation.cores:
        given_at: dict[tuple[str, int], tuple[float, tuple[int, ...]]] = {}
        began: dict[tuple[str, int], float] = {}
        for event in simulation.store.events(name):
            if isinstance(event, TaskAssigned):
                given_at[event.task, event.attempt] = event.time, event.devices or (NO_DEVICE,)
            elif isinstance(event, TaskStarted):
                began[event.task, event.attempt] = event.time
            elif isinstance(event, TaskCommitted | TaskFailed | TaskRevoked):
                since, places = given_at.pop((event.task, event.attempt))
                for place in places:
                    owner = f"{name}/{event.task.partition('/')[0]}"
                    held[event.worker, place].append((since, event.time, owner))
                    if (event.task, event.attempt) in began:
                        running[event.worker, place].append((began[event.task, event.attempt], event.time))
    for spans in running.values():
        spans.sort()
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    for tasks in held.values():
        tasks.sort()
        for n, (_, end, owner) in enumerate(tasks):
            later = (task for task in tasks[n + 1 :] if task[0] < end)
            assert all(other == owner for _, _, other in later)
    return sum(len(tasks) for (_, place), tasks in held.items() if place == NO_DEVICE)


def core_of(story: Story, name: str = "one") -> Core:
    """Return the core of an experiment in the final state of a story."""
    core = Core(ExperimentRecord(name=name, locators=Locators(train=Locator(metadata="t.csv"))))
    core.state, story.state.name = story.state, name
    return core
