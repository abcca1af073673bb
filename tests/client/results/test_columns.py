"""The line about data warnings at the end of `run_etl`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from cerebro.client.files import MountedFiles
from cerebro.client.results import warning_line
from cerebro.contract.runs import EtlPlan, PartitionPlan
from cerebro.data.statistics.data import DataStatistics, write_statistics
from cerebro.data.statistics.observation import observe_metadata
from cerebro.data.statistics.row_hashes import RowHashes
from cerebro.runtime.volumes import Volumes

PLAN = EtlPlan(
    dataset="d",
    splits={"train": tuple(PartitionPlan(partition=n, worker="worker-0", rows=2) for n in range(2))},
)


def test_damaged_statistics_do_not_fail_a_successful_run(tmp_path: Path) -> None:
    """The run has ended, so the line is left out, whatever the damage."""
    volumes = Volumes.from_environment({"CEREBRO_VOLUMES": str(tmp_path)})
    statistics = DataStatistics(
        columns=(observe_metadata([pa.record_batch({"same": [1, 1]})], "same"),),
        hashes=RowHashes.of(np.array([1, 2], np.uint64)),
    )
    paths = [volumes.statistics("d", "train", partition) for partition in range(2)]
    for path in paths:
        write_statistics(path, statistics)
    files = MountedFiles(volumes)
    assert "2 rows of train" in warning_line(PLAN, files)
    damaged = json.loads(paths[1].read_bytes())
    damaged["hashes"]["counts"] = ""
    for content in (json.dumps(damaged).encode(), b"[]", b"{", b"\xff"):
        paths[1].write_bytes(content)
        assert warning_line(PLAN, files) == ""
