"""`run_test` measures the same as validation, and as one process on the whole split."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from cerebro.data.loader import PartitionLoader
from cerebro.data.partitions import find_partitions
from cerebro.errors import DataError
from cerebro.local.cluster import scale
from cerebro.runtime.volumes import Volumes
from cerebro.spec import PerRow, Ratio
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import numbers_of
from cerebro.worker.training.seeds import sub_epoch_seed
from cerebro.worker.training.sub_epoch import create, evaluate, restore
from tests.e2e.conftest import MakeLab
from tests.e2e.harness import DEADLINE_S, Lab
from tests.e2e.specs import TinyETL, TinyTraining

pytestmark = pytest.mark.slow


class Ranking(TinyTraining):
    """Measures the ROC AUC of class 0, which is not a mean over rows.

    In training, measures a ratio: rows of class 0 per row of other classes.
    """

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, Any]:
        """Train; the model with tag ``u`` returns a plain number instead of a ratio."""
        known = super().train(models, checkpoint, dataloader, hyperparams)
        zeros = sum(int((labels == 0).sum()) for _, labels in dataloader)
        odds = Ratio(zeros, dataloader.num_rows - zeros)
        is_unlike = hyperparams["tag"] == "u" and dataloader.sub_epoch == 1
        return {**known, "odds": odds.value if is_unlike else odds}

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, Any]:
        known = super().test(models, checkpoint, dataloader, hyperparams)
        pairs = [
            (float(score), int(label))
            for inputs, labels in dataloader
            for score, label in zip(models[0](inputs)[:, 0], labels, strict=True)
        ]
        inside, outside = ([s for s, label in pairs if (label == 0) is is_in] for is_in in (True, False))
        wins = sum(one > other for one in inside for other in outside)
        odds = Ratio(len(inside), len(outside))
        return {
            **known,
            "auc": wins / (len(inside) * len(outside)),
            "num_rows": dataloader.num_rows,
            "odds": odds,
        }


def test_a_test_returns_the_metrics_of_the_validation(lab: Lab, prepared: str) -> None:
    """All kinds of metrics match bit by bit for several models.

    A test on training data runs in parts; a warning names the metrics that are means over the parts.
    """
    experiment = lab.attach(prepared)
    result = lab.result(lab.fit(experiment, Ranking(), tags="abc", epochs=1), experiment)
    validated = result.history().query("split == 'valid'").set_index("model")
    table = experiment.run_test(["m00", "m01", "m02"], split="valid", progress=False)
    assert "parts" not in table
    for metric in ("loss", "accuracy", "auc", "num_rows"):
        assert table[metric].to_dict() == validated[metric].to_dict()
    with pytest.warns(
        UserWarning, match=r"the split 'train' are means over 2 parts .* the others are of all rows"
    ):
        parts = experiment.run_test(split="train", progress=False)
    assert list(parts["parts"]) == [2]
    of_epoch = result.history().query("split == 'train'").set_index("model")["odds"]
    assert set(of_epoch) == set(parts["odds"]) == {odds_of(lab.volumes, experiment.name)}


def odds_of(volumes: Volumes, experiment: str) -> float:
    """Return the odds of class 0 over all training rows."""
    found = (
        part
        for root in (volumes.shards, *volumes.shards.iterdir())
        for part in find_partitions(root / "datasets")
    )
    folders = [part.folder for part in found if part.dataset.startswith(experiment) and part.split == "train"]
    labels = [int(label) for _, label in PartitionLoader(folders, batch_size=1, seed=None)]
    return labels.count(0) / (len(labels) - labels.count(0))


def test_a_metric_of_two_kinds_fails_its_model_only(lab: Lab, prepared: str) -> None:
    """The error names the metric and the fix."""
    experiment = lab.attach(prepared)
    result = lab.result(lab.fit(experiment, Ranking(), tags="au", epochs=1), experiment)
    assert list(result.failures()) == ["m01"]
    message = "metric 'odds' of model m01 is a number in epoch 1, partition .* a ratio before .* return it always as"
    assert re.search(message, result.failures()["m01"])


def test_metrics_do_not_depend_on_the_number_of_workers(own_lab: MakeLab) -> None:
    """Every metric matches bit by bit, and the rows keep one order for any number of workers."""
    lab = own_lab()
    cpu, orders = torch.device("cpu"), set()
    for workers in (5, 2, 1):
        scale(lab.home.path, workers, timeout_s=DEADLINE_S)
        experiment = lab.experiment(lab.tables(train=30, test=41))
        experiment.run_etl(TinyETL(), progress=False)
        result = lab.result(lab.fit(experiment, Ranking(), tags="a", epochs=1), experiment)
        table = experiment.run_test(progress=False)
        (folder,) = lab.volumes.shared.glob(f"datasets/{experiment.name}-*/test")
        folders = sorted(folder.iterdir())
        assert len(folders) == workers
        loader = PartitionLoader(folders, batch_size=5, seed=None)
        orders.add(tuple(loader.stored_ids()))
        trainee = create(Ranking(), result.best.hyperparams, seed=3, model="m00", device=cpu)
        restore(trainee, checkpoints.load(lab.volumes.checkpoints, result.best.checkpoint, cpu))
        returned = evaluate(
            Ranking(),
            trainee,
            InstrumentedLoader(loader),
            result.best.hyperparams,
            seed=sub_epoch_seed(3, "m00", 1, -1),
        )
        expected = numbers_of(returned)
        assert table.loc["m00", list(expected)].to_dict() == expected
        assert expected["num_rows"] == 41
    assert len(orders) == 1


class Rows(TinyTraining):
    """Returns one value per row: model ``a`` guesses by the id's parity, ``b`` the same, and ``c`` is always wrong."""

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, Any]:
        known = super().test(models, checkpoint, dataloader, hyperparams)
        ids = [row for _ in dataloader for row in dataloader.ids]
        is_right = [hyperparams["tag"] != "c" and row % 2 == 0 for row in ids]
        return {**known, "right": PerRow(is_right)}


def test_models_with_equal_rows_share_a_rank(lab: Lab) -> None:
    """The ranking reads one value per row of each model, from workers' files; a later notebook gets the same one."""
    experiment = lab.experiment(lab.tables(train=30, valid=60))
    experiment.run_etl(TinyETL(), progress=False)
    result = lab.result(lab.fit(experiment, Rows(), tags="cab", epochs=1), experiment)
    assert result.failures() == {}
    table = experiment.run_test(["m00", "m01", "m02"], split="valid", progress=False)
    assert table["right"].to_dict() == {"m00": 0.0, "m01": 0.5, "m02": 0.5}
    ranking = table.ranking(metric="right", mode="max")
    assert [(each.rank, each.model, each.mean) for each in ranking.models] == [
        (1, "m01", 0.5),
        (1, "m02", 0.5),
        (3, "m00", 0.0),
    ]
    assert ranking.sentences() == ("m01 and m02 are tied (95 %)",)
    assert ranking.rows == 60
    assert lab.attach(experiment.name).ranking(metric="right", mode="max") == ranking
    with pytest.raises(DataError, match="'loss' has no values per row: the test has them of right"):
        table.ranking()
    with pytest.warns(
        UserWarning, match=r"means over 2 parts .* \(accuracy, loss; the others are of all rows\)"
    ):
        in_parts = experiment.run_test(["m00", "m01"], split="train", progress=False)
    assert in_parts["right"].to_dict() == {"m00": 0.0, "m01": 0.5}
    assert in_parts.ranking(metric="right", mode="max").rows == 30
