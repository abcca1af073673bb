"""Priority scores, learned from sub-epochs."""

from __future__ import annotations

import math
import random
import sys
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.events import ModelExtended, ModelsAdded, SchedulerChanged, TaskCommitted
from cerebro.contract.runs import NewModel, ParentCheckpoint
from cerebro.contract.search import ASHA, PBT, ProcedureChoice
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.failures import FailureKind
from cerebro.contract.tasks.results import Curve, CurvePoint, TaskResult, Timings
from cerebro.scheduling.policies import POLICIES
from cerebro.state import RunState, TaskKey
from controller.decisions.core import Core
from controller.projections.priority_scores import PriorityScores
from research.simulation.cluster import Simulation
from tests.controller import searches
from tests.controller.disturbed import disturbed
from tests.controller.test_core import plan, request
from tests.controller.test_fit_dispatch import RECORD, told_step_by_step
from tests.state.stories import Story


def curve(model: str, sub_epoch: int, seconds: float) -> Curve:
    """A loss that falls more slowly for higher model numbers; m01 diverges in its third sub-epoch."""
    half = 2.0 + int(model[1:])
    if model == "m01" and sub_epoch >= 2:
        return Curve(name="loss", points=(), has_diverged=True)
    points = ((0.1 + 0.2 * n, 1 + 6 * 2 ** (-(sub_epoch + n / 5) / half), 3) for n in range(5))
    return Curve(name="loss", points=tuple(CurvePoint(t * seconds, mean, n) for t, mean, n in points))


@settings(deadline=None, max_examples=15)
@given(
    name=st.sampled_from(["promising", "hermes", "slaq"]),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3)),
    outages=st.lists(st.tuples(st.integers(0, 2), st.floats(0.1, 20), st.floats(0.1, 30)), max_size=3),
    faults=st.dictionaries(
        st.tuples(st.integers(0, 4), st.integers(0, 8)),
        st.sampled_from([FailureKind.CRASH, FailureKind.CHECKPOINT, FailureKind.USER_ERROR]),
        max_size=4,
    ),
    times=st.randoms(use_true_random=False),
)
def test_priority_scores_follow_the_log(name, shape, outages, faults, times) -> None:  # type: ignore[no-untyped-def]
    """After losses, failures and re-executions, incremental, rebuilt and replayed scores are equal."""
    models, workers, epochs = shape
    scenario = disturbed(workers, outages=outages, faults=faults, times=times)
    scenario.curve = lambda body, seconds: curve(body.model, body.sub_epoch, seconds)
    fit_request = request(models, epochs).model_copy(update={"scheduler": name})
    simulation = Simulation(scenario, fit_request, plan(models, workers))
    simulation.run()
    assert told_step_by_step(simulation)
    messages = [event.result.curve for event in simulation.log if isinstance(event, TaskCommitted)]
    assert all(messages)


def started(
    scheduler: str = "promising", *, metric: str = "loss", mode: str = "min", models: int = 5
) -> Story:
    """A run with this policy."""
    story = Story()
    story.fit(models=models, metric=metric, mode="max" if mode == "max" else "min")
    story.append(SchedulerChanged(run="fit-1", scheduler=scheduler, planner=False, by="ada"))
    return story


def train(story: Story, model: str, partition: int, *losses: float, name: str = "loss") -> None:
    """Commit a sub-epoch of two seconds with these losses; no losses mean no finite value."""
    points = tuple(CurvePoint(2.0 * (n + 0.5) / len(losses), loss, 10) for n, loss in enumerate(losses))
    key = TaskKey(run="fit-1", kind="train", model=model, epoch=1, partition=partition)
    result = TaskResult(
        rows=10,
        metrics={"accuracy": 0.5, "loss": losses[-1] if losses else 7.0},
        checkpoint=CheckpointRef(name=f"{model}-{partition}", checksum="-", size=1),
        timings=Timings(compute_s=2.0),
        curve=Curve(name=name, points=points, has_diverged=not points),
    )
    story.do(key, partition, result)


def priority_scores(story: Story) -> list[float]:
    """Return the scores by the run's policy."""
    return PriorityScores().of(story.state, story.run, POLICIES[story.run.scheduling.scheduler])


