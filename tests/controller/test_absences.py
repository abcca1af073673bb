"""Frequency and length of worker absences, over all runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.events import ClusterEvent, WorkerJoined, WorkerLost, WorkerRemoved
from cerebro.state.absences import Absences
from research.simulation.cluster import Simulation
from research.simulation.scenario import Scenario, WorkerOutage
from tests.controller.test_core import plan, request

HOUR, JOIN_S = 3600.0, 120.0
PRIOR = 1 / (20 * HOUR)


def absences_after(*events: tuple[str, str, float]) -> Absences:
    """Return the absences after a log of (what, worker, hours)."""
    found = Absences()
    for number, (what, worker, hours) in enumerate(events, 1):
        event: ClusterEvent
        if what == "joins":
            event = WorkerJoined(worker=worker, incarnation=str(number), weight=1, kinds=("train",))
        elif what == "lost":
            event = WorkerLost(worker=worker, incarnation="a", reason="killed")
        else:
            event = WorkerRemoved(worker=worker, reason="no longer wanted")
        found.apply(event.model_copy(update={"seq": number, "time": hours * HOUR}))
    return found


def test_absences_count_over_all_runs() -> None:
    """Absences do not depend on the active run."""
    events = [("joins", "a", 0.0)]
    for number in range(1, 10):
        events += [("lost", "a", number), ("joins", "a", number + 0.1)]
    known = absences_after(*events).frequency(10 * HOUR, JOIN_S)
    assert known.losses_per_s == pytest.approx(10 / (20 * HOUR + (10 - 0.9) * HOUR))
    assert known.back_s == pytest.approx((JOIN_S + 9 * 0.1 * HOUR) / 10)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 2000)), max_size=30).map(
        lambda found: sorted(found, key=lambda each: each[1])
    )
)
def test_any_log_gives_a_positive_frequency_and_a_bounded_return_time(
    changes: list[tuple[str, float]],
) -> None:
    """The frequency is positive, and the return takes at most an hour."""
    there: set[str] = set()
    events = []
    for worker, hours in changes:
        events.append(("lost" if worker in there else "joins", worker, hours))
        there ^= {worker}
    known = absences_after(*events).frequency(2000 * HOUR, JOIN_S)
    assert 0 < known.losses_per_s <= (1 + len(events)) * PRIOR
    assert 0 < known.back_s <= HOUR


@pytest.mark.parametrize("crashes", [frozenset[int](), frozenset({3, 9, 17, 30, 41})])
def test_a_restarted_controller_knows_earlier_losses(crashes: frozenset[int]) -> None:
    """It reads the cluster log at each start."""
    scenario = Scenario(
        replicas={"w0": [0, 1], "w1": [0, 1]},
        sub_epoch_time=lambda body, worker: 20.0,
        outages=[WorkerOutage(worker="w0", start=number * 70.0 + 5, length=30.0) for number in range(3)],
        lease_s=5.0,
        crash_before=crashes,
    )
    simulation = Simulation(scenario, request(4, 3), plan(4, 2))
    simulation.run()
    known = simulation.cluster_log.state.absences.frequency(simulation.now, JOIN_S)
    assert known.losses_per_s == pytest.approx(4 * PRIOR, rel=0.02)
    assert known.back_s < (JOIN_S + 3 * 31.0) / 4 + 1
