"""A run whose plan fails for a volume pauses with the reason, and is planned again after growing pauses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from cerebro.contract.events import Event, RunFinished, RunRequested, RunStarted
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.rest.api import Note
from cerebro.contract.runs import EtlRequest, FitPlan
from cerebro.errors import StorageFullError, StoreUnavailableError, VolumeError
from cerebro.runtime.volumes import Volumes
from cerebro.state import ExperimentState, RunState
from cerebro.state.reports.wait_reasons import waiting_for
from controller.decisions.core import Core
from controller.decisions.decide import decide
from controller.preparation import plan_maker
from controller.preparation.plan_maker import PlanMaker
from controller.scaling.cluster_snapshot import ClusterSnapshot
from research.simulation.scenario import EXPERIMENT
from tests.controller.test_earlier_runs import Logs, ended_story, request_of
from tests.state.stories import SHA
from tests.waiting import until

RECORD = ExperimentRecord(name=EXPERIMENT, locators=Locators(train=Locator(metadata="t.csv")))
AWAY = VolumeError.at("/volumes/shared/x is read-only", Path("/volumes/shared/x"))
FULL = StorageFullError.at("no space to write in /volumes/shared", Path("/volumes/shared"))


@pytest.mark.parametrize("error", [AWAY, FULL], ids=["away", "full"])
def test_a_volume_error_during_planning_pauses_the_run(
    error: VolumeError | StorageFullError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the path; pauses grow up to two minutes."""

    def failed() -> None:
        raise error

    stand_in = SimpleNamespace(locators=RECORD.locators, is_done=True, start=lambda: None, result=failed)
    monkeypatch.setattr(plan_maker, "etl_weights", lambda state: {"w-0": 1.0})
    plans = PlanMaker(Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)}))
    monkeypatch.setattr(plans, "_preparation", lambda *given: stand_in)
    state, tries = ExperimentState(name=EXPERIMENT), list[float]()

    def note(event: Event, now: float) -> None:
        state.apply(event.model_copy(update={"seq": state.seq + 1, "time": now}))

    note(RunRequested(run="etl-1", request=EtlRequest(code=SHA, code_fingerprint=SHA)), 0.0)
    run, core = state.runs["etl-1"], cast(Core, SimpleNamespace(state=state, record=RECORD))
    for now in map(float, range(500)):
        for step in decide(RECORD, state, run, ClusterSnapshot(now=now), None):
            assert isinstance(step, Note)
            note(step.event, now)
        if run.state is RunState.QUEUED:
            tries.append(now)
            (step,) = plans.steps(core, run)
            assert isinstance(step, Note)
            note(step.event, now)
            assert waiting_for(state, run) == f"paused: {error}"
            assert run.pause.volume == error.path
    assert tries == [0.0, 15.0, 45.0, 105.0, 225.0, 345.0, 465.0]


# --- earlier fits --------------------------------------------------------------------------------


class _Away(Logs):
    """A store that does not answer the first call."""

    is_away = True

    def events(self, experiment: str, after: int = 0) -> Sequence[Event]:
        if self.is_away:
            self.is_away = False
            raise StoreUnavailableError("the store is away")
        return super().events(experiment, after)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_search_starts_with_the_models_of_earlier_fits_in_its_plan(is_known: bool, tmp_path: Path) -> None:
    """They are read in the background, again after an outage of the store. A deleted experiment fails the run."""
    earlier, logs = ended_story(), _Away()
    if is_known:
        logs.logs["one"] = earlier.log
    plans = PlanMaker(Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)}), logs)
    state = earlier.state
    request = RunRequested(run="fit-2", request=request_of("one/fit-1"))
    state.apply(request.model_copy(update={"seq": state.seq + 1, "time": 1000.0}))
    run, core = state.runs["fit-2"], cast(Core, SimpleNamespace(state=state, record=RECORD))
    (step,) = until(lambda: plans.steps(core, run), "the plan")
    assert not logs.is_away
    assert isinstance(step, Note)
    if not is_known:
        assert isinstance(step.event, RunFinished)
        assert step.event.outcome == "failed"
        assert "there is no experiment 'one': it was deleted" in step.event.error
        return
    assert isinstance(step.event, RunStarted)
    assert isinstance(step.event.plan, FitPlan)
    assert [len(each.models) for each in step.event.plan.earlier] == [4]
    assert RunStarted.model_validate_json(step.event.model_dump_json()) == step.event
