"""The dispatch state: updates event by event equal a new one from the state."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import TaskAssigned, TaskRevoked, WorkerLost, WorkerRemoved
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.rest import api
from cerebro.contract.tasks.failures import FailureKind
from cerebro.state import ModelState, TaskKey
from controller.decisions.core import Core
from controller.decisions.fit_dispatch import FitDispatch
from controller.scaling.cluster_decision import ending
from controller.scaling.cluster_snapshot import ClusterSnapshot, WorkerView
from research.simulation.cluster import Simulation
from research.simulation.scenario import Scenario
from tests.controller.disturbed import disturbed
from tests.controller.test_core import device_counts, own_partition, plan, request
from tests.state.stories import Story, joined, lost, sub_epoch, validation

RECORD = ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="train.csv")))


def told_step_by_step(simulation: Simulation) -> int:
    """Replay a simulation's log with a comparison after each event; return the number of comparisons.

    It compares an incremental dispatch state, one built from the state, and one from a core that only read
    the past.
    """
    core, compared = Core(simulation.store.experiment("simulated")), 0
    reader = Core(core.record)
    for event in simulation.log:
        core.apply(event)
        reader.apply(event, is_news=False)
        if core.fit is None:
            continue
        run = core.state.runs[core.fit.run]
        anew = FitDispatch.of(core.state, run)
        assert core.fit.retries.interrupted == anew.retries.interrupted
        kept, dispatch_state = core.fit.dispatch_state, anew.dispatch_state
        compared += 1
        assert reader.fit is not None
        assert reader.fit.dispatch_state.work.time == kept.work.time
        assert reader.fit.dispatch_state.work.fixed == kept.work.fixed
        assert reader.fit.times.load_s == core.fit.times.load_s
        anew.observe_holders(core.state)
        assert (
            dispatch_state.priority_score == reader.fit.dispatch_state.priority_score == kept.priority_score
        )
        assert kept.holders.held == dispatch_state.holders.held
        assert {m: p._replace(start=0.0) for m, p in kept.running.items()} == {
            m: p._replace(start=0.0) for m, p in dispatch_state.running.items()
        }
        assert kept.free == dispatch_state.free
        for index, model in enumerate(run.models.values()):
            assert (index in kept.running) == (model.busy is not None)
            if model.is_cut_short:
                assert not kept.open[index] or model.busy
            elif not model.is_trained:
                assert (kept.epoch[index], kept.open[index]) == (
                    dispatch_state.epoch[index],
                    dispatch_state.open[index],
                )
                assert kept.epoch[index] == model.epoch
                assert kept.open[index] == sum(1 << p for p in model.remaining)
        fresh = kept.copy()
        fresh.recount()
        assert kept.work.model_left == pytest.approx(fresh.work.model_left, rel=1e-6, abs=1e-9)
        assert kept.work.worker_left == pytest.approx(fresh.work.worker_left, rel=1e-6, abs=1e-9)
        fresh = dispatch_state.copy()
        fresh.recount()
        assert dispatch_state.work.model_left == pytest.approx(fresh.work.model_left, rel=1e-6, abs=1e-9)
        assert dispatch_state.work.worker_left == pytest.approx(fresh.work.worker_left, rel=1e-6, abs=1e-9)
    return compared


@settings(deadline=None, max_examples=25)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3)),
    outages=st.lists(st.tuples(st.integers(0, 2), st.floats(0.1, 20), st.floats(0.1, 30)), max_size=3),
    faults=st.dictionaries(
        st.tuples(st.integers(0, 4), st.integers(0, 8)),
        st.sampled_from(
            [FailureKind.CRASH, FailureKind.CHECKPOINT, FailureKind.OUT_OF_MEMORY, FailureKind.USER_ERROR]
        ),
        max_size=4,
    ),
    times=st.randoms(use_true_random=False),
    devices=device_counts,
)
def test_the_dispatch_state_follows_the_log(shape, outages, faults, times, devices) -> None:  # type: ignore[no-untyped-def]
    """The property survives losses, failures, revocations and reopened sub-epochs."""
    models, workers, epochs = shape
    scenario = disturbed(workers, outages=outages, faults=faults, times=times, devices=devices)
    simulation = Simulation(scenario, request(models, epochs), plan(models, workers, validated=True))
    simulation.run()
    assert told_step_by_step(simulation)


def test_a_decision_leaves_the_dispatch_state_unchanged() -> None:
    """The decision tries choices on the dispatch state and reverts them."""
    scenario = Scenario(replicas=own_partition(3))
    simulation = Simulation(scenario, request(4, 2), plan(4, 3))
    simulation.run()
    core = Core(simulation.store.experiment("simulated"))
    for event in simulation.log:
        core.apply(event)
        if core.fit is not None:
            before = vars(core.fit.dispatch_state.copy())
            first = core.decide(simulation.snapshot())
            assert vars(core.fit.dispatch_state.copy()) == before
            assert core.decide(simulation.snapshot()) == first


def core_of(story: Story) -> Core:
    """Return a core after the story's log."""
    core = Core(RECORD)
    for event in story.log:
        core.apply(event)
    return core


