"""Files of the notebooks."""

from __future__ import annotations

import json

import pytest

from tests.notebooks.kernel import NOTEBOOKS


@pytest.mark.parametrize("name", sorted(path.name for path in NOTEBOOKS.glob("*.ipynb")))
def test_a_notebook_is_committed_without_outputs(name: str) -> None:
    """Outputs and execution counts would clutter its diffs."""
    notebook = json.loads((NOTEBOOKS / name).read_text())
    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
