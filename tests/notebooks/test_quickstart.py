"""The quickstart notebook, executed in a real kernel against a local cluster of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from cerebro.local import cluster, processes
from cerebro.local.home import ClusterHome

NOTEBOOK = Path(__file__).resolve().parents[2] / "notebooks" / "quickstart.ipynb"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterHome]:
    """The home that the notebook's cluster gets; nothing runs there afterwards."""
    found = ClusterHome(tmp_path / "home")
    for name in ("CEREBRO_SERVER", "CEREBRO_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CEREBRO_HOME", str(found.path))
    yield found
    cluster.stop(found.path)
    assert processes.marked(found.path) == ()


def _read() -> Any:
    return nbformat.read(NOTEBOOK, 4)  # type: ignore[no-untyped-call]


def _code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _outputs(notebook: Any, source: str) -> list[Any]:
    """Outputs of the cell whose source ends with `source`."""
    (cell,) = [cell for cell in _code_cells(notebook) if cell.source.endswith(source)]
    return list(cell.outputs)


def test_notebook_is_committed_without_outputs() -> None:
    """The file holds no output and no execution count, so that a diff of it is a diff of its text."""
    notebook = json.loads(NOTEBOOK.read_text())
    assert notebook["nbformat"] == 4
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_notebook_uses_the_public_interface_only() -> None:
    """What the notebook imports of Cerebro is what `cerebro` itself hands out."""
    sources = [cell.source for cell in _code_cells(_read())]
    imports = [
        line for text in sources for line in text.splitlines() if "import" in line and "cerebro" in line
    ]
    assert sorted(set(imports)) == [
        "from cerebro import ETLSpec, Experiment, SubEpochSpec",
        "from cerebro import Experiment",
    ]


@pytest.mark.slow
def test_notebook_runs_in_a_kernel_and_finds_an_accurate_model(home: ClusterHome, tmp_path: Path) -> None:
    """All cells run, with bars and figures and without warnings, and the best of eight models is 97 % right on the
    test split."""
    notebook = _read()
    folder = tmp_path / "notebooks"
    folder.mkdir()
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()

    said = [o.text for cell in _code_cells(notebook) for o in cell.outputs if o.get("name") == "stderr"]
    assert said == [], "warnings or errors litter the notebook"

    (table,) = _outputs(notebook, "test = experiment.run_test()\ntest")[-1:]
    header, _, *rows = table.data["text/plain"].splitlines()
    assert float(rows[0].split()[1 + header.split().index("accuracy")]) >= 0.97
    bars = [o.data["text/plain"] for o in _outputs(notebook, "\netl") if o.output_type == "display_data"]
    assert [bar.split(":")[0] for bar in bars] == ["train", "valid", "test", "predict"]
    for figure, form in (("result.plot_curves()", "image/png"), ("result.plot_schedule()", "image/svg+xml")):
        assert form in _outputs(notebook, figure)[0].data

    widgets = client.widget_state.values()
    progress = [widget for widget in widgets if widget.get("_model_name") == "FloatProgressModel"]
    assert len(progress) == 7, "four splits, a fit, a test, a prediction"
    assert {bar["value"] == bar["max"] for bar in progress} == {True}, "a bar stops short of its end"
    assert {bar["bar_style"] for bar in progress} == {"success"}
