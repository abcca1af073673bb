"""An installed package adds a sampler, a store, an exporter and a metric to a running cluster."""

from __future__ import annotations

import ast
import importlib
import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from cerebro import ASHA, loguniform, metrics
from cerebro.cli.program import main
from cerebro.contract.events import TaskCommitted
from cerebro.exports import Projection
from tests.e2e.conftest import MakeLab
from tests.e2e.specs import TinyTraining
from tests.e2e.test_search import SETTINGS, check_complete, run_of

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).parents[2] / "docs/extend.md"
ENTRIES = {
    "samplers": 'Spread = "plainly:Spread"',
    "stores": 'sqlite = "plainly:SqliteStore"',
    "exporters": 'lines = "plainly:LinesExport"',
    "metrics": 'f1 = "plainly:f1"',
}


@pytest.fixture
def site(processes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the classes of docs/extend.md as a package into a folder of their own."""
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    (source / "plainly.py").write_text(_definitions())
    groups = (f'[project.entry-points."cerebro.{group}"]\n{entry}\n' for group, entry in ENTRIES.items())
    head = '[project]\nname = "plainly"\nversion = "1.0"\n[tool.setuptools]\npy-modules = ["plainly"]\n'
    (source / "pyproject.toml").write_text(head + "".join(groups))
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(source)], check=True, capture_output=True)
    monkeypatch.syspath_prepend(str(site))
    return site


def _definitions() -> str:
    """Return imports, classes and functions of the guide, without its checks."""
    blocks = re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    kept = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef)
    tree = ast.parse("\n".join(blocks))
    return "\n\n".join(ast.unparse(each) for each in tree.body if isinstance(each, kept))


class Measured(TinyTraining):
    """Also measures the package's metric on the worker."""

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Any:
        """Test as `TinyTraining` does."""
        outputs, targets = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1])
        values = super().test(models, checkpoint, dataloader, hyperparams)
        return {**values, **metrics.measure(["accuracy", "f1"], outputs, targets)}


def test_a_package_is_used_by_all_processes(own_lab: MakeLab, site: Path, tmp_path: Path) -> None:
    """The controller cuts the store's metadata; workers suggest values and measure; the command exports."""
    lab = own_lab(workers=1, PYTHONPATH=str(site))
    database = tmp_path / "data.db"
    with closing(sqlite3.connect(database)) as objects, objects:
        objects.execute("CREATE TABLE objects (name TEXT PRIMARY KEY, content BLOB, version TEXT)")
        for split, path in lab.tables().items():
            row = (f"tables/{split}.csv", Path(path).read_bytes(), split)
            objects.execute("INSERT INTO objects VALUES (?, ?, ?)", row)
        objects.execute("INSERT INTO objects VALUES ('notes.txt', X'6e6f', '1')")
    root = f"sqlite://{database}"
    locators: dict[str, Any] = {split: f"{root}/tables/{split}.csv" for split in ("train", "valid")}
    experiment = lab.prepared(locators={**locators, "misc": [f"{root}/notes.txt"]})
    space = {"lr": loguniform(1e-3, 1e-1), "batch_size": 5}
    search = ASHA(eta=2, sampler=importlib.import_module("plainly").Spread())
    result = experiment.run_fit(Measured(), space, epochs=2, samples=4, search=search, **SETTINGS)
    assert result.failures() == {}
    run = run_of(lab, experiment)
    check_complete(run)
    suggested = [
        event
        for event in lab.log(experiment).read()
        if isinstance(event, TaskCommitted) and "/search/suggestions-" in event.task
    ]
    assert sum(len(each.result.answer.values) for each in suggested if each.result.answer) == 4
    assert len({model.hyperparams["lr"] for model in run.models.values()}) == 4
    history = result.history()
    assert set(history[history["split"] == "valid"]["f1"]) == {2 / 3}
    out = tmp_path / "out"
    assert main(["export", "package", "lines", experiment.name, "--option", f"folder={out}"]) == 0
    pages = json.loads((out / "pages.json").read_text())
    projection = Projection(lab.kvs.experiment(experiment.name))
    expected: dict[str, int] = {}
    for event in lab.log(experiment).read():
        for key, _ in projection.apply(event):
            expected[projection.id_of(key)] = expected.get(projection.id_of(key), 0) + 1
    assert {page: len((out / f"{page}.jsonl").read_text().splitlines()) for page in expected} == expected
    assert len(pages) == 5
