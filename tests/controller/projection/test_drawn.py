"""TensorBoard files have sub-epochs, epochs and live metrics once each, in one file per model."""

from __future__ import annotations

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cerebro.contract.events import EpochCompleted
from tests.controller.projection.written import contents, file_of, file_of_run, records, story


def test_sub_epochs_epochs_and_live_metrics_are_written(written: Path) -> None:
    """Sub-epochs by number, epochs as row-weighted means and validations, live metrics by rows."""
    accumulator = EventAccumulator(str(file_of(written).parent)).Reload()
    assert accumulator.file_version == 2.0
    series = {
        tag: [(event.step, round(event.value, 4)) for event in accumulator.Scalars(tag)]
        for tag in accumulator.Tags()["scalars"]
    }
    assert series == {
        "sub_epoch/train/loss": [(1, 4.0), (2, 2.0), (3, 1.5), (4, 1.0)],
        "sub_epoch/train/accuracy": [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)],
        "epoch/train/loss": [(1, 2.5), (2, 1.125)],
        "epoch/train/accuracy": [(1, 0.4375), (2, 0.9375)],
        "epoch/valid/loss": [(1, 3.0), (2, 2.5)],
        "live/loss": [(5, 2.05), (8, 2.08), (30, 1.2), (45, 1.05)],
    }


def test_a_run_has_a_file_with_the_schedule_quality_of_its_epochs(written: Path) -> None:
    """Makespan, lower bound, gap and total idle time, at the time of the epoch's completion."""
    log = story().log
    messages = [event for event in log if isinstance(event, EpochCompleted)]
    assert records(file_of_run(written)) == [
        (f"schedule/{name}", report.epoch, report.time, round(value, 5))
        for report in messages
        for name, value in (
            ("gap", report.makespan_s / report.lower_bound_s - 1),
            ("idle_s", sum(report.idle_s.values())),
            ("lower_bound_s", report.lower_bound_s),
            ("makespan_s", report.makespan_s),
        )
    ]
    assert {path.parent for path in contents(written)} == {
        file.parent.relative_to(written)
        for file in (file_of(written), file_of(written, "m01"), file_of_run(written))
    }


def test_retried_attempts_and_redone_sub_epochs_leave_no_duplicates(written: Path) -> None:
    """One attempt failed and one sub-epoch was committed twice, but each (tag, step) is unique."""
    found = [(tag, step) for tag, step, _, _ in records(file_of(written))]
    assert len(found) == len(set(found))