def all_here(story: Story) -> ClusterSnapshot:
    """Return a snapshot with all workers of the story."""
    return ClusterSnapshot(
        workers={
            name: WorkerView(
                incarnation=worker.incarnation, weight=1.0, kinds=tuple(worker.kinds), replicas=()
            )
            for name, worker in story.state.workers.items()
            if not worker.is_removed
        }
    )


def interrupt(story: Story, how: FailureKind, *, is_reported: bool) -> None:
    """Interrupt m02 on partition 0: its worker is lost, or releases it, and returns."""
    key = sub_epoch(1, 0, "m02")
    if is_reported:
        story.fail(key, 0, how)
    else:
        attempt = story.start(key, 0)
        story.append(TaskRevoked(task=str(key), attempt=attempt, worker="worker-0", reason="gone", loss=how))
    if story.state.workers["worker-0"].is_alive:
        story.append(lost(0))
    story.append(joined(0, incarnation="b"))


@pytest.mark.parametrize(
    ("how", "is_reported"),
    [(FailureKind.PREEMPTED, True), (FailureKind.PREEMPTED, False), (FailureKind.CRASH, False)],
)
def test_an_interrupted_sub_epoch_goes_first(how: FailureKind, is_reported: bool) -> None:
    """It precedes models with more remaining work, and validations."""
    story = Story()
    story.fit(models=5, validated=True)
    story.train(1, 1, model="m02")
    for done in ("m03", "m04"):
        story.epoch(1, model=done)
    interrupt(story, how, is_reported=is_reported)
    steps = core_of(story).decide(all_here(story))
    at_it = [step.task for step in steps if isinstance(step, api.Assign) and step.worker == "worker-0"]
    assert at_it[0] == str(sub_epoch(1, 0, "m02"))


def test_a_lost_partition_that_returns_is_not_rebuilt() -> None:
    """The holder returned before a queued rebuild started; a started rebuild continues."""
    for place, expected in (("queued", ["revoke"]), ("first", [])):
        story = Story()
        story.etl(splits={"train": 10})
        story.fit(models=3)
        story.append(lost(1), WorkerRemoved(worker="worker-1", reason="gone"))
        if place == "queued":
            story.start(sub_epoch(1, 0), 0)
        remake = TaskKey(run="fit-1", kind="etl", split="train", partition=1)
        story.assign(remake, 0)
        assert not [s for s in core_of(story).decide(all_here(story)) if isinstance(s, api.Revoke)]
        story.append(joined(1, incarnation="b"))
        steps = core_of(story).decide(all_here(story))
        revoked = [step for step in steps if isinstance(step, api.Revoke)]
        assert [step.op for step in revoked] == expected
        assert {step.task for step in revoked} <= {str(remake)}


def test_a_sub_epoch_assigned_while_its_model_fails_is_revoked() -> None:
    """The assignment may follow the failure in the log; the controller revokes it."""
    story = Story()
    story.fit(models=2, validated=True)
    story.epoch(1)
    story.fail(validation(1), 0, FailureKind.USER_ERROR)
    assert story.model().state is ModelState.FAILED
    story.append(TaskAssigned(task=str(sub_epoch(2, 0)), attempt=1, worker="worker-0"))
    core = core_of(story)
    assert core.fit is not None
    (step,) = core.decide(all_here(story))
    assert (step.op, step.task) == ("revoke", str(sub_epoch(2, 0)))  # type: ignore[union-attr]
    story.append(
        TaskRevoked(task=str(sub_epoch(2, 0)), attempt=1, worker="worker-0", reason="its model has failed")
    )
    assert not core_of(story).fit.dispatch_state.running  # type: ignore[union-attr]


def test_a_worker_that_releases_its_task_to_shut_down_gets_no_more_tasks() -> None:
    """The cluster log records the worker as lost."""
    story = Story()
    story.fit(models=2)
    story.fail(sub_epoch(1, 0), 0, FailureKind.PREEMPTED)
    ((worker, incarnation),) = ending(core_of(story).state)
    story.append(WorkerLost(worker=worker, incarnation=incarnation, reason="it was asked to end"))
    steps = core_of(story).decide(all_here(story))
    assert {step.worker for step in steps if isinstance(step, api.Assign)} == {"worker-1"}
