"""Resource recommendations follow from measured usage, and need enough samples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.cli.administration.recommend import lines
from cerebro.client.recommendation import MIN_SAMPLES, ContainerUsage, Recommendation, recommend
from cerebro.contract.records import UsageSample, WorkerRecord, WorkerUsage

GIB, STEP = 1 << 30, 256 << 20


def container_usage(
    memory: list[int], *, cores: float = 1.0, limit: int | None = None, kinds: tuple[str, ...] = ("train",)
) -> ContainerUsage:
    """A container with a memory sample every 30 s."""
    record = WorkerRecord(worker="w", incarnation="a", weight=1, cores=4, kinds=kinds)
    return ContainerUsage(
        record=record,
        samples=[
            UsageSample(
                time=30.0 * n,
                usage=WorkerUsage(cores_used=cores, cores=4, memory_bytes=used, memory_limit_bytes=limit),
            )
            for n, used in enumerate(memory)
        ],
    )


def of_trainers(found: dict) -> Recommendation:  # type: ignore[type-arg]
    recommendation = found["worker"]
    assert isinstance(recommendation, Recommendation)
    return recommendation


@given(
    memory=st.lists(st.integers(0, 64 * GIB), min_size=MIN_SAMPLES, max_size=60),
    peaks=st.lists(st.integers(1, 64 * GIB), max_size=60),
)
def test_recommended_limits_exceed_the_observed_peaks(memory: list[int], peaks: list[int]) -> None:
    """The limit exceeds both peaks and is at least the request; both are rounded to steps."""
    found = of_trainers(recommend([container_usage(memory)], peaks))
    most = max(memory + [min(memory) + peak for peak in peaks])
    assert found.peak_bytes == most
    assert found.limit_bytes >= max(1.3 * most, found.request_bytes)
    assert found.limit_bytes <= max(1.3 * most + STEP, found.request_bytes)
    assert found.request_bytes % STEP == found.limit_bytes % STEP == 0
    assert found.request_bytes > 0


@given(
    memory=st.lists(st.integers(0, 64 * GIB), max_size=MIN_SAMPLES - 1),
    peaks=st.lists(st.integers(1, 64 * GIB), max_size=MIN_SAMPLES - 1),
)
def test_few_samples_give_no_recommendation(memory: list[int], peaks: list[int]) -> None:
    """Few samples, or few sub-epochs."""
    assert recommend([container_usage(memory)], peaks) == {"worker": None}


def test_the_command_prints_values_for_the_chart(capsys: pytest.CaptureFixture[str]) -> None:
    """As YAML for a values file, and only changed values."""
    found = of_trainers(recommend([container_usage([GIB] * 30, limit=8 * GIB)], []))
    assert lines("worker", found) == [
        "containers that train: at most 1.00 GiB of memory were used, with a limit of 8.00 GiB "
        "(0 sub-epochs, 30 samples at work)",
        "  worker: {resources: {worker: {requests: {cpu: 1.5, memory: 1280Mi}, limits: {memory: 1536Mi}}}}",
    ]
    fits = of_trainers(recommend([container_usage([GIB] * 30, cores=3.5, limit=1536 << 20)], []))
    assert lines("worker", fits)[-1] == "  the present values fit"
    assert lines("etl", None) == [
        "containers that preprocess: too few measurements, less than 20 sub-epochs or samples at work"
    ]
