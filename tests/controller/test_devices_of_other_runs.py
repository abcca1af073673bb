"""The log records the use of a run's devices by other runs, and reports account for it."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings

from cerebro.contract.events import ControllerEvent, DevicesTaken, Event, RunFinished
from cerebro.contract.rest import api
from cerebro.state import ExperimentState, Run, schedule_now
from cerebro.state.experiment import fold
from cerebro.state.reports.schedule_report import epoch_report
from cerebro.state.reports.timeline import busy
from controller.decisions.decide import Step
from controller.sharing.taken import TakenTime
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Scenario
from tests.controller.side_by_side import FITS, Fits, core_of, neighbour
from tests.controller.test_core import own_partition, plan, request
from tests.state.stories import Story, sub_epoch

_NEW_S = 1.0
"""Newer spans need no report, and shorter gaps between foreign tasks count as foreign."""

Spans = dict[tuple[str, int], list[tuple[float, float]]]


def own_spans(run: Run) -> Spans:
    """Return the run's own use of each device, in order."""
    found: defaultdict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for each in busy(run, run.clock.ended):
        for device in each.devices:
            if each.started < each.ended:
                found[each.worker, device].append((each.started, each.ended))
    return {place: sorted(spans) for place, spans in found.items()}


def recorded_spans(run: Run) -> Spans:
    """Return the recorded use by other runs."""
    found: defaultdict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for spans in run.device_time.taken.values():
        for span in spans:
            found[span.worker, span.device].append((span.since, span.until))
    return {place: sorted(spans) for place, spans in found.items()}


def seconds_in(spans: list[tuple[float, float]], begin: float, end: float) -> float:
    return sum(max(0.0, min(end, until) - max(begin, since)) for since, until in spans)


def states(simulation: Simulation) -> dict[str, ExperimentState]:
    return {name: fold(name, simulation.store.events(name)) for name in simulation.cores}


@settings(deadline=None, max_examples=15)
@given(fits=FITS)
def test_the_log_records_exactly_the_use_by_other_runs(fits: Fits) -> None:
    """The record never overlaps the run's own use, also after crashes; no run beats its bound."""
    simulation = fits.simulated(max_open=4)
    runs = {name: (state, state.runs["fit-1"]) for name, state in states(simulation).items()}
    for name, (state, run) in runs.items():
        theirs: defaultdict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
        for other, (_, each) in runs.items():
            if other != name:
                for place, spans in own_spans(each).items():
                    theirs[place] += spans
        mine, noted = own_spans(run), recorded_spans(run)
        for place, spans in noted.items():
            assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
            for since, until in spans:
                assert seconds_in(mine.get(place, []), since, until) == pytest.approx(0, abs=1e-6)
                between = _NEW_S * (1 + len(theirs[place]))
                assert seconds_in(theirs[place], since, until) >= until - since - between
        for place, spans in theirs.items():
            missing = 0.0
            for span in spans:
                since, until = max(span[0], run.zero), min(span[1], run.clock.ended)
                missing += max(0.0, until - since) - seconds_in(noted.get(place, []), since, until)
            assert missing <= _NEW_S + 1e-6
        found = schedule_now(state, run, run.clock.ended)
        assert found is not None
        assert found.lower_bound_s <= found.makespan_s + 1e-6
        assert found.idle_s >= 0
        assert all(report.lower_bound_s <= report.makespan_s + 1e-6 for report in run.scheduling.epochs)


def shared(sub_epoch_s: float, *, models: int, others: int, workers: int = 4, epochs: int = 3) -> Simulation:
    """A fit, alone or with another fit of `others` models; sub-epoch times vary by up to a fifth."""
    scenario = Scenario(
        replicas=own_partition(workers),
        sub_epoch_time=lambda body, worker: sub_epoch_s * Random(f"{body.key} {worker}").uniform(0.9, 1.1),
    )
    simulation = Simulation(
        scenario,
        request(models, epochs),
        plan(models, workers),
        neighbours=[neighbour("other", others, epochs, workers=workers)] if others else [],
        max_open=2,
    )
    simulation.run()
    return simulation


def gap_of(events: Sequence[Event]) -> float:
    state = fold(EXPERIMENT, [*events])
    run = state.runs["fit-1"]
    found = schedule_now(state, run, run.clock.ended)
    assert found is not None
    return found.gap


@pytest.mark.slow
@pytest.mark.parametrize(("models", "others"), [(4, 8), (8, 8)])
def test_the_gap_counts_only_the_devices_that_the_run_had(models: int, others: int) -> None:
    """Without the record, half of the time would seem lost."""
    beside, alone = (shared(10.0, models=models, others=count) for count in (others, 0))
    bare = [
        event.model_copy(update={"seq": 0}) for event in beside.log if not isinstance(event, DevicesTaken)
    ]
    assert gap_of(beside.log) == pytest.approx(gap_of(alone.log), abs=0.05)
    assert gap_of(bare) > 0.5
    assert not any(isinstance(event, DevicesTaken) for event in alone.log)


@pytest.mark.parametrize("event", [RunFinished(run="fit-1", outcome="finished"), "epoch"])
def test_a_run_is_reported_once_with_slow_writes(event: ControllerEvent | str) -> None:
    """The run is reported and judged once, although more foreign use follows; other decisions do not wait."""
    story, other = Story(), Story()
    story.fit(models=2)
    other.fit(models=2)
    story.epoch(1)
    story.epoch(1, model="m01")
    for number in range(2):
        other.start(sub_epoch(1, number, model=f"m{number:02}"), number)
    judged = api.Note(event=epoch_report(story.state, story.run, 1) if isinstance(event, str) else event)
    beside = api.Dequeue(run="fit-9")
    taken_time, cores = TakenTime(), [core_of(story), core_of(other, "two")]
    open_runs = [(core, core.state.runs["fit-1"]) for core in cores]
    now, num_requests, written = story.time + 30.0, 0, list[Step]()
    while judged not in written:
        num_requests += 1
        assert num_requests <= 2
        story.time = now
        for core, steps in taken_time.noted(cores[0], story.run, [judged, beside], open_runs, now):
            if core is cores[0]:
                written += steps
                story.append(
                    *(s.event for s in steps if isinstance(s, api.Note) and isinstance(s.event, DevicesTaken))
                )
                assert beside in steps
        now += 2.0
    assert sum(isinstance(s, api.Note) and isinstance(s.event, DevicesTaken) for s in written) == 1
