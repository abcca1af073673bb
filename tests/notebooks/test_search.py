"""Run the search notebook in a kernel with its own local cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.local.home import ClusterHome
from tests.notebooks.kernel import executed, last_output


@pytest.mark.slow
def test_notebook_searches_and_clones_the_best_model(home: ClusterHome, tmp_path: Path) -> None:
    """All cells run without warnings.

    Few of the 24 models train to the last epoch, the table has a clone of the best one, and the log names its author.
    """
    cells = executed("search.ipynb", tmp_path)
    counts = last_output(cells, "value_counts").data["text/plain"]
    epochs = {
        int(line.split()[0]): int(line.split()[1]) for line in counts.splitlines() if line[:1].isdigit()
    }
    assert sum(epochs.values()) == 24
    assert 0 < epochs[9] <= 12
    assert epochs[1] >= 8
    text = last_output(cells, "commands").text
    assert "added a model to fit-1, from m" in text
