"""Trial results are stored once and reused by later runs if they apply."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cerebro.contract.events import TaskCommitted, TrialsRecalled
from cerebro.contract.parallel_plans import SINGLE, ParallelPlan
from cerebro.contract.tasks.results import TaskResult
from cerebro.contract.trials import (
    AvailableDevices,
    DeviceKind,
    Inspection,
    KnownParallelPlan,
    ModelGroup,
    TrialOutcome,
    TrialRecord,
)
from cerebro.errors import BadRequestError
from controller.sources.trial_cache import TrialCache
from tests.state.stories import Story
from tests.state.test_measured import DDP, INSPECT, started

KEYS = {"single": "1" * 64, "ddp-2": "2" * 64}
FOUND = Inspection(
    groups=(
        ModelGroup(
            id="g00",
            models=("m00", "m01"),
            parallel_plans=(
                KnownParallelPlan(id="single", parallel_plan=SINGLE, cache_key=KEYS["single"]),
                KnownParallelPlan(
                    id="ddp-2", parallel_plan=ParallelPlan(technique="ddp", size=2), cache_key=KEYS["ddp-2"]
                ),
            ),
        ),
    ),
    device_kinds=(AvailableDevices(device=DeviceKind(kind="cpu", name="1 core"), max_devices=2),),
    torch="2.13.0",
)
OUTCOME = TrialOutcome(batch_s=0.5, is_verified=True)


class Memory:
    """A store in memory; an older one refuses trials."""

    def __init__(self, *, is_older: bool = False) -> None:
        self.records: dict[str, TrialRecord] = {}
        self.writes = 0
        self._is_older = is_older

    def trials(self, keys: Sequence[str]) -> tuple[TrialRecord, ...]:
        if self._is_older:
            raise BadRequestError("no such route")
        return tuple(self.records[key] for key in keys if key in self.records)

    def keep_trial(self, record: TrialRecord) -> None:
        if self._is_older:
            raise BadRequestError("no such route")
        self.writes += 1
        self.records[record.key] = record


def inspected(outcome: TrialOutcome | None = None) -> Story:
    """An inspected run, with a trial if `outcome` is given."""
    story = Story(devices=2)
    story.fit()
    named = started(story, INSPECT)
    story.append(TaskCommitted.model_validate({**named, "result": TaskResult(inspection=FOUND)}))
    if outcome is not None:
        named = started(story, DDP, (0, 1))
        story.append(TaskCommitted.model_validate({**named, "result": TaskResult(trial=outcome)}))
    return story


def test_a_run_reuses_trial_results_of_another_run() -> None:
    """Its log records the reuse once."""
    store = Memory()
    TrialCache(store).keep("one", inspected(OUTCOME).run)
    later, cache = inspected(), TrialCache(store)
    event = cache.recalled(later.run)
    assert event == TrialsRecalled(run="fit-1", outcomes={"g00/ddp-2": OUTCOME})
    later.append(event)
    assert later.run.trials.outcomes["g00", "ddp-2"].is_recalled
    assert cache.recalled(later.run) is None
    cache.keep("one", later.run)
    assert store.writes == 1, "what was taken over is not written again"


@pytest.mark.parametrize(
    ("cause", "is_kept"),
    [
        ("gradient", True),
        ("not_applicable", True),
        ("device_memory", True),
        ("host_memory", False),
        ("failure", False),
    ],
)
def test_only_a_reproducible_reason_for_ruling_out_is_stored(cause: str, is_kept: bool) -> None:
    """A crash, or memory used by other programs, may not happen again."""
    store = Memory()
    struck = TrialOutcome.model_validate({"reason": "no", "cause": cause})
    TrialCache(store).keep("one", inspected(struck).run)
    assert bool(store.records) is is_kept


def test_a_trial_record_of_another_torch_version_is_not_reused() -> None:
    """The key should already differ."""
    store = Memory()
    store.records[KEYS["ddp-2"]] = TrialRecord(key=KEYS["ddp-2"], outcome=OUTCOME, torch="1.0")
    event = TrialCache(store).recalled(inspected().run)
    assert event == TrialsRecalled(run="fit-1")


def test_trials_work_without_a_trial_store() -> None:
    """Trials then run again."""
    cache = TrialCache(Memory(is_older=True))
    assert cache.recalled(inspected().run) == TrialsRecalled(run="fit-1")
    cache.keep("one", inspected(OUTCOME).run)
