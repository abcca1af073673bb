"""`examples/criteo.py`: its files, and a small run as a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from cerebro import Experiment
from cerebro.local import cluster
from examples import criteo
from tests.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[2]


def test_each_row_of_the_text_is_in_one_split(tmp_path: Path) -> None:
    """With its line number as id, and null for empty fields."""
    criteo.synthesize(tmp_path / "train.txt", 300)
    located = criteo.lay_out(tmp_path / "train.txt", tmp_path)
    lines = [line.split("\t") for line in (tmp_path / "train.txt").read_text().splitlines()]
    tables = {split: pa.parquet.read_table(each["metadata"]) for split, each in located.items()}
    rows = {row["id"]: row for table in tables.values() for row in table.to_pylist()}
    assert {split: table.num_rows for split, table in tables.items()} == {
        "train": 270,
        "valid": 15,
        "test": 15,
    }
    assert sorted(rows) == list(range(300))
    for number, cells in enumerate(lines):
        values = [rows[number][name] for name in ("click", *criteo.COUNTS, *criteo.CATEGORIES)]
        assert ["" if value is None else str(value) for value in values] == cells


def test_missing_and_negative_values_are_preprocessed(tmp_path: Path) -> None:
    """The real file has such values."""
    (tmp_path / "train.txt").write_text("1\t-2\t" + "\t" * 12 + "68fd1e64\t" + "\t" * 24 + "\n")
    located = criteo.lay_out(tmp_path / "train.txt", tmp_path)
    table = pa.parquet.read_table(located["valid"]["metadata"])
    inputs, clicks = criteo.CriteoETL(100).batch_preprocessor(table.to_batches()[0], "valid", "")
    assert inputs["counts"].tolist() == [[0.0] * 13]
    assert inputs["buckets"].shape == (1, 26)
    assert clicks.tolist() == [1.0]


def test_an_invalid_line_is_an_error(tmp_path: Path) -> None:
    """Arrow's error names the line."""
    (tmp_path / "train.txt").write_text("1\t2\t3\n")
    with pytest.raises(pa.ArrowInvalid, match="Expected 40 columns, got 3"):
        criteo.lay_out(tmp_path / "train.txt", tmp_path)


@pytest.mark.slow
@pytest.mark.processes
def test_the_small_example_finishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On its own cluster; its models learn the signal."""
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    monkeypatch.setenv("CEREBRO_HOME", str(tmp_path))
    command = [sys.executable, str(ROOT / "examples" / "criteo.py"), "--small"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=dict(os.environ), timeout=4 * HANG_S, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        board = Experiment.attach("criteo").result().leaderboard()
        assert len(board) == 4
        assert board["auc"].max() > 0.7
    finally:
        cluster.stop(tmp_path)
