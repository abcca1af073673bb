"""docs/promises.md names existing tests for every promise, and marks promises with only slow tests."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "promises.md"
_SLOW = "pytest.mark.slow"
_NAMED = re.compile(r"`([\w./-]+\.py)::(test_\w+)`")


@dataclass(frozen=True)
class Row:
    """A promise's tests (file, name), and True if the page marks them all as slow."""

    tests: tuple[tuple[str, str], ...]
    is_marked_slow: bool


def _rows() -> dict[str, Row]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [line.strip("| ").split(" | ") for line in lines if not line.startswith("| promise |")]
    return {
        promise: Row(tuple(_NAMED.findall(" ".join(proofs))), proofs[-1].startswith("*slow*:"))
        for promise, *proofs in cells
    }


@cache
def _tests_of(file: str) -> dict[str, bool]:
    """Map each test of a file to True if `make test` skips it; a missing file has no tests."""
    path = TESTS / file
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    marks = (ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign))
    is_slow = any(mark.startswith("pytestmark = ") and _SLOW in mark for mark in marks)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    members = [*tree.body, *(member for found in classes for member in found.body)]
    return {
        member.name: is_slow or any(ast.unparse(mark) == _SLOW for mark in member.decorator_list)
        for member in members
        if isinstance(member, ast.FunctionDef)
    }


def _fault(row: Row) -> str:
    """Return the error in a row, or an empty text."""
    missing = [f"{file}::{name}" for file, name in row.tests if name not in _tests_of(file)]
    if missing or not row.tests:
        return f"no such test: {', '.join(missing)}" if missing else "no test is named"
    is_slow = all(_tests_of(file)[name] for file, name in row.tests)
    return "" if is_slow == row.is_marked_slow else f"*slow*: {'is missing' if is_slow else 'is wrong'}"


def test_each_promise_names_existing_tests() -> None:
    rows = _rows()
    assert len(rows) > 50
    assert {promise: fault for promise, row in rows.items() if (fault := _fault(row))} == {}
