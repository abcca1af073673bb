"""Sub-epoch times that a restarted controller learns from its fold."""

from __future__ import annotations

import pytest

from controller.projections import sub_epoch_times
from controller.projections.sub_epoch_times import SubEpochTimes
from tests.state.compacted_runs import compacted_history


@pytest.mark.parametrize("most", [4, 10_000])
def test_a_restarted_controller_learns_from_the_newest_sub_epochs(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns them in order of completion, as in normal operation."""
    monkeypatch.setattr(sub_epoch_times, "_AT_START", most)
    run = compacted_history(0).run
    kept = sorted(
        (
            (sub_epoch.ended, model.id, sub_epoch)
            for model in run.models.values()
            for sub_epoch in model.kept_sub_epochs
        ),
        key=lambda each: each[:2],
    )
    assert len(kept) > 4
    times = SubEpochTimes.of(run)
    one_by_one = SubEpochTimes(run)
    for _, name, sub_epoch in kept[-most:]:
        one_by_one._observe(name, sub_epoch)
    assert 0 < times.estimates.observations == one_by_one.estimates.observations <= most
    worker = kept[-1][2].worker
    assert times.estimates.slowness(worker) == one_by_one.estimates.slowness(worker)
