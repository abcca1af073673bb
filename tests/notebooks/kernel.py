"""Run notebooks in a kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.waiting import HANG_S

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def executed(name: str, folder: Path) -> list[Any]:
    """Run a notebook in a folder; return its code cells with their outputs.

    Raises:
        AssertionError: a cell printed a warning or an error.
    """
    notebook = nbformat.read(NOTEBOOKS / name, 4)  # type: ignore[no-untyped-call]
    NotebookClient(
        notebook,
        timeout=round(4 * HANG_S),
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    said = [o.text for cell in cells for o in cell.outputs if o.get("name") == "stderr"]
    assert said == [], "warnings or errors litter the notebook"
    return cells


def last_output(cells: list[Any], source: str) -> Any:
    """Return the last output of the first cell that contains this text."""
    return next(cell for cell in cells if source in cell.source).outputs[-1]
