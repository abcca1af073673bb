"""Readers of a fit with a search handle each prefix of its log."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from typing import Any

import pytest

from cerebro import figures
from cerebro.cli.experiments.status import state_lines
from cerebro.client.progress.bars import bars, epoch_bars
from cerebro.client.results import FitResult
from cerebro.commands.rules import stopped_text
from cerebro.contract.events import Event, ModelsAdded, RunRequested, TaskCommitted
from cerebro.contract.runs import EvaluateRequest, NewModel, ParentCheckpoint
from cerebro.contract.search import (
    ASHA,
    PBT,
    Hyperband,
    ProcedureChoice,
)
from cerebro.errors import InstanceError
from cerebro.state import (
    ExperimentState,
    Run,
    RunState,
    schedule_lines,
    schedule_now,
    schedule_of,
    waiting_for,
)
from cerebro.state.experiment import fold
from cerebro.state.reports import state_words
from cerebro.state.reports.throughput import ThroughputMeter
from cerebro.state.reports.timeline import committed
from cerebro.state.reports.wait_reasons import needed_partitions
from cerebro.state.runs import rungs
from cerebro.state.runs.concurrent_runs import finished_models, obstacle
from controller.sharing.claims import claim
from research.simulation.scenario import EXPERIMENT
from tests.controller.searches import WORKERS, request_at, search_of, simulation

SEARCHES: dict[str, tuple[ProcedureChoice, int | None, int]] = {
    "stopping": (ASHA(), 12, 4),
    "promotion": (ASHA(rule="promotion", eta=2), 10, 4),
    "hyperband": (Hyperband(eta=2), None, 4),
    "pbt": (PBT(population=4), None, 3),
}


@cache
def search_log(name: str) -> tuple[Event, ...]:
    """Return the log of a finished search."""
    procedure, samples, epochs = SEARCHES[name]
    sim = simulation(search_of(procedure, samples=samples), epochs=epochs)
    sim.run(limit=20_000)
    return tuple(sim.log)


@cache
def ended(name: str) -> ExperimentState:
    return fold(EXPERIMENT, search_log(name))


def run_of(name: str) -> Run:
    return ended(name).runs["fit-1"]


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.slow
def test_every_reader_accepts_every_prefix_of_a_search_log(name: str) -> None:
    """Runs without models, models at rungs and clones give numbers that match the events."""
    state, meter, sub_epochs = ExperimentState(name=EXPERIMENT), ThroughputMeter(), 0
    for event in search_log(name):
        meter.observe(state, event)
        state.apply(event)
        sub_epochs += isinstance(event, TaskCommitted) and "/train/" in event.task
        run = state.runs.get("fit-1")
        if run is None or run.plan is None:
            continue
        now = event.time
        assert run.progress()[0] == sub_epochs == sum(1 for _ in committed(run))
        assert run.has_known_end is (run.search is not None and run.search.finish is not None)
        if run.is_open and not run.has_known_end:
            assert meter.throughput(run, now).time_left is None
            assert [bar.total for bar in bars(state, run, {})] == [0]
            assert needed_partitions(state, run) == set(range(WORKERS))
            assert claim(state, run, None, now).whole_s == math.inf
        found = schedule_now(state, run, now)
        assert found is None or found.makespan_s >= found.lower_bound_s - 1e-3
        assert found is None or found.is_growing is (
            run.is_open and not (run.has_known_end and _is_trained(run))
        )
        _each_model_is_at_one_rung(run)
        for each in (waiting_for(state, run), *schedule_lines(state, run, now), *state_lines(state, now=now)):
            assert isinstance(each, str)
        assert len(figures.spans(run, now)) == len({(s.task, s.attempt) for s in figures.spans(run, now)})
        assert len(list(figures.summaries(run))) == len(run.models)


def _is_trained(run: Run) -> bool:
    return all(model.is_trained or model.is_cut_short for model in run.models.values())


def _each_model_is_at_one_rung(run: Run) -> None:
    found = rungs.rungs(run)
    assert [rung.epochs for rung in found] == sorted({rung.epochs for rung in found}, reverse=True)
    here = Counter(each.model for rung in found for each in rung.models if each.fate != "goes on")
    assert here == Counter(list(run.models))
    for rung in found:
        for each in rung.models:
            model = run.models[each.model]
            assert (each.fate == "goes on") == (rung.epochs < model.epochs)
            assert each.fate != "goes on" or each.to > rung.epochs
            assert (
                each.fate not in ("waits", "goes on", "trained", "stays")
                or model.completed_epochs >= rung.epochs
            )


def test_rungs_of_a_stopping_search_show_value_and_reason() -> None:
    """The table lists promoted models first, from best to worst."""
    run = run_of("stopping")
    assert run.search is not None
    lowest = rungs.rungs(run)[-1]
    assert lowest.epochs == 1
    assert len(lowest.models) == 12
    values = [each.value for each in lowest.models if each.value is not None]
    assert values == sorted(values)
    for each in lowest.models:
        if each.fate == "stopped":
            assert each.why == run.search.verdicts[each.model]
            assert f"{each.value:.6g}" in each.why
    assert lowest.count("goes on") + lowest.count("stopped") == 12
    assert [each.fate for each in rungs.rungs(run)[0].models] == ["trained"] * 3
    line, counts = rungs.lines(run)
    assert "12 of at most 12 suggested, 12 models" in line
    assert "search over: all 12 models have ended" in line
    assert "epoch 4: 3 trained" in counts


def test_a_clone_has_only_its_own_sub_epochs_and_joins_its_parents_curve() -> None:
    """In population-based training `m04` is a clone of `m00`."""
    run = run_of("pbt")
    clones = [model for model in run.models.values() if model.lineage.sub_epochs]
    assert clones
    result = FitResult(ended("pbt"), run, None)  # type: ignore[arg-type]
    sub_epochs = result.sub_epochs()
    assert len(sub_epochs) == run.counts.sub_epochs
    assert not sub_epochs.duplicated(["ended", "worker"]).any()
    board = result.leaderboard().set_index("model")
    curves = {curve.model: curve for curve in figures.epoch_curves(run, "loss")}
    for clone in clones:
        branch = clone.inherited_epochs
        row = next(row for row in figures.summaries(run) if row.id == clone.id)
        assert str(row.parent) == f"{clone.lineage.parent} at epoch {branch}"
        assert row.effort.started == clone.kept_sub_epochs[0].started
        assert (board.loc[clone.id, "parent"], board.loc[clone.id, "branch"]) == (
            clone.lineage.parent,
            branch,
        )
        assert set(result.history().query("model == @clone.id")["epoch"]) == set(
            range(branch + 1, clone.completed_epochs + 1)
        )
        clone_curve, parent = curves[clone.id], run.models[clone.lineage.parent]
        assert (clone_curve.x[0], clone_curve.y[0]) == (
            branch,
            parent.metric("loss", branch, validated=False),
        )
        assert (clone_curve.parent, clone_curve.branch) == (clone.lineage.parent, branch)
        later = next(c for c in figures.epoch_curves(run, "loss", axis="time") if c.model == clone.id)
        parents = next(
            c for c in figures.epoch_curves(run, "loss", axis="time") if c.model == clone.lineage.parent
        )
        assert later.x[0] in parents.x
    drawn = figures.curves(list(curves.values()), metric="loss", mode="min")
    rings = next(trace for trace in drawn["data"] if trace.get("meta", {}).get("role") == "branch")
    assert len(rings["x"]) == len(clones)
    with pytest.raises(InstanceError, match="different numbers of epochs"):
        schedule_of(run)


def test_tests_wait_for_models_that_a_search_may_train_on() -> None:
    """Stopped models and models at the last rung no longer change."""
    state = ExperimentState(name=EXPERIMENT)
    for event in search_log("promotion"):
        state.apply(event)
        fits = [run for run in state.runs.values() if run.kind == "fit"]
        if any(
            {state_words.model(m, run) for m in run.models.values()} >= {"paused", "finished"} for run in fits
        ):
            break
    run = state.runs["fit-1"]
    final = finished_models(run)
    assert final
    assert all(run.models[name].epochs == 4 for name in final)
    waiting = next(m.id for m in run.models.values() if state_words.model(m, run) == "paused")
    for number, (models, is_free) in enumerate({(final[0],): True, (waiting,): False, (): False}.items()):
        request = EvaluateRequest(kind="test", fit="fit-1", split="test", models=models)
        state.apply(RunRequested(run=f"test-{number}", request=request))
        assert (obstacle(state.runs, state.runs[f"test-{number}"]) is None) is is_free


def test_a_grid_with_added_models_reports_no_share_of_epochs() -> None:
    """Models have different numbers of epochs; a stopped run reports its progress."""
    models: tuple[dict[str, Any], ...] = tuple({"lr": lr, "batch_size": 1} for lr in (0.01, 0.1))
    sim = simulation(None, epochs=3, models=models)
    new = NewModel(hyperparams=models[1], epochs=5, checkpoint=ParentCheckpoint(model="m00"))
    request_at(sim, 7.0, ModelsAdded(run="fit-1", models=(new,), by="ada"))
    sim.run(limit=20_000)
    state = fold(EXPERIMENT, sim.log)
    run = state.runs["fit-1"]
    assert run.state is RunState.FINISHED
    assert len(run.models) == 3
    assert run.models["m02"].lineage.sub_epochs
    assert not epoch_bars(run)
    done, total = run.progress()
    assert done == total == run.counts.sub_epochs
    assert any(
        "3 models" in line and "epochs trained" in line
        for line in schedule_lines(state, run, run.clock.ended)
    )
    assert "was stopped" in stopped_text(state, run)
    assert not rungs.rungs(run)
