"""Named tuples survive conversion to bytes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.tasks.gangs import Member
from cerebro.state.models.completed_sub_epoch import (
    CheckpointFile,
    CompletedSubEpoch,
    MetricCurve,
    ReturnedMetrics,
    SubEpochTimings,
)
from cerebro.state.models.sub_epochs import CompletedSubEpochs, EpochSummary, Summaries
from tests.state.completed_sub_epochs import COMPLETED

_NUMBERS = st.floats(allow_nan=False)
_COUNTS = st.integers(-(2**63), 2**63 - 1)
_VECTORS = st.lists(_NUMBERS, max_size=4).map(tuple)
_PARALLEL_PLANS = st.sampled_from([None, ParallelPlan(technique="ddp", size=2, params={"bucket": [1, 2]})])
_NAMES = st.lists(st.text(max_size=5), max_size=3).map(tuple)


@st.composite
def sub_epochs(draw: st.DrawFn) -> CompletedSubEpoch:
    return CompletedSubEpoch(
        epoch=draw(_COUNTS),
        partition=draw(_COUNTS),
        attempt=draw(_COUNTS),
        worker=draw(st.text(max_size=5)),
        rows=draw(_COUNTS),
        returned=ReturnedMetrics(draw(_NAMES), draw(_VECTORS), draw(_NAMES), draw(_VECTORS)),
        checkpoint=CheckpointFile(draw(st.text(max_size=9)), draw(st.text(max_size=9)), draw(_COUNTS)),
        started=draw(_NUMBERS),
        ended=draw(_NUMBERS),
        timings=SubEpochTimings(*(draw(_NUMBERS) for _ in SubEpochTimings._fields)),
        peak_bytes=draw(_COUNTS),
        parallel_plan=draw(_PARALLEL_PLANS),
        other_members=draw(st.sampled_from([(), (Member(worker="b", partition=3, devices=(0, 1)),)])),
        curve=MetricCurve(draw(st.text(max_size=5)), draw(st.binary(max_size=9)), draw(st.booleans())),
    )


@given(st.lists(sub_epochs(), max_size=5), st.integers(0, 5))
def test_compacted_sub_epochs_keep_values_and_types(found: list[CompletedSubEpoch], compacted: int) -> None:
    """Each field keeps its value and type."""
    compacted = min(compacted, len(found))
    kept = CompletedSubEpochs(recent=list(found))
    kept.compact(compacted, range(compacted))
    assert [*kept] == found
    assert [_types(sub_epoch) for sub_epoch in kept] == [_types(sub_epoch) for sub_epoch in found]


def _types(value: Any) -> Any:
    return type(value), [_types(each) for each in value] if isinstance(value, tuple) else []


@st.composite
def summaries(draw: st.DrawFn) -> EpochSummary:
    names = draw(st.lists(st.text(max_size=5), max_size=4, unique=True).map(tuple))
    used = tuple(
        draw(st.lists(_PARALLEL_PLANS, max_size=2, unique_by=lambda parallel_plan: parallel_plan is None))
    )
    whole = st.integers(0, 2**40)
    return EpochSummary(
        values=tuple(draw(_NUMBERS) for _ in names),
        used_sub_epochs=tuple(float(draw(st.integers(1, 99))) for _ in used),
        used_s=tuple(draw(st.floats(0, 1e9)) for _ in used),
        reports=draw(st.sampled_from([(), (1.0, 0.5, 3.0)])),
        seconds=draw(_NUMBERS),
        compute_s=draw(_NUMBERS),
        took_s=draw(_NUMBERS),
        shown_at=draw(_NUMBERS),
        rows=draw(whole),
        trained_rows=draw(whole),
        rows_until=draw(whole),
        steps=draw(whole),
        peak_bytes=draw(whole),
        peak_gpu_bytes=draw(whole),
        returned=tuple((name, False) for name in names),
        names=names,
        used=used,
        reported=draw(st.text(max_size=5)),
        has_diverged=draw(st.booleans()),
    )


@given(st.lists(summaries(), max_size=5), st.integers(0, 5))
def test_compacted_summaries_keep_their_values_and_sums(found: list[EpochSummary], epochs: int) -> None:
    """All summaries and their prefix sums; a mean needs only part of the data."""
    kept = Summaries()
    for summary in found:
        kept.append(summary)
    assert [*kept] == found
    assert (kept.steps, len(kept)) == (sum(each.steps for each in found), len(found))
    assert kept.peaks == (
        max((each.peak_bytes for each in found), default=0),
        max((each.peak_gpu_bytes for each in found), default=0),
    )
    assert sum(used.sub_epochs for used in kept.parallel_plans) == sum(
        sum(each.used_sub_epochs) for each in found
    )
    for epoch, summary in enumerate(found, start=1):
        assert kept[epoch] == summary
        assert {name: kept.mean(epoch, name) for name in summary.names} == summary.means
        assert kept.mean(epoch, "no such name") is None
        assert kept.rows_until(epoch) == summary.rows_until
    first = kept.until(epochs)
    assert [*first] == found[:epochs]
    assert first.steps == sum(each.steps for each in found[:epochs])


def test_compaction_clamps_numbers_to_64_bits() -> None:
    """A worker may report any number; compaction must not fail."""
    kept = CompletedSubEpochs(recent=[COMPLETED._replace(peak_bytes=2**70, rows=-(2**70))])
    kept.compact(1, {0})
    assert (kept[0].peak_bytes, kept[0].rows) == (2**63 - 1, -(2**63))
