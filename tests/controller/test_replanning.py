"""Occasions for a new plan, each tested alone without a real planner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cerebro.contract.events import Event, ParallelPlansRuledOut
from cerebro.contract.parallel_plans import SINGLE, ParallelPlan
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.contract.tasks.results import TaskResult, Timings
from controller.decisions.core import Core
from controller.planning import PlannerProcess
from tests.controller.test_fit_dispatch import RECORD
from tests.state.stories import Story, joined, lost, sub_epoch

DDP = ParallelPlan(technique="ddp", size=2)


class Listening:
    """A planner process that records questions and never finds a better plan; with `is_mute`, it does not answer."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.is_mute = False

    def send(self, message: Mapping[str, Any]) -> None:
        self.requests.append(message["request"])

    def answer(self) -> dict[str, Any] | None:
        """Report that no better plan exists."""
        if self.is_mute:
            return None
        times = {"planned_s": 10.0, "dispatch_s": 10.0, "followed_s": None, "lower_bound": 1.0}
        return {**times, "is_last": True, "order": [], "parallel_plans": [], "source": "", "seconds": 0.0}

    def stop(self) -> None:
        """Hold nothing."""


class Watched:
    """A run on two workers with two devices each, its core, and the planner process."""

    def __init__(self, *, models: int = 2, parallel_plans: tuple[ParallelPlan, ...] = ()) -> None:
        self.story = Story(workers=0)
        self.core, self.num_advised = Core(RECORD), 0
        self.process = Listening()
        self.planner_process = PlannerProcess(self.process)
        self.append(joined(0, partitions=(0, 1), devices=2), joined(1, partitions=(0, 1), devices=2))
        self.story.fit(models=models, partitions=2, epochs=9, parallel_plans=parallel_plans)
        self.advise()

    @property
    def plans(self) -> int:
        """Return the number of requested plans."""
        return self.process.requests.count("plan")

    def append(self, *events: Event) -> None:
        self.story.append(*events)
        self.advise()

    def run(
        self,
        epoch: int,
        partition: int,
        model: str,
        *,
        seconds: float = 2.0,
        parallel_plan: ParallelPlan | None = None,
    ) -> None:
        """Run a sub-epoch of this duration."""
        key = sub_epoch(epoch, partition, model)
        self.story.start(key, partition, (0, 1) if parallel_plan else (0,), parallel_plan)
        checkpoint = CheckpointRef(name=f"{key}", checksum="-", size=1)
        result = TaskResult(
            rows=10, metrics={"loss": 1.0}, checkpoint=checkpoint, timings=Timings(compute_s=seconds)
        )
        self.story.commit(key, partition, result)
        self.advise()

    def advise(self) -> None:
        """Update the core and let the planner process finish."""
        for event in self.story.log[self.num_advised :]:
            self.core.apply(event)
        self.num_advised = len(self.story.log)
        for _ in range(4):
            self.planner_process.advise(self.core)


def begun(*, models: int = 2, parallel_plans: tuple[ParallelPlan, ...] = ()) -> Watched:
    """All models have run once, and a first plan was requested."""
    watched = Watched(models=models, parallel_plans=parallel_plans)
    for model in range(models):
        assert not watched.plans, "nothing is known of the last model"
        watched.run(1, model % 2, f"m{model:02}")
    assert watched.plans == 1
    return watched


def test_no_plan_is_requested_without_events() -> None:
    """Repeated calls without events request no plan."""
    watched = begun()
    watched.advise()
    assert watched.plans == 1


def test_a_lost_worker_replaces_an_open_planner_query() -> None:
    """The open question assumes the lost worker, so it is replaced."""
    watched = begun()
    watched.process.is_mute = True
    watched.append(lost(1))
    assert watched.plans == 2
    watched.append(joined(1, partitions=(0, 1), devices=2, incarnation="b"))
    assert watched.plans == 3


def test_a_ruled_out_plan_triggers_planning_after_its_successor_has_run() -> None:
    """The next parallel plan has no known time until one sub-epoch has run."""
    watched = begun(parallel_plans=(SINGLE, DDP))
    watched.append(
        ParallelPlansRuledOut(run="fit-1", model="m00", parallel_plans=(SINGLE,), reason="made up")
    )
    assert watched.plans == 1
    watched.run(1, 1, "m00", seconds=1.5, parallel_plan=DDP)
    assert watched.plans == 2


def test_an_unexpectedly_long_sub_epoch_triggers_planning() -> None:
    """The run must have several parallel plans; an expected duration is no occasion."""
    watched = begun(parallel_plans=(SINGLE, DDP))
    watched.append(
        ParallelPlansRuledOut(run="fit-1", model="m00", parallel_plans=(SINGLE,), reason="made up")
    )
    watched.run(1, 1, "m00", seconds=2.0, parallel_plan=DDP)
    watched.run(2, 0, "m00", seconds=2.0, parallel_plan=DDP)
    watched.run(2, 1, "m00", seconds=2.0, parallel_plan=DDP)
    before, assumed = watched.plans, watched.core.fit
    assert assumed is not None
    known = assumed.times.estimates.surprises
    watched.run(3, 0, "m00", seconds=40.0, parallel_plan=DDP)
    assert watched.core.fit is not None
    assert watched.core.fit.times.estimates.surprises == known + 1
    assert watched.plans == before + 1
