"""Time ranges of a log that is truncated while it grows equal the complete fold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.tasks.bodies import TaskBody
from cerebro.contract.tasks.failures import Failure, FailureKind
from cerebro.state import log_pages
from cerebro.state.experiment import fold
from cerebro.state.log_pages import Log, LogPages
from cerebro.state.reports.timeline import task_attempts
from research.simulation.cluster import Simulation
from research.simulation.scenario import EXPERIMENT, Scenario, WorkerOutage
from tests.controller.test_core import own_partition, plan, request


@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_any_time_range_of_a_truncated_log_equals_the_fold(data: st.DataObject) -> None:
    """The run has validations, failures, lost checkpoints and a lost worker; each sub-epoch of the fold appears."""
    kinds = (FailureKind.CRASH, FailureKind.CHECKPOINT)
    failing = data.draw(
        st.dictionaries(st.integers(0, 30), st.sampled_from(kinds), max_size=4), label="fails"
    )
    attempts = iter(range(1_000_000))

    def outcome(body: TaskBody, attempt: int, worker: str) -> Failure | None:
        kind = failing.get(next(attempts)) if attempt == 1 else None
        return Failure(kind=kind, message="drawn") if kind else None

    away = data.draw(st.floats(0, 15), label="away")
    scenario = Scenario(
        replicas=own_partition(2),
        keeps_every=data.draw(st.integers(10, 40), label="every"),
        outcome=outcome,
        outages=[WorkerOutage(worker="worker-1", start=away, length=3.0)],
    )
    simulation = Simulation(scenario, request(3, 3), plan(3, 2, validated=True))
    simulation.run(limit=20_000)
    events = simulation.store.events(EXPERIMENT)
    run = fold(EXPERIMENT, events).runs["fit-1"]
    assert simulation.store.segments(EXPERIMENT).segments
    ends = st.floats(events[0].time, events[-1].time)
    since, until = sorted((data.draw(ends, label="one end"), data.draw(ends, label="other end")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_pages, "PAGE", 25)
        window = LogPages(simulation.store).window(Log(EXPERIMENT, 0.0, len(events)), "fit-1", since, until)
    found = {(str(each.key), each.attempt.number): each.sub_epoch for each in window.task_attempts}
    for known in task_attempts(run):
        attempt = known.attempt
        began = attempt.started or attempt.assigned
        if began <= until and attempt.ended >= since:
            sub_epoch = found.pop((str(known.key), attempt.number))
            assert known.sub_epoch in (sub_epoch, None)
    assert not found
