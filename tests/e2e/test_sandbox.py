"""With the sandbox on, handlers work and careless user code is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cerebro.errors import RunFailedError
from cerebro.runtime.isolation import landlock
from tests.e2e.conftest import MakeLab
from tests.e2e.specs import TinyETL, TinyTraining

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(landlock.why_unavailable()), reason=f"not here: {landlock.why_unavailable()}"),
]


class CarelessTraining(TinyTraining):
    """Deletes the files of a folder outside its own."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        """Train normally after the mistake."""
        for path in Path(self.folder).rglob("*.pt"):
            path.unlink()
        return super().train(models, checkpoint, dataloader, hyperparams)


class CarelessETL(TinyETL):
    """Writes next to its input files."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
        """Preprocess normally after the mistake."""
        Path(self.folder, "cache").write_text("x")
        return super().row_preprocessor(row, mode, object_dir)


def test_sandboxed_experiments_work_and_cannot_harm_each_other(own_lab: MakeLab, tmp_path: Path) -> None:
    """Two experiments with the same code preprocess, train, test and predict with the weights of a single process.

    Then code that deletes the first one's checkpoints fails with a reason, and they still exist.
    """
    (tmp_path / "temporary").mkdir()
    lab = own_lab(workers=2, CEREBRO_SANDBOX="on", TMPDIR=str(tmp_path / "temporary"), HOME=str(tmp_path))
    first = lab.prepared(locators=lab.tables(train=40, valid=12, predict=6))
    second = lab.prepared()
    for experiment in (first, second):
        assert lab.result(lab.fit(experiment, TinyTraining()), experiment).failures() == {}
        lab.check(experiment)
    assert len(first.run_test(split="valid", progress=False)) == 1
    assert len(first.run_predict(progress=False)) == 6
    folder = lab.volumes.checkpoints / first.name
    before = {path: path.stat().st_size for path in folder.rglob("*.pt")}
    assert before
    with pytest.raises(RunFailedError, match=r"The sandbox of this worker refused .*/checkpoints/"):
        lab.result(lab.fit(second, CarelessTraining(str(folder)), tags="ab"), second)
    assert {path: path.stat().st_size for path in folder.rglob("*.pt")} == before
    third = lab.experiment()
    with pytest.raises(RunFailedError, match="The sandbox of this worker refused"):
        third.run_etl(CarelessETL(str(tmp_path)), progress=False)
    assert not (tmp_path / "cache").exists()
