"""A preempted preprocessing job stops at its next row and keeps its complete shards."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cerebro.data.partitions import complete_shards
from cerebro.errors import PreemptedError
from cerebro.spec import Mode
from cerebro.worker.preprocessing.job import EtlProgress
from tests.etl_worker.jobs import FailOn, make_job, notes, nothing, own_children, preprocess, stored

pytestmark = pytest.mark.processes

ROWS = 90


class Steady(FailOn):
    """A spec that sleeps briefly for each row."""

    def row_preprocessor(self, row: Mapping[str, Any], mode: Mode, object_dir: str) -> tuple[Any, Any]:
        """See `ETLSpec`."""
        threading.Event().wait(0.02)
        return super().row_preprocessor(row, mode, object_dir)


def leave(progress: EtlProgress) -> None:
    """Raise after the first row, as the handler does when its agent requests the release."""
    if 0 < progress.rows_done < progress.rows_total:
        raise PreemptedError("SIGTERM")


@pytest.mark.parametrize("cores", [1, 3])
def test_a_job_is_preempted_at_its_next_row_and_resumed_later(tmp_path: Path, cores: int) -> None:
    """Core processes end too, and partial files are removed."""
    job = make_job(tmp_path, list(range(ROWS)), cores=cores)
    with pytest.raises(PreemptedError):
        preprocess(job, lambda: Steady([], tmp_path / "before"), leave)
    assert 0 < len(notes(tmp_path / "before")) < ROWS
    assert own_children() == []
    assert list(job.output_folder.glob(".*")) == []
    assert not job.cache_folder.exists()
    kept = sum(shard.rows_in for shard in complete_shards(job.output_folder))
    preprocess(job, lambda: FailOn([], tmp_path / "after"), nothing)
    assert len(notes(tmp_path / "after")) == ROWS - kept
    assert stored(job.output_folder) == {value: [value * 2, value] for value in range(ROWS)}
