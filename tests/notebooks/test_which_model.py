"""Run the notebook that compares models in a kernel with its own local cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.local.home import ClusterHome
from tests.notebooks.kernel import executed, last_output


@pytest.mark.slow
def test_notebook_compares_models_over_seeds_and_rows(home: ClusterHome, tmp_path: Path) -> None:
    """It shows three repeated models, ranks of five models, and images of rows that models get wrong."""
    cells = executed("which-model.ipynb", tmp_path)
    repeats = last_output(cells, "result.repeats()").data["text/plain"]
    assert repeats.count("\nm") >= 3
    assert "seed 11" in repeats
    ranking = last_output(cells, "test.ranking()").data["text/plain"].splitlines()
    assert ranking[0].split() == ["rank", "model", "accuracy", "95", "%", "interval", "better", "than"]
    assert [line[0].isdigit() for line in ranking[1:6]] == [True] * 5
    assert "label" in last_output(cells, "hardest=8").data["text/plain"]
    for source in ("show(hardest)", "show(different"):
        assert last_output(cells, source).data["application/vnd.plotly.v1+json"]["data"]
