"""Exports to Weights & Biases: with the real package, offline; and without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cerebro.errors import ExportError
from cerebro.exports.projection import PageKey, Projection
from cerebro.exports.wandb_export import WandbExport
from tests.exports.logged import record, story
from tests.exports.trackers import program

ROOT = Path(__file__).resolve().parents[2]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says how to install it, before any log is read."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ExportError, match=r"pip install 'cerebro-platform\[wandb\]'"):
        WandbExport(Projection(record()))


@pytest.mark.slow
@pytest.mark.processes
def test_runs_have_each_value_once_with_increasing_steps(tmp_path: Path) -> None:
    """A second export writes the same steps and ids, which W&B drops."""
    done = subprocess.run(
        [program("python"), "-m", "tests.exports.wandb_offline", str(tmp_path)],
        env={**os.environ, "WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    projection, rows_by_page = Projection(record()), dict[str, list[list[object]]]()
    for event in story().log:
        for page_key, row in projection.apply(event):
            rows_by_page.setdefault(projection.id_of(page_key), []).append([row.seq, row.name, row.value])
    again = answer["both"][len(answer["first"]) :]
    for runs in (answer["first"], again):
        found: dict[str, list[list[object]]] = {}
        for run in runs:
            assert all(before < after for before, after in pairwise(run["steps"]))
            found.setdefault(run["id"], []).extend(run["rows"])
        rows = {identity: sorted(rows) for identity, rows in found.items() if rows}
        assert rows == {identity: sorted(rows) for identity, rows in rows_by_page.items()}
    last = {run["id"]: run for run in again}
    model = last[projection.id_of(PageKey("fit-1", "m00"))]
    assert (model["name"], model["group"]) == ("fit-1/m00", "fit-1")
    assert {name: model["config"][name] for name in ("batch_size", "lr")} == {"batch_size": 1, "lr": 0.1}
    assert last[projection.id_of(PageKey("fit-1", "m01"))]["exit"] == 1


def to_a_stand_in(folder: Path, *arguments: str) -> dict[str, Any]:
    """Run `wandb_deleted` and return its output."""
    done = subprocess.run(
        [program("python"), "-m", "tests.exports.wandb_deleted", *arguments],
        env={**os.environ, "WANDB_INIT_TIMEOUT": "10", "WANDB_DIR": str(folder), "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    values: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return values


@pytest.mark.slow
@pytest.mark.processes
def test_a_run_deleted_in_wandb_stays_deleted(tmp_path: Path) -> None:
    """Uses the real package and W&B's real error for a deleted id; the log mentions the run once."""
    report = to_a_stand_in(tmp_path)
    projection = Projection(record())
    for event in story().log:
        list(projection.apply(event))
    deleted = projection.id_of(PageKey("fit-1", "m00"))
    assert sorted(report["ended"]) == sorted({page.id for page in projection.pages()} - {deleted})
    assert report["said"].count("the run fit-1/m00 was deleted in W&B, so its values are not exported") == 1
    assert report["said"].count("\n") == 1


@pytest.mark.slow
@pytest.mark.processes
def test_a_refused_login_is_reported_without_retries(tmp_path: Path) -> None:
    """`--follow` retries outages, but not a refused login."""
    report = to_a_stand_in(tmp_path, "refuses")
    assert "ExportError: W&B does not take run" in report["said"]
    assert "wandb login" in report["said"]
