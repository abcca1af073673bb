"""The number of prefetch threads follows measured passes and never changes the data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cerebro.data.loader import PartitionLoader
from cerebro.data.prefetch_tuning import NEXT_ONE, ON_DEMAND, Ahead, PassTimes, Reading, ReadingAhead
from tests.data.rows import write_partition

ROWS, BATCH = 1000, 100
_SECONDS = st.floats(1e-6, 1e3)


def times(gather_s: float, step_s: float, *, waiting: float = 0.0, num_bytes: int = 1000) -> PassTimes:
    """Times of a pass of 10 batches with these seconds to gather and to use each."""
    return PassTimes(ROWS, 10 * gather_s, 10 * gather_s * (1 - waiting), 10 * step_s, 10, num_bytes)


def after(*passes: PassTimes, cores: int = 8, memory: int | None = None) -> ReadingAhead:
    reader = ReadingAhead(cores, memory)
    for each in passes:
        reader.learn("m", each)
    return reader


def test_without_measurements_the_defaults_apply() -> None:
    """Without measurements: on demand on the CPU, one batch ahead on other devices."""
    for known in (after(), after(PassTimes(0, 0, 0, 0, 0, 0))):
        assert known.ahead("m", BATCH, is_on_host=True) == ON_DEMAND
        assert known.ahead("m", BATCH, is_on_host=False) == NEXT_ONE


def test_threads_gather_a_fifth_faster_than_batches_are_used() -> None:
    """Limited by the free cores."""
    assert after(times(2.0, 1.0)).ahead("m", BATCH, is_on_host=False) == Ahead(3, 4)
    assert after(times(0.1, 1.0)).ahead("m", BATCH, is_on_host=False) == Ahead(1, 2)
    assert after(times(2.0, 1.0), cores=3).ahead("m", BATCH, is_on_host=False) == Ahead(2, 3)
    assert after(times(2.0, 1.0)).ahead("m", 2 * BATCH, is_on_host=False).threads == 5


def test_threads_that_wait_for_storage_need_no_core() -> None:
    """So more threads than cores are possible."""
    slow = after(times(2.0, 1.0, waiting=0.9), cores=2)
    assert slow.ahead("m", BATCH, is_on_host=True) == Ahead(3, 4)
    assert after(times(9.0, 1.0, waiting=1.0), cores=1).ahead("m", BATCH, is_on_host=True).threads == 11


def test_cpu_training_reads_ahead_only_if_reading_waits() -> None:
    """A thread would take as much CPU from training as it saves, and a short wait is not worth one."""
    assert after(times(2.0, 1.0)).ahead("m", BATCH, is_on_host=True) == ON_DEMAND
    assert after(times(0.02, 1.0, waiting=0.9)).ahead("m", BATCH, is_on_host=True) == ON_DEMAND


def test_a_partition_in_memory_needs_no_threads() -> None:
    """The newest passes count."""
    known = after(times(2.0, 1.0, waiting=0.9), *(times(0.01, 1.0) for _ in range(4)))
    assert known.ahead("m", BATCH, is_on_host=True) == ON_DEMAND


def test_each_model_has_its_own_measurements() -> None:
    """A model without measurements uses the other models'."""
    known = after(times(1.0, 1.0))
    known.learn("slow", times(1.0, 100.0))
    assert known.ahead("slow", BATCH, is_on_host=False).threads == 1
    assert known.ahead("m", BATCH, is_on_host=False).threads == 2
    assert known.ahead("new", BATCH, is_on_host=False).threads == 1


@given(
    passes=st.lists(
        st.builds(times, _SECONDS, _SECONDS, waiting=st.floats(0, 1), num_bytes=st.integers(0, 10**12)),
        max_size=5,
    ),
    cores=st.integers(1, 128),
    memory=st.none() | st.integers(0, 10**12),
    batch=st.integers(1, 10**5),
    is_on_host=st.booleans(),
)
def test_threads_and_memory_are_bounded(
    passes: list[PassTimes], cores: int, memory: int | None, batch: int, is_on_host: bool
) -> None:
    """At most 16 threads, one batch each, and a tenth of the memory, for any measurements."""
    known = after(*passes, cores=cores, memory=memory)
    threads, depth = found = known.ahead("m", batch, is_on_host=is_on_host)
    if found in (ON_DEMAND, NEXT_ONE):
        return
    assert 1 <= threads <= min(16, depth)
    assert depth <= threads + 1
    newest = known._row_bytes.value
    if memory is not None and newest:
        assert depth * newest * batch <= 0.1 * memory * (1 + 1e-9)


@pytest.mark.parametrize("ahead", [Ahead(1, 1), Ahead(1, 2), Ahead(3, 4), Ahead(16, 17)])
def test_reading_ahead_yields_bit_identical_batches(tmp_path: Path, ahead: Ahead) -> None:
    """In the same order in each pass, also from the middle."""
    folder = tmp_path / "p"
    write_partition(folder, [17, 0, 25, 11])
    messages: list[PassTimes] = []

    def passes(reading: Reading | None) -> list[list[torch.Tensor]]:
        loader = PartitionLoader([folder], batch_size=7, seed=3, first=2)
        loader.reading = reading
        return [[tensor for pair in loader for tensor in (*pair, torch.tensor(loader.ids))] for _ in range(2)]

    plain, found = passes(None), passes(Reading(ahead, messages.append))
    for one, other in zip(plain, found, strict=True):
        assert len(one) == len(other) > 6
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
    assert [each.used for each in messages] == [len(each) // 3 for each in plain]
    assert all(each.gather_s > 0 and each.num_bytes > 0 and each.busy_s >= 0 for each in messages)
