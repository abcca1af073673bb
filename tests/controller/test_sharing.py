"""Several runs on one simulated cluster keep their invariants."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cerebro.contract.events import (
    PriorityChanged,
    RunRequested,
    RunStarted,
    TaskRevoked,
)
from cerebro.contract.priority import HIGH
from cerebro.contract.records import QUEUE_DEPTH
from cerebro.contract.runs import EtlRequest
from cerebro.contract.tasks.results import TaskResult
from cerebro.state import RunState, TaskKey
from cerebro.state.experiment import fold
from cerebro.state.workers import NO_DEVICE
from controller.scaling.cluster_snapshot import ClusterSnapshot
from controller.sharing.arbiter import DeviceSlot
from controller.sharing.claims import all_slots
from controller.sharing.rounds import Sharing
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Scenario
from tests.controller.disturbed import disturbed
from tests.controller.side_by_side import FITS, WORKERS, Fits, assert_apart, core_of, neighbour
from tests.controller.test_core import assert_complete, own_partition, plan, request
from tests.state.stories import SHA, Story, etl_plan


@settings(deadline=None, max_examples=40)
@given(
    fits=FITS,
    outages=st.lists(
        st.tuples(st.integers(0, WORKERS - 1), st.floats(0.1, 20), st.floats(0.1, 30)),
        max_size=2,
        unique_by=lambda outage: outage[0],
    ),
    max_open=st.integers(1, 4),
)
def test_every_concurrent_run_is_complete(
    fits: Fits, outages: list[tuple[int, float, float]], max_open: int
) -> None:
    """With other runs, worker losses and controller crashes, each run is complete."""
    simulation = fits.simulated(outages=outages, max_open=max_open)
    for name, epochs in fits.epochs.items():
        state = fold(name, simulation.store.events(name))
        assert state.runs["fit-1"].state is RunState.FINISHED
        assert_complete(state, epochs=epochs, partitions=WORKERS)
    assert_apart(simulation)


@settings(deadline=None, max_examples=20)
@given(
    fits=FITS,
    removed=st.lists(
        st.tuples(st.integers(0, WORKERS - 1), st.floats(1, 30)), max_size=2, unique_by=lambda one: one[0]
    ),
)
def test_concurrent_runs_make_partitions_one_at_a_time_per_worker(
    fits: Fits, removed: list[tuple[int, float]]
) -> None:
    """Attempts of all runs alternate in the executors without a device, also to rebuild lost partitions."""
    simulation = fits.simulated(max_open=4, has_pods=True, removed=removed)
    assert assert_apart(simulation) >= WORKERS * len(fits.epochs)


@pytest.mark.parametrize("seed", [47, 48, 89, 242])
def test_a_revoked_validation_goes_to_the_idle_device(seed: int) -> None:
    """Each seed has one queued validation next to an idle device; it is revoked once."""
    draw = Random(seed)
    others = [
        (draw.randint(1, 5), draw.randint(1, 2), draw.uniform(0, 20)) for _ in range(draw.randint(1, 2))
    ]
    scenario = disturbed(WORKERS, outages=[], faults={}, times=draw)
    scenario.devices = {f"worker-{number}": draw.randint(1, 3) for number in range(WORKERS)}
    models = draw.randint(1, 3)
    simulation = Simulation(
        scenario,
        request(models, 1),
        plan(models, WORKERS),
        neighbours=[
            neighbour(f"other-{n}", m, e, at=at, validated=True) for n, (m, e, at) in enumerate(others)
        ],
        max_open=2,
    )
    simulation.run(limit=20_000)
    for name in simulation.cores:
        revoked = [event for event in simulation.store.events(name) if isinstance(event, TaskRevoked)]
        assert len({(event.task, event.time) for event in revoked}) == len(revoked)


def test_a_limit_of_one_open_run_equals_a_run_alone() -> None:
    """With a limit of one, a run's log equals a run alone, and the next run starts afterwards."""
    scenario = Scenario(replicas=own_partition(WORKERS), sub_epoch_time=lambda body, worker: 2.0)
    alone = Simulation(scenario, request(4, 2), plan(4, WORKERS))
    alone.run()
    after = Simulation(
        scenario, request(4, 2), plan(4, WORKERS), neighbours=[neighbour("other", 2, 1)], max_open=1
    )
    after.run()
    assert [event for event in after.log if event.time < alone.now] == [
        event for event in alone.log if event.time < alone.now
    ]
    other = fold("other", after.store.events("other")).runs["fit-1"]
    assert other.clock.started == fold(EXPERIMENT, after.log).runs["fit-1"].clock.ended


