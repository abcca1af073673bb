"""Workers run users' own search procedures, also when processes die."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro import GP, TPE, Random, loguniform
from cerebro.contract.events import SearchDecided, TaskAssigned, TaskCommitted
from cerebro.search import Action, Reached, Report
from cerebro.state import RunState
from tests.e2e.conftest import MakeLab
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyTraining
from tests.e2e.test_search import SETTINGS, SPACE, check_complete, run_of
from tests.search.own_procedures import Halving

pytestmark = pytest.mark.slow


class Licensed(Halving):
    """A procedure that needs a file once a model has finished."""

    def __init__(self, path: Path) -> None:
        super().__init__(models=4)
        self.path = path

    def on_report(self, report: Report) -> list[Action]:
        """Report as `Halving` does."""
        if isinstance(report, Reached):
            self.path.open().close()
        return super().on_report(report)


def test_an_own_procedure_survives_its_controller_and_a_worker(own_lab: MakeLab) -> None:
    """Both are killed. Each report is answered once and each action is carried out once."""
    lab = own_lab(workers=2)
    experiment = lab.prepared()
    procedure = Halving(models=8)
    procedure.sampler = TPE(startup=3)
    fit = lab.spawn(
        lambda: (
            type(experiment)
            .attach(experiment.name)
            .run_fit(TinyTraining(), SPACE, epochs=4, search=procedure, **SETTINGS)
        )
    )
    log = lab.log(experiment)
    log.until(lambda event: isinstance(event, TaskAssigned) and "/search/" in event.task, "a question")
    lab.kill("controller")
    log.until(lambda event: isinstance(event, SearchDecided) and event.number == 6, "decision 6")
    assignment = log.until(
        lambda event: isinstance(event, TaskAssigned) and "/search/" in event.task, "another"
    )
    assert isinstance(assignment, TaskAssigned)
    lab.kill(assignment.worker)
    result = lab.result(fit, experiment)
    assert result.failures() == {}
    run = run_of(lab, experiment)
    check_complete(run)
    assert run.search is not None
    assert run.search.finish == "the best is trained to the end"
    assert [model.completed_epochs for model in run.models.values()].count(4) == 2
    assert len(run.models) == 8
    events = [event for event in log.read() if "/search/" in getattr(event, "task", "")]
    answered = [event.task for event in events if isinstance(event, TaskCommitted)]
    assert len(answered) == len(set(answered))
    assert all(event.devices == () for event in events if isinstance(event, TaskAssigned))


def test_a_procedure_that_raises_pauses_the_run_until_the_cause_is_fixed(lab: Lab, tmp_path: Path) -> None:
    """The reason has the procedure's traceback; after the fix the search continues normally."""
    experiment = lab.prepared()
    missing = tmp_path / "licence"
    fit = lab.spawn(
        lambda: (
            type(experiment)
            .attach(experiment.name)
            .run_fit(TinyTraining(), SPACE, epochs=2, search=Licensed(missing), **SETTINGS)
        )
    )
    log = lab.log(experiment)
    log.until_type("RunPaused")
    run = run_of(lab, experiment)
    assert "No such file or directory" in run.pause.reason
    assert "self.path.open().close()" in run.pause.reason
    missing.touch()
    experiment.resume(run.id)
    assert lab.result(fit, experiment).failures() == {}
    run = run_of(lab, experiment)
    check_complete(run)
    assert run.state is RunState.FINISHED
    assert len(run.models) == 4


class Mistaken(Halving):
    """A procedure that fails when the first model finishes."""

    def on_report(self, report: Report) -> list[Action]:
        """Report as `Halving` does, but with the mistake."""
        return [self.nothing] if isinstance(report, Reached) else super().on_report(report)  # type: ignore[attr-defined]


def test_a_user_fixes_a_procedure_and_the_search_continues(lab: Lab) -> None:
    """The fixed class gets all reports again and decides where the first one failed."""
    experiment = lab.prepared()
    fit = lab.spawn(
        lambda: (
            type(experiment)
            .attach(experiment.name)
            .run_fit(TinyTraining(), SPACE, epochs=2, search=Mistaken(models=4), **SETTINGS)
        )
    )
    log = lab.log(experiment)
    log.until_type("RunPaused")
    assert "'Mistaken' object has no attribute 'nothing'" in run_of(lab, experiment).pause.reason
    experiment.resume(search=Halving(models=4))
    assert lab.result(fit, experiment).failures() == {}
    run = run_of(lab, experiment)
    check_complete(run)
    assert run.search is not None
    assert run.search.finish == "the best is trained to the end"


def test_etl_workers_answer_requests_of_searches(pods: Lab) -> None:
    """ETL workers run the procedure and sample by a Gaussian process; training workers are not asked.

    The controller has neither SciPy nor torch.
    """
    experiment = pods.prepared()
    space = {**SPACE, "wd": loguniform(1e-6, 1e-2)}
    by_gp = Random(active=2, sampler=GP(startup=2))
    for search, samples, kind in ((Halving(models=4), None, "actions"), (by_gp, 8, "suggestions")):
        given = {"epochs": 1, "samples": samples, "search": search, **SETTINGS}
        assert experiment.run_fit(TinyTraining(), space, **given).failures() == {}
        run = run_of(pods, experiment)
        check_complete(run)
        assert len(run.models) == (samples or 4)
        tasks = [task for task in run.tasks.by_key.values() if task.key.kind == "search"]
        assert {(task.key.request or "").partition("-")[0] for task in tasks} == {kind}
        assert {task.attempts[-1].worker for task in tasks} <= {"worker-0-etl", "worker-1-etl"}
