"""`ETLSpec.fit` runs once per data set, on training rows only, also when processes are killed."""

from __future__ import annotations

from typing import Any

import pytest

from cerebro.client.replay import replay
from cerebro.errors import DataError, RunFailedError
from cerebro.usercode.fitted import read_fitted, restore_fitted
from tests.e2e.harness import Lab, write_table
from tests.e2e.specs import TinyETL, TinyTraining, knock

pytestmark = pytest.mark.slow

FIRST_VALID = 1000


class FittingETL(TinyETL):
    """Scales `x` by the mean of the training rows."""

    batch_rows = 8
    mistake_at: int | None = None

    def fit(self, batches: Any, object_dir: str) -> dict[str, Any]:
        ids: list[int] = []
        total = 0.0
        for batch in batches:
            ids += batch["id"].to_pylist()
            total += sum(float(x) for x in batch["x"].to_pylist())
            if len(ids) == 16:
                knock(self.gate, "fit")
            if self.mistake_at in ids:
                raise KeyError("a word that is not there")
        return {"ids": ids, "mean": total / len(ids)}

    def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
        values, label = super().row_preprocessor(row, mode, object_dir)
        return values / self.fitted["mean"], label


class FittedTraining(TinyTraining):
    """Training that uses the fitted value."""

    def initialize_worker(self) -> None:
        self.known = len(self.fitted["ids"])

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        found = super().test(models, checkpoint, dataloader, hyperparams)
        return {**found, "known": self.known, "highest": max(self.fitted["ids"])}


def tables(lab: Lab) -> dict[str, str]:
    """Write tables whose ids identify the split."""
    lab.folder.mkdir(exist_ok=True)
    return {
        "train": write_table(lab.folder / "train.csv", 40),
        "valid": write_table(lab.folder / "valid.csv", 12, start=FIRST_VALID),
    }


def test_fitting_survives_a_killed_worker(lab: Lab) -> None:
    """The fit sees each training row once, the log has it once, and training and replay use it."""
    experiment = lab.experiment(tables(lab))
    etl = lab.spawn(lambda: experiment.run_etl(FittingETL(gate=lab.gate.port), progress=False))
    at = lab.gate.knock()
    assert (
        "fits statistics of the training rows" in experiment.status()
        or "etl-1/fitting" in experiment.status()
    )
    lab.kill(at.worker)
    lab.gate.open()
    result = lab.result(etl, experiment)
    assert result.kept_rows == {"train": 40, "valid": 12}
    events = lab.log(experiment).read()
    (commit,) = (event for event in events if event.type == "TaskCommitted" and event.task == "etl-1/fitting")
    assert commit.attempt > 1
    reference = commit.result.fitted
    assert reference is not None
    fitted = restore_fitted(read_fitted(lab.volumes.shared / reference.name, reference))
    assert sorted(fitted["ids"]) == list(range(40))
    first_row = next(event.seq for event in events if event.type == "TaskAssigned" and "/etl/" in event.task)
    assert first_row > commit.seq
    again = experiment.run_etl(FittingETL(gate=lab.gate.port), progress=False)
    assert again.dataset == result.dataset
    trained = lab.result(lab.fit(experiment, FittedTraining(), tags="ab", epochs=1), experiment)
    assert trained.failures() == {}
    table = trained.history().query("split == 'valid'")
    assert (set(table["known"]), set(table["highest"])) == ({40}, {39})
    assert len(trained.best.modules()) == 1
    assert all(one.is_equal for one in replay(experiment.connection, experiment.name, run=trained.run))
    assert [e.task for e in lab.log(experiment).read() if e.type == "TaskCommitted"].count(
        "etl-1/fitting"
    ) == 1


def test_an_error_in_fit_ends_the_run_with_its_traceback(lab: Lab) -> None:
    """The traceback includes the position among the rows."""
    experiment, spec = lab.experiment(tables(lab)), FittingETL()
    spec.mistake_at = 3
    with pytest.raises(
        RunFailedError, match=r"(?s)ETLSpec.fit raised in the 8 rows from row .*KeyError.*in fit"
    ):
        lab.result(lab.spawn(lambda: experiment.run_etl(spec, progress=False)), experiment)


def test_predictions_and_tests_read_the_rows_of_the_newest_etl_run(lab: Lab) -> None:
    """After a file of a split has changed; other training rows change the fitted value, so they are refused."""
    locators = {**tables(lab), "predict": write_table(lab.folder / "predict.csv", 20, start=2000)}
    experiment = lab.experiment(locators)
    experiment.run_etl(FittingETL(), progress=False)
    trained = lab.result(lab.fit(experiment, FittedTraining(), tags="a", epochs=1), experiment)
    assert list(experiment.run_predict(progress=False).index) == list(range(2000, 2020))
    write_table(lab.folder / "predict.csv", 7, start=3000)
    write_table(lab.folder / "valid.csv", 5, start=FIRST_VALID)
    experiment.run_etl(FittingETL(), progress=False)
    assert list(experiment.run_predict(progress=False).index) == list(range(3000, 3007))
    table = experiment.run_test(split="valid", progress=False)
    assert (table.loc["m00", "rows"], table.loc["m00", "known"]) == (5, 40)
    with pytest.warns(UserWarning, match="the split 'train' are means over 2 parts"):
        assert experiment.run_test(split="train", progress=False).loc["m00", "rows"] == 40
    assert all(one.is_equal for one in replay(experiment.connection, experiment.name, run=trained.run))
    write_table(lab.folder / "train.csv", 39)
    experiment.run_etl(FittingETL(), progress=False)
    with pytest.raises(DataError, match=r"another result of ETLSpec.fit than etl-1.*call run_etl"):
        experiment.run_predict(progress=False)
    write_table(lab.folder / "train.csv", 40)
    experiment.run_etl(FittingETL(), progress=False)
    assert list(experiment.run_predict(progress=False).index) == list(range(3000, 3007))
