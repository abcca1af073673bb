"""A run whose plan fails for a volume pauses with the reason, and is planned again after growing pauses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from cerebro.contract.events import Event, RunRequested
from cerebro.contract.records import ExperimentRecord, Locator, Locators
from cerebro.contract.rest.api import Note
from cerebro.contract.runs import EtlRequest
from cerebro.errors import StorageFullError, VolumeError
from cerebro.runtime.volumes import Volumes
from cerebro.state import ExperimentState, RunState
from cerebro.state.reports.wait_reasons import waiting_for
from controller.decisions.core import Core
from controller.decisions.decide import decide
from controller.preparation import plan_maker
from controller.preparation.plan_maker import PlanMaker
from controller.scaling.cluster_snapshot import ClusterSnapshot
from research.simulation.scenario import EXPERIMENT
from tests.state.stories import SHA

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
