"""The digits example with a local S3 server: objects and metadata in a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cerebro import Experiment
from cerebro.local import cluster
from cerebro.local.supervision import processes
from examples import digits
from tests.data.objects.s3 import BUCKET, client, s3_server
from tests.waiting import HANG_S

SPLITS = {"train": 80, "valid": 24, "test": 24}
"""Few rows, since the test is about their source."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cluster started with the AWS variables of the local server."""
    folder = tmp_path / "home"
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    monkeypatch.setenv("CEREBRO_HOME", str(folder))
    with s3_server():
        cluster.start(folder, workers=2, tensorboard=False, timeout_s=HANG_S)
        yield folder
        cluster.stop(folder)
    assert processes.marked(folder) == ()


def _rows(home: Path, dataset: str, split: str) -> dict[Any, dict[str, Any]]:
    """Map row ids to fields over all volumes of the cluster."""
    found: dict[Any, dict[str, Any]] = {}
    for path in sorted((home / "volumes").glob(f"**/datasets/{dataset}/{split}/partition-*/shard-*.arrow")):
        with pa.memory_map(str(path)) as file:
            found |= {row["id"]: row for row in pa.ipc.open_file(file).read_all().to_pylist()}
    return found


@pytest.mark.slow
@pytest.mark.processes
def test_a_bucket_and_a_folder_give_the_same_rows(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket and a folder give the same tensors under the same ids, and models train."""
    monkeypatch.setattr(digits, "SPLITS", SPLITS)
    in_bucket = Experiment("bucket", locators=digits.lay_out(f"s3://{BUCKET}/digits"))
    in_folder = Experiment("folder", locators=digits.lay_out(str(tmp_path / "data")))
    assert client().head_object(Bucket=BUCKET, Key="digits/train.csv")["ContentLength"] > 0

    results = [e.run_etl(digits.DigitsETL(), seed=1, progress=False) for e in (in_bucket, in_folder)]
    assert [etl.kept_rows for etl in results] == [{**SPLITS, "predict": 24}] * 2
    for split in (*SPLITS, "predict"):
        remote, local = (_rows(home, etl.dataset, split) for etl in results)
        assert len(remote) == results[0].kept_rows[split]
        assert remote == local

    space = {"lr": [0.003, 0.01], "width": [8], "dropout": [0.0], "batch_size": [16]}
    result = in_bucket.run_fit(
        digits.DigitsTraining(), space, epochs=1, metric="accuracy", mode="max", progress=False
    )
    assert list(result.leaderboard()["state"]) == ["finished", "finished"]
    assert len(in_bucket.run_predict(progress=False)) == 24
