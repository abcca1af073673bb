"""Run the search notebook in a kernel with its own local cluster."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from cerebro.local.home import ClusterHome
from tests.waiting import HANG_S

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "search.ipynb"


def test_notebook_is_committed_without_outputs() -> None:
    """Outputs and execution counts would clutter its diffs."""
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


@pytest.mark.slow
def test_notebook_searches_and_clones_the_best_model(home: ClusterHome, tmp_path: Path) -> None:
    """All cells run without warnings.

    Few of the 24 models train to the last epoch, the table has a clone of the best one, and the log names its author.
    """
    notebook = nbformat.read(NOTEBOOK, 4)  # type: ignore[no-untyped-call]
    NotebookClient(
        notebook,
        timeout=round(4 * HANG_S),
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    said = [o.text for cell in cells for o in cell.outputs if o.get("name") == "stderr"]
    assert said == [], "warnings or errors litter the notebook"
    counts = next(cell for cell in cells if "value_counts" in cell.source).outputs[-1].data["text/plain"]
    epochs = {
        int(line.split()[0]): int(line.split()[1]) for line in counts.splitlines() if line[:1].isdigit()
    }
    assert sum(epochs.values()) == 24
    assert 0 < epochs[9] <= 12
    assert epochs[1] >= 8
    text = next(cell for cell in cells if "commands" in cell.source).outputs[-1].text
    assert "added a model to fit-1, from m" in text
