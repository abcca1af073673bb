"""The readability check finds each kind of fault in a small tree, and accepts a plain one."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import readability

PLAIN = '"""Add numbers."""\n\n\ndef add(first: int, second: int) -> int:\n    return first + second\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "cerebro"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""A package."""\n')
    (folder / "sums.py").write_text(PLAIN)
    return tmp_path


def _findings(root: Path) -> str:
    return "\n".join(str(finding) for check in readability.CHECKS for finding in check(root))


def test_a_plain_tree_passes(tree: Path) -> None:
    assert _findings(tree) == ""
    assert readability.main(["--root", str(tree)]) == 0


def test_roundabout_prose_is_found(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "cerebro" / "sums.py").write_text(
        PLAIN.replace("Add numbers.", "What it is told of those that are left.")
    )
    assert "cerebro/sums.py:1: roundabout" in _findings(tree)
    assert readability.main(["--root", str(tree)]) == 1
    assert "roundabout phrases per 1,000 words" in capsys.readouterr().out


def test_code_blocks_of_documents_are_not_prose(tree: Path) -> None:
    (tree / "cerebro" / "README.md").write_text("Plain text.\n\n```\nwhat is left of it\n```\n")
    assert _findings(tree) == ""


def test_vague_names_are_found(tree: Path) -> None:
    lines = "".join(f"told = {number}\n" for number in range(readability.VAGUE_NAMES + 1))
    (tree / "cerebro" / "names.py").write_text(lines)
    assert "cerebro/names.py:1: vague name: told" in _findings(tree)


def test_large_folders_are_found(tree: Path) -> None:
    for number in range(readability.MODULES_PER_FOLDER):
        (tree / "cerebro" / f"module{number}.py").write_text(PLAIN)
    assert f"cerebro: {readability.MODULES_PER_FOLDER + 1} modules" in _findings(tree)


def test_large_classes_are_found(tree: Path) -> None:
    fields = "".join(f"    field{number}: int\n" for number in range(10))
    attributes = "".join(f"        self.attribute{number} = 0\n" for number in range(11))
    (tree / "cerebro" / "large.py").write_text(
        f"class Large:\n{fields}\n    def __init__(self) -> None:\n{attributes}"
    )
    assert "cerebro/large.py:1: Large has 21 attributes" in _findings(tree)


def test_import_cycles_are_found(tree: Path) -> None:
    (tree / "cerebro" / "one.py").write_text("from cerebro import two\n")
    (tree / "cerebro" / "two.py").write_text("from cerebro.one import two\n")
    assert "import cycle: cerebro.one cerebro.two" in _findings(tree)


def test_imports_inside_functions_and_for_types_are_no_cycle(tree: Path) -> None:
    (tree / "cerebro" / "one.py").write_text("from cerebro import two\n")
    (tree / "cerebro" / "two.py").write_text(
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from cerebro import one\n\n\n"
        "def late() -> None:\n    import cerebro.one\n"
    )
    assert _findings(tree) == ""
