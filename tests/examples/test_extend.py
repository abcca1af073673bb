"""The examples of docs/extend.md run, and their contract suites pass."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs/extend.md"


def test_the_examples_pass_their_suites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order, as one program; each part has its check."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    checks = {name for block in blocks for name in re.findall(r"^(check_\w+)\(", block, re.MULTILINE)}
    assert checks == {"check_procedure", "check_sampler", "check_store", "check_exporter", "check_metric"}
    exec("\n".join(blocks), {"__name__": "__main__"})
