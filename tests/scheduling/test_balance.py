"""Balanced loads of workers that share partitions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cerebro.scheduling.balance import Balance

paces = st.sampled_from((0.5, 1.0, 1.0, 4.0))
works = st.sampled_from((0.0, 1.0, 10.0, 32.0))


@st.composite
def instances(draw: st.DrawFn) -> tuple[list[float], list[float], list[tuple[int, ...]]]:
    """Generate work of up to 5 partitions, paces of up to 4 workers, and the holders of each partition."""
    pace = draw(st.lists(paces, min_size=1, max_size=4))
    workers = list(range(len(pace)))
    work = draw(st.lists(works, min_size=1, max_size=5))
    held = [tuple(sorted(draw(st.sets(st.sampled_from(workers), min_size=1)))) for _ in work]
    return work, pace, held


def bound(work: Sequence[float], pace: Sequence[float], held: Sequence[tuple[int, ...]]) -> float:
    """Return the least possible largest load: the maximum of work over holder speed, for all sets of partitions."""
    found = 0.0
    for mask in range(1, 1 << len(work)):
        chosen = [p for p in range(len(work)) if mask >> p & 1]
        holders = {w for p in chosen for w in held[p]}
        found = max(found, sum(work[p] for p in chosen) / sum(1 / pace[w] for w in holders))
    return found


@settings(max_examples=100)
@given(instance=instances())
@example(instance=([32.0, 0.0, 10.0], [0.5, 0.5, 0.5, 0.5], [(0, 2, 3), (0,), (0, 1)]))
def test_all_work_is_assigned_with_nearly_minimal_load(
    instance: tuple[list[float], list[float], list[tuple[int, ...]]],
) -> None:
    """The largest load is within a few per cent of the minimum."""
    work, pace, held = instance
    loads = Balance(work, pace, held).loads
    assert sum(load / each for load, each in zip(loads, pace, strict=True)) == pytest.approx(sum(work))
    least = bound(work, pace, held)
    assert least * (1 - 1e-6) <= max(loads) <= 1.05 * least + 1e-6


@settings(max_examples=100)
@given(instance=instances(), data=st.data())
def test_another_replica_never_delays_a_partition(
    instance: tuple[list[float], list[float], list[tuple[int, ...]]], data: st.DataObject
) -> None:
    """The level predicted for the replica is an upper limit."""
    work, pace, held = instance
    balance = Balance(work, pace, held)
    partition = data.draw(st.integers(0, len(work) - 1))
    worker = data.draw(st.integers(0, len(pace) - 1))
    before, level = max(balance.loads), balance.level_with(partition, worker)
    assert level <= balance.level(partition) * (1 + 1e-6) + 1e-6 or not work[partition]
    balance.add(partition, worker)
    assert max(balance.loads) <= before * (1 + 1e-2) + 1e-6
    assert worker in balance.holders[partition]


def test_replicas_relieve_a_slow_worker() -> None:
    """One of eight workers is four times slower: alone it has 128 s of work, with two replicas a third."""
    balance = Balance([32.0] * 8, [4.0, *[1.0] * 7], [(worker,) for worker in range(8)])
    assert max(balance.loads) == 128
    assert balance.level_with(0, 1) == pytest.approx(51.2)
    balance.add(0, 1)
    balance.add(0, 2)
    assert balance.loads == pytest.approx([128 / 3] * 3 + [32] * 5)
