"""Failed sections of ``python -m benchmarks.gpu``."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.section import Row, Setting


def test_a_failed_section_keeps_its_rows_and_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent process prints both."""

    def measure(setting: Setting) -> Iterator[Row]:
        yield Row(what="a copy", measured="2 GB/s", values={"bytes_per_s": 2e9})
        raise RuntimeError("no such kernel")

    module = ModuleType("benchmarks.gpu.hop")
    vars(module)["measure"] = measure
    monkeypatch.setitem(sys.modules, "benchmarks.gpu.hop", module)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["hop", "--device", "cpu", "--rows-to", str(tmp_path / "rows.jsonl")]) == 1
    finally:
        signal.signal(signal.SIGTERM, before)
    row, problem = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert (row["what"], row["holds"]) == ("a copy", None)
    assert "no such kernel" in problem["problem"]
