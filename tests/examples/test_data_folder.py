"""Where `examples/digits.py` writes its data unless it is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import digits


def test_data_go_where_workers_see_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a cluster onto the shared volume, if it is mounted and may be written to; else beside the local cluster."""
    monkeypatch.setenv("CEREBRO_HOME", str(tmp_path / "home"))
    beside = tmp_path / "home/examples/digits"
    inside = {"CEREBRO_VOLUMES": str(tmp_path), "CEREBRO_SERVER": "http://kvs-api:7070"}
    assert digits.data_folder(inside) == beside
    (tmp_path / "shared").mkdir()
    assert digits.data_folder(inside) == tmp_path / "shared/examples/digits"
    assert digits.data_folder({"CEREBRO_VOLUMES": str(tmp_path)}) == beside
