"""``python -m benchmarks.gpu``: failures become rows of the table, and each section rehearses without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.__main__ import SECTIONS, write_rows
from benchmarks.gpu.section import Row, Setting, part


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(kind="cpu", is_small=True, folder=tmp_path, deadline=time.monotonic() + 3600)


def failing() -> Iterator[Row]:
    yield Row(what="a copy", measured="2 GB/s", values={"bytes_per_s": 2e9})
    raise RuntimeError("no such kernel")


def endless() -> Iterator[Row]:
    return (Row(what="never", measured="", values={}) for number in count() if number < 0)


def rows_of(section: str, rows: Iterator[Row], folder: Path) -> list[dict[str, Any]]:
    """Return the rows in the section's file."""
    write_rows(section, lambda: rows, folder / "rows.jsonl")
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def test_a_failed_section_keeps_its_rows_and_has_its_traceback(tmp_path: Path) -> None:
    """The last row of the file says what happened."""
    first, last = rows_of("hop", failing(), tmp_path)
    assert (first["what"], first["holds"]) == ("a copy", None)
    assert (last["what"], last["holds"]) == ("section hop", False)
    assert last["measured"] == "FAILED: RuntimeError: no such kernel"
    assert "in failing" in last["text"]


def test_later_parts_run_after_a_failure(setting: Setting, tmp_path: Path) -> None:
    """A failed part, and a part at its limit, are rows that do not hold."""

    def measure() -> Iterator[Row]:
        yield from part(setting, "copies", 60, failing)
        yield from part(setting, "a loop", 0.01, endless)
        yield from part(
            setting, "the last", 60, lambda: [Row(what="hops", measured="3", values={}, holds=True)]
        )

    found = [(row["what"], row["holds"]) for row in rows_of("hop", measure(), tmp_path)]
    assert found == [("a copy", None), ("copies", False), ("a loop", False), ("hops", True)]


def test_no_part_starts_after_the_deadline(tmp_path: Path) -> None:
    """The row says so."""
    late = Setting(kind="cpu", is_small=True, folder=tmp_path, deadline=time.monotonic())
    (row,) = part(late, "copies", 60, failing)
    assert (row.what, row.measured, row.holds) == ("copies", "no time was left", None)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("section", SECTIONS)
def test_each_section_rehearses_on_a_cpu(section: str, tmp_path: Path) -> None:
    """All checks hold with small models, and the JSON file has the table."""
    target = tmp_path / "gpu.json"
    options = ["--device", "cpu", "--small", "--json", str(target), "--folder", str(tmp_path)]
    command = [sys.executable, "-m", "benchmarks.gpu", section, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(target.read_text())["sections"][section]["rows"]
    assert any(row["holds"] for row in rows)
    assert all(f"{row['what']} " in done.stdout for row in rows)