@pytest.mark.parametrize("is_revoked", [False, True])
def test_a_commit_within_a_round_does_not_prevent_queueing(*, is_revoked: bool) -> None:
    """The store's answer contains the commit. Only a run that has just revoked a task queues none."""
    story, other = Story(), Story()
    etl_request = EtlRequest(code=SHA, code_fingerprint=SHA)
    planned = etl_plan(2, {"train": 4, "valid": 4})
    story.append(RunRequested(run="etl-1", request=etl_request), RunStarted(run="etl-1", plan=planned))
    tasks = [TaskKey(run="etl-1", kind="etl", split="train", partition=number) for number in range(2)]
    for number, key in enumerate(tasks):
        story.start(key, number, ())
    other.fit()
    cores = {"one": core_of(story), "two": core_of(other, "two")}
    ended, queueing = False, frozenset[DeviceSlot]()
    for each in Sharing().round(cores, ClusterSnapshot(now=story.time)):
        if each.core is cores["one"] and each.depth == QUEUE_DEPTH:
            queueing = frozenset(all_slots(story.state) - each.excluded_slots)
        if not ended:
            ended = True
            if is_revoked:
                story.append(TaskRevoked(task=str(tasks[1]), attempt=1, worker="worker-1", reason="-"))
            else:
                story.commit(tasks[1], 1, TaskResult(rows=4))
    assert queueing == (frozenset() if is_revoked else {DeviceSlot("worker-0", NO_DEVICE)})


def test_a_changed_priority_changes_the_shares() -> None:
    """A run of high priority has four times the share of a normal run."""
    scenario = Scenario(replicas=own_partition(4), sub_epoch_time=lambda body, worker: 120.0, lease_s=3600)
    simulation = Simulation(
        scenario, request(12, 4), plan(12, 4), neighbours=[neighbour("other", 12, 4, workers=4)]
    )

    def raise_it() -> None:
        simulation.store.append("other", PriorityChanged(run="fit-1", priority=HIGH, by="ann"))

    simulation._at(600.0, raise_it)
    simulation.run()

    def share_of(name: str) -> float:
        run = simulation.cores[name].state.runs["fit-1"]
        sub_epochs = [sub_epoch for model in run.models.values() for sub_epoch in model.sub_epochs]
        return sum(sub_epoch.seconds for sub_epoch in sub_epochs if 900 < sub_epoch.started < 5000)

    assert 2.5 < share_of("other") / share_of(EXPERIMENT) < 5.0


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@example(changes=[(EXPERIMENT, 0, 0, 0.0), (EXPERIMENT, 4, 1, 621.0), (EXPERIMENT, 0, 1, 582.0)])  # 35 and 40
@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from([EXPERIMENT, "other"]), st.integers(0, 7), st.integers(-2, 2), st.floats(0, 900)
        ),
        min_size=1,
        max_size=8,
    )
)
def test_models_of_high_priority_take_nothing_from_other_runs(
    changes: list[tuple[str, int, int, float]],
) -> None:
    """With any changing model priorities, two busy runs have half of the sub-epochs each, and no worker is idle."""
    scenario = Scenario(replicas=own_partition(3), sub_epoch_time=lambda body, worker: 60.0, lease_s=3600)
    simulation = Simulation(
        scenario, request(8, 2), plan(8, 3), neighbours=[neighbour("other", 8, 2, workers=3)]
    )
    for name, model, priority, at in changes:

        def change(name: str = name, model: int = model, priority: int = priority) -> None:
            event = PriorityChanged(run="fit-1", model=f"m{model:02}", priority=priority)
            simulation.store.append(name, event)

        simulation._at(at, change)
    simulation.run()
    begun: Counter[str] = Counter()
    for name in (EXPERIMENT, "other"):
        state = fold(name, simulation.store.events(name))
        assert_complete(state, epochs=2, partitions=3)
        sub_epochs = [
            sub_epoch for model in state.runs["fit-1"].models.values() for sub_epoch in model.sub_epochs
        ]
        begun[name] = sum(sub_epoch.started < 1500 for sub_epoch in sub_epochs)
    # At most two sub-epochs per worker: a model with priority may wait for a worker while the other run
    # uses its turns.
    assert abs(begun[EXPERIMENT] - begun["other"]) <= 2 * 3
    assert sum(begun.values()) == 3 * 1500 / 60
