"""Where examples and users store data."""

from __future__ import annotations

from pathlib import Path

import pytest

import cerebro


def test_the_data_folder_is_visible_to_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster, the shared volume if it is mounted and writable; otherwise next to the local cluster."""
    monkeypatch.setenv("CEREBRO_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CEREBRO_VOLUMES", str(tmp_path))
    monkeypatch.setenv("CEREBRO_SERVER", "http://kvs-api:7070")
    beside = tmp_path / "home/digits"
    assert cerebro.data_folder("digits") == beside
    (tmp_path / "shared").mkdir()
    assert cerebro.data_folder("digits") == tmp_path / "shared/digits"
    monkeypatch.delenv("CEREBRO_SERVER")
    assert cerebro.data_folder("digits") == beside
