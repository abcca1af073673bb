"""`cerebro selftest` on a real local cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.cli import main
from tests.waiting import HANG_S

pytestmark = pytest.mark.slow


def test_the_selftest_passes_and_leaves_no_data(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ETL, fit and checks: exit status 0, a leaderboard, and an empty folder on the shared volume."""
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    monkeypatch.setenv("CEREBRO_HOME", str(home))
    status = main(["selftest", "--home", str(home), "--timeout", f"{4 * HANG_S:g}"])
    output, problem = capsys.readouterr()
    assert status == 0, output + problem
    assert "16 sub-epochs, each committed exactly once" in output
    assert "m03" in output
    assert list((home / "volumes" / "shared" / "selftest").iterdir()) == []


def test_the_selftest_ends_at_its_time_limit(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit ends it at any step with exit status 1, and its data is removed."""
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    monkeypatch.setenv("CEREBRO_HOME", str(home))
    assert main(["selftest", "--home", str(home), "--timeout", "0.2"]) == 1
    assert "not done after 0.2 s" in capsys.readouterr().err
    folder = home / "volumes" / "shared" / "selftest"
    assert not folder.exists() or list(folder.iterdir()) == []
