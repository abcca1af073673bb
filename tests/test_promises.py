"""Every promise of docs/promises.md names tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "promises.md"
_NAMED = re.compile(r"`([\w./-]+\.py)::(test_\w+)`")


def _rows() -> dict[str, list[tuple[str, str]]]:
    """Promise -> files and names of the tests that prove it."""
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    cells = [line.strip("| ").split(" | ") for line in lines if not line.startswith("| promise |")]
    return {promise: _NAMED.findall(" ".join(proofs)) for promise, *proofs in cells}


@cache
def _tests_of(file: str) -> frozenset[str]:
    """Names of the tests that a file defines, in classes too; none if there is no such file."""
    path = TESTS / file
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    members = [*tree.body, *(member for found in classes for member in found.body)]
    return frozenset(member.name for member in members if isinstance(member, ast.FunctionDef))


ROWS = _rows()


def test_there_are_promises() -> None:
    """The page is read: it has at least the rows of what fails and the invariants."""
    assert len(ROWS) > 50


@pytest.mark.parametrize("promise", ROWS)
def test_a_promise_names_tests_that_exist(promise: str) -> None:
    """At least one test proves it, and each test that is named is defined where the page says."""
    assert ROWS[promise], "no test is named"
    missing = [f"{file}::{name}" for file, name in ROWS[promise] if name not in _tests_of(file)]
    assert missing == []
