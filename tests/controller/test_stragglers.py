"""Labels of slow workers: when they appear and when they disappear."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.contract.records import WorkerStatus
from cerebro.contract.stored.health import HealthAnswer, Pace, WorkerHealth
from cerebro.contract.tasks.bodies import EtlTask, TaskBody
from cerebro.state.worker_quarantine import SLOW_FACTOR, health_words
from controller.exclusions.stragglers import SUB_EPOCHS, WELL, Paced, label
from research.simulation.scenario import Scenario
from tests.controller.test_core import own_partition
from tests.controller.test_workers_change import simulate
from tests.kvs_api.bench import worker


def there(number: int, host: str = "") -> list[WorkerStatus]:
    records = (
        worker("a", f"worker-{each}").model_copy(update={"host": host, "kinds": ("train",)})
        for each in range(number)
    )
    return [WorkerStatus(record=record, silent_s=0.0) for record in records]


def labelled(factor: float, host: str = "", name: str = "worker-0") -> HealthAnswer:
    pace = Pace(factor=factor, sub_epochs=9, time=1.0, host=host)
    return HealthAnswer(workers={name: WorkerHealth(pace=pace)})


def took(*factors: float, sub_epochs: int = 9) -> dict[str, tuple[float, int]]:
    """Return the slowness of worker-0, worker-1 and so on, as one run measured it."""
    return {f"worker-{number}": (math.log(factor), sub_epochs) for number, factor in enumerate(factors)}


def test_a_moved_worker_is_judged_by_its_new_sub_epochs() -> None:
    """Sub-epochs before the move do not count, until enough new ones have run."""
    before, moved = labelled(3.0, "node-a"), there(3, "node-b")
    assert [*label([took(3.0, 1.0, 1.0)], moved, before)] == []
    assert [*label([took(3.0, 1.0, 1.0, sub_epochs=9 + SUB_EPOCHS - 1)], moved, before)] == []
    (found,) = label([took(3.0, 1.0, 1.0, sub_epochs=9 + SUB_EPOCHS)], moved, before)
    assert found.is_slow


@pytest.mark.slow
def test_a_slow_worker_is_labelled_and_loses_the_label_with_its_cause() -> None:
    """Status and page show the label; dispatch and replicas use the same measurement."""
    rng, slow = Random(0), 6

    def sub_epoch_time(body: TaskBody, name: str) -> float:
        nonlocal slow
        if isinstance(body, EtlTask):
            return 3000.0  # a replica takes longer than it saves
        is_slow = name == "worker-2" and slow > 0
        slow -= is_slow
        return 60.0 * (3.0 if is_slow else 1.0) * rng.lognormvariate(0, 0.1)

    simulation = simulate(
        Scenario(replicas=own_partition(3), sub_epoch_time=sub_epoch_time), models=3, epochs=14, partitions=3
    )
    known = simulation.store.workers_health()
    assert [(each.worker, each.what) for each in known.incidents] == [
        ("worker-2", "slow"),
        ("worker-2", "no longer slow"),
    ]
    assert known.incidents[0].evidence.startswith("5 of its sub-epochs take ")
    assert {*health_words(simulation.store.workers(), known, 0.0).values()} == {""}


@settings(max_examples=50)
@given(st.lists(st.floats(0.3, 6.0), min_size=2, max_size=6), st.integers(0, SUB_EPOCHS + 2))
def test_a_slow_label_needs_enough_sub_epochs(factors: list[float], sub_epochs: int) -> None:
    """The threshold is 1.5 times the median of the others, with five sub-epochs each."""
    found = list(label([took(*factors, sub_epochs=sub_epochs)], there(len(factors)), HealthAnswer()))
    if sub_epochs < SUB_EPOCHS:
        assert found == []
    for number in range(len(factors)):
        others = sorted(factors[:number] + factors[number + 1 :])
        low, high = others[(len(others) - 1) // 2], others[len(others) // 2]
        factor = factors[number] / math.sqrt(low * high)
        if abs(factor - SLOW_FACTOR) > 1e-6:
            is_slow = factor > SLOW_FACTOR and sub_epochs >= SUB_EPOCHS
            assert any(each.worker == f"worker-{number}" for each in found) == is_slow


@settings(max_examples=50)
@given(st.lists(st.floats(WELL + 0.01, SLOW_FACTOR - 0.01), max_size=20), st.booleans())
def test_labels_do_not_change_between_the_thresholds(factors: list[float], was_slow: bool) -> None:
    """Labels stay and none appear, which avoids flicker."""
    health = labelled(1.6) if was_slow else HealthAnswer()
    for factor in factors:
        assert all(each.is_slow and was_slow for each in label([took(factor, 1.0, 1.0)], there(3), health))


def test_a_lone_worker_is_not_slow() -> None:
    """A label disappears when the other workers are gone. Unknown workers keep theirs."""
    assert list(label([took(9.0)], there(1), HealthAnswer())) == []
    assert list(label([took(9.0, 1.0)], there(1), labelled(9.0))) == [Paced(worker="worker-0", is_slow=False)]
    assert list(label([], there(3), labelled(9.0))) == []


def test_a_label_does_not_follow_a_worker_to_another_node() -> None:
    """A pod on another node does not inherit the label."""
    statuses = there(1, "node-b")
    assert health_words(statuses, labelled(2.1, "node-b"), 0.0) == {
        "worker-0": "slow: its sub-epochs take 2.1 times as long as on others"
    }
    assert health_words(statuses, labelled(2.1, "node-a"), 0.0) == {"worker-0": ""}