def test_hermes_sees_the_losses_of_sub_epochs() -> None:
    """Section 3.3 with a sub-epoch as quantum: 40 losses each."""
    story = started("hermes", models=3)
    train(story, "m00", 0, 7.0, 6.0, 5.0, 5.0)
    train(story, "m01", 0, 7.0, 6.0, 5.0, 5.0)
    train(story, "m01", 1, 5.0, 4.0, 4.0, 4.0)
    assert priority_scores(story) == [2.0 / 40, (6.0 - 4.5) / 40, float("inf")]


@pytest.mark.parametrize("scheduler", ["promising", "hermes", "slaq"])
def test_a_diverged_model_goes_last(scheduler: str) -> None:
    """Earlier good losses do not matter, and finite losses end the penalty."""
    story = started(scheduler, models=6)
    train(story, "m00", 0)
    train(story, "m01", 0, 7.0, 5.0, 3.0)
    train(story, "m01", 1)
    for model in range(2, 6):
        train(story, f"m0{model}", 0, 7.0, 6.9, 7.0)
        train(story, f"m0{model}", 1, 7.2, 7.3)
    found = priority_scores(story)
    assert max(found[:2]) < min(found[2:])
    train(story, "m00", 1, 7.0, 5.0, 3.0)
    again = priority_scores(story)
    assert again[1] == min(again) < again[0]


@settings(deadline=None)
@given(losses=st.lists(st.floats(0, sys.float_info.max), min_size=5, max_size=10))
def test_any_finite_losses_give_comparable_scores(losses: list[float]) -> None:
    """A perplexity, the exponential of a growing loss, is soon large."""
    for scheduler in ("promising", "hermes", "slaq"):
        story = started(scheduler, models=5)
        for number, loss in enumerate(losses):
            train(story, f"m0{number % 5}", number // 5, loss, loss / 2, loss)
        assert not any(map(math.isnan, priority_scores(story)))


def test_added_and_extended_models_get_a_score_at_once() -> None:
    """Scores equal the replayed ones; a clone inherits its parent's losses."""
    story, known = started(models=4), PriorityScores()
    for model in range(4):
        train(story, f"m0{model}", 0, 7.0, 7.0 - model)
    assert len(known.of(story.state, story.run, POLICIES["promising"])) == 4
    cold, clone = (
        NewModel(hyperparams={"batch_size": 1}, epochs=2, checkpoint=checkpoint)
        for checkpoint in (None, ParentCheckpoint(model="m03"))
    )
    story.append(ModelsAdded(run="fit-1", models=(cold, clone), by="ada"))
    added = known.of(story.state, story.run, POLICIES["promising"])
    assert added == priority_scores(story)
    assert added[4] == pytest.approx(2 * fmean([*added[:4], added[5]]))
    assert added[5] == added[3]
    story.append(ModelExtended(run="fit-1", model="m03", epochs=9, by="ada"))
    longer = known.of(story.state, story.run, POLICIES["promising"])
    assert longer == priority_scores(story)
    assert longer[3] < added[3]


def test_a_controller_decides_by_priority_score() -> None:
    """The model with the falling loss trains next, without a planner."""
    story = started(models=4)
    for model in range(4):
        train(story, f"m0{model}", 0, 7.0, 7.0 - 1.5 * (model == 2), 7.0 - 2.5 * (model == 2))
    core = Core(RECORD)
    for event in story.log:
        core.apply(event)
    assert core.fit is not None
    choice = core.fit.policy.choose(core.fit.dispatch_state, [1], random.Random(0))
    assert choice is not None
    assert choice.model == 2


@pytest.mark.parametrize("procedure", [ASHA(eta=2), PBT(population=4)])
def test_a_search_is_dispatched_by_priority_score(procedure: ProcedureChoice) -> None:
    """The search grants epochs and the policy orders models; scores of new, extended and cloned models equal
    the replayed ones."""
    simulation = searches.simulation(searches.search_of(procedure, samples=8), epochs=4)
    change = SchedulerChanged(run="fit-1", scheduler="promising", planner=False, by="ada")
    searches.request_at(simulation, 0.5, change)
    run = searches.fit_of(simulation)
    assert run.state is RunState.FINISHED
    assert told_step_by_step(simulation)
