"""A completed sub-epoch for tests."""

from __future__ import annotations

from cerebro.state.models.completed_sub_epoch import (
    CheckpointFile,
    CompletedSubEpoch,
    ReturnedMetrics,
    SubEpochTimings,
)

COMPLETED = CompletedSubEpoch(
    epoch=1,
    partition=0,
    attempt=1,
    worker="worker-0",
    rows=5,
    returned=ReturnedMetrics((), ()),
    checkpoint=CheckpointFile("u0", "-", 1),
    started=0.0,
    ended=1.0,
    timings=SubEpochTimings(load_s=0.0, compute_s=1.0, save_s=0.0),
)
"""A sub-epoch of one second. Tests replace the fields that they read."""
