"""Run the quickstart notebook in a kernel with its own local cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from cerebro.local.home import ClusterHome
from tests.e2e.browser import chromium, window
from tests.waiting import HANG_S

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "quickstart.ipynb"


def _read() -> Any:
    return nbformat.read(NOTEBOOK, 4)  # type: ignore[no-untyped-call]


def _code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _outputs(notebook: Any, source: str) -> list[Any]:
    """Return the outputs of the cell whose source ends with `source`."""
    (cell,) = [cell for cell in _code_cells(notebook) if cell.source.endswith(source)]
    return list(cell.outputs)


def test_notebook_uses_the_public_interface_only() -> None:
    """It imports only names that `cerebro` exports."""
    sources = [cell.source for cell in _code_cells(_read())]
    imports = [
        line for text in sources for line in text.splitlines() if "import" in line and "cerebro" in line
    ]
    assert sorted(set(imports)) == [
        "from cerebro import ETLSpec, Experiment, StepSpec",
        "from cerebro import Experiment",
    ]


@pytest.mark.slow
def test_notebook_runs_in_a_kernel_and_finds_an_accurate_model(home: ClusterHome, tmp_path: Path) -> None:
    """All cells run without warnings, and a model is stopped and resumed.

    The file and its export contain progress bars, tables and figures, and the best of eight models has 97 % test
    accuracy.
    """
    notebook = _read()
    folder = tmp_path / "notebooks"
    folder.mkdir()
    client = NotebookClient(
        notebook,
        timeout=round(4 * HANG_S),
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()

    said = [o.text for cell in _code_cells(notebook) for o in cell.outputs if o.get("name") == "stderr"]
    assert said == [], "warnings or errors litter the notebook"

    (table,) = _outputs(notebook, "test = experiment.run_test()\ntest")[-1:]
    header, _, *rows = table.data["text/plain"].splitlines()
    assert float(rows[0].split()[1 + header.split().index("accuracy")]) >= 0.97
    (etl,) = [o.data["text/plain"] for o in _outputs(notebook, "\netl") if o.output_type == "display_data"]
    assert [line.split(":")[0] for line in etl.splitlines()] == ["train", "valid", "test", "predict"]
    for line in etl.splitlines():
        done, total = line.split(": ")[1].split("/")
        assert done == total, "a bar stops short of its end"
    _check_progress(notebook)
    _check_export(notebook, tmp_path)
    assert "Best model" in (folder / "results" / "quickstart" / "report.html").read_text(encoding="utf-8")


def _bundles(notebook: Any) -> list[dict[str, Any]]:
    """Return the outputs of all cells by MIME type."""
    return [output.get("data", {}) for cell in _code_cells(notebook) for output in cell.outputs]


def _check_progress(notebook: Any) -> None:
    """Check for a bar per epoch and a row per model, without a widget."""
    fit = [cell for cell in _code_cells(notebook) if "run_fit" in cell.source]
    (shown,) = [o.data["text/html"] for o in fit[0].outputs if o.output_type == "display_data"]
    assert [f">epoch {epoch}<" in shown for epoch in range(1, 10)] == [True] * 8 + [False]
    assert all(f">m{number:02}<" in shown for number in range(8))
    assert ">stopped<" in shown, "m03 was to be stopped while the others went on"
    assert not any(
        "widget" in mime for cell in _code_cells(notebook) for o in cell.outputs for mime in o.get("data", {})
    )


def _check_export(notebook: Any, folder: Path) -> None:
    """Check that an HTML export draws all figures in a browser without a network."""
    outputs = [
        o.data["text/html"]
        for cell in _code_cells(notebook)
        for o in cell.outputs
        if "text/html" in o.get("data", {})
    ]
    exported = folder / "quickstart.html"
    exported.write_text(f"<!doctype html><meta charset=utf-8>{'<hr>'.join(outputs)}", encoding="utf-8")
    with chromium() as browser, window(browser, offline=True) as context:
        page = context.new_page()
        page.goto(exported.as_uri())
        page.wait_for_function("document.querySelectorAll('.js-plotly-plot').length === 4")
