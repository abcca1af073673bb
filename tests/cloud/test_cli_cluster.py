"""`cerebro cluster` as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro import cli
from tests.cloud.conftest import Terminal


@pytest.fixture
def at_terminal(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Use the terminal's PATH and credentials in this process."""
    monkeypatch.setenv("PATH", str(terminal.folder / "bin"))
    monkeypatch.setattr("cerebro.cloud.site.open_session", lambda _: terminal.cloud.session())
    monkeypatch.setenv("CEREBRO_HOME", str(terminal.folder / "home"))
    return terminal


@pytest.mark.slow
def test_create_status_and_delete(at_terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(at_terminal.path)
    assert cli.main(["cluster", "create", "-f", file]) == 0
    assert "demo runs." in capsys.readouterr().out
    assert cli.main(["cluster", "status", "-f", file]) == 0
    assert "ACTIVE, Kubernetes 1.34" in capsys.readouterr().out
    assert cli.main(["cluster", "delete", "-f", file, "--yes"]) == 0
    assert "no billed resource of demo" in capsys.readouterr().out


def test_delete_requires_a_confirmation(at_terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    """A script without --yes deletes nothing."""
    at_terminal.cloud.eksctl_stops_after = 0
    assert cli.main(["cluster", "create", "-f", str(at_terminal.path)]) == 1
    before = len(at_terminal.cloud.changes)
    assert cli.main(["cluster", "delete", "-f", str(at_terminal.path)]) == 1
    said = capsys.readouterr().err
    assert "nothing was deleted" in said
    assert "give --yes" in said
    assert len(at_terminal.cloud.changes) == before


def test_an_invalid_file_prints_one_line_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback and no AWS call."""
    path = tmp_path / "c.yaml"
    path.write_text("name: demo\nregoin: us-east-1\n")
    assert cli.main(["cluster", "create", "-f", str(path)]) == 1
    said = capsys.readouterr().err
    assert f"{path}:2: regoin: no such field; did you mean region?" in said
    assert "Traceback" not in said


def test_the_chart_comes_from_the_file_or_the_checkout(terminal: Terminal) -> None:
    """Without a chart the error names the fix."""
    terminal.write(install={"chart": {"path": "nowhere"}})
    assert "nowhere is no chart" in str(terminal.site().chart_problem)
    terminal.write(install={"chart": {"path": "chart"}})
    assert (terminal.site().chart, terminal.site().chart_problem) == (terminal.folder / "chart", "")
    terminal.write(install={})
    assert terminal.site().chart == Path(__file__).parents[2] / "deploy" / "helm" / "cerebro"
    assert terminal.site().chart_problem == ""
