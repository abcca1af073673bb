"""Figures and the report of a fit work in notebooks and offline."""

from __future__ import annotations

import re
from pathlib import Path

import plotly.graph_objects as go
import pytest

from cerebro.client.reporting.plotting import plotly_script
from cerebro.client.results.notebook_figure import ScriptOutput, bundle
from cerebro.errors import NotFoundError
from cerebro.runtime.volumes import Volumes
from tests.client.reporting.stories import reported
from tests.client.results.fits import fit_result, fitted

PLOTS = (
    "plot_contour",
    "plot_best_so_far",
    "plot_curves",
    "plot_parallel",
    "plot_scatter",
    "plot_heatmap",
    "plot_importance",
    "plot_schedule",
)


@pytest.mark.parametrize("plot", PLOTS)
def test_a_figure_is_a_plotly_object_and_a_file(plot: str, volumes: Volumes, tmp_path: Path) -> None:
    """The file needs no network."""
    result = fit_result(reported(), volumes)
    path = tmp_path / "plots" / f"{plot}.html"
    drawn = getattr(result, plot)(path=path)
    assert isinstance(drawn, go.Figure)
    assert len(drawn.data) > 0
    written = path.read_text(encoding="utf-8")
    assert plotly_script() in written
    assert not re.findall(r'<script[^>]*src="', written)


def test_an_impossible_figure_is_an_error(volumes: Volumes) -> None:
    """The error names an alternative."""
    result = fit_result(fitted(), volumes)
    with pytest.raises(ValueError, match=r"ends in \.html"):
        result.plot_curves("curves.png")
    with pytest.raises(NotFoundError, match="no hyperparameter width: choose among batch_size, lr"):
        result.plot_parallel(names=["width"])
    with pytest.raises(NotFoundError, match="fit-1 has no search"):
        result.plot_rungs()
    with pytest.raises(NotFoundError, match="fewer than two hyperparameters of fit-1 vary"):
        result.plot_heatmap()


def test_the_report_is_a_file(volumes: Volumes, tmp_path: Path) -> None:
    """The method creates the folder."""
    result = fit_result(fitted(), volumes)
    assert result.report(tmp_path / "out" / "report.html") == tmp_path / "out" / "report.html"
    assert "Best model: m01" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"ends in \.html"):
        result.report(tmp_path / "report.pdf")


def test_a_notebook_also_keeps_a_figure_as_html(volumes: Volumes) -> None:
    """The HTML uses the script of another output and describes the figure in words."""
    kept = bundle(fit_result(fitted(), volumes).plot_curves())
    assert kept["text/plain"].startswith("Learning curves of loss")
    assert kept["application/vnd.plotly.v1+json"]["data"]
    assert plotly_script() not in kept["text/html"]
    (element,) = re.findall(r'<div id="(figure-[0-9a-f]+)"', kept["text/html"])
    assert f'getElementById("{element}")' in kept["text/html"]


def test_one_cell_of_a_notebook_has_the_script() -> None:
    """Only the first cell that shows a figure, also when it runs again."""
    script_output = ScriptOutput()
    assert [script_output.has_script(cell) for cell in ("a", "b", "a", "b")] == [True, False, True, False]
