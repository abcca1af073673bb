"""What `run_test` measures on a real cluster: what validation does, and what one process does with the whole split."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cerebro.data.loader import PartitionLoader
from cerebro.local.cluster import scale
from cerebro.worker.training import checkpoint as checkpoints
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.seeds import unit_seed
from cerebro.worker.training.unit import create, evaluate, restore
from tests.e2e.conftest import MakeLab
from tests.e2e.harness import DEADLINE_S, Lab
from tests.e2e.specs import TinyETL, TinyTraining

pytestmark = pytest.mark.slow


class Ranking(TinyTraining):
    """Measures the area under the ROC curve of class 0, which is no mean over rows, beside the rest."""

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        """See `SubEpochSpec`."""
        known = super().test(models, checkpoint, dataloader, hyperparams)
        pairs = [
            (float(score), int(label))
            for inputs, labels in dataloader
            for score, label in zip(models[0](inputs)[:, 0], labels, strict=True)
        ]
        inside, outside = ([s for s, label in pairs if (label == 0) is is_in] for is_in in (True, False))
        wins = sum(one > other for one in inside for other in outside)
        return {**known, "auc": wins / (len(inside) * len(outside)), "num_rows": dataloader.num_rows}


def test_a_test_measures_what_validation_did(lab: Lab, prepared: str) -> None:
    """Metrics of all kinds, to the bit, of several models; on training data, which lies apart, means that are told."""
    experiment = lab.attach(prepared)
    result = lab.result(lab.fit(experiment, Ranking(), tags="abc", epochs=1), experiment)
    validated = result.history().query("split == 'valid'").set_index("model")
    table = experiment.run_test(["m00", "m01", "m02"], split="valid", progress=False)
    assert "parts" not in table
    for metric in ("loss", "accuracy", "auc", "num_rows"):
        assert table[metric].to_dict() == validated[metric].to_dict()
    with pytest.warns(UserWarning, match="the split 'train' are means over 2 parts"):
        parts = experiment.run_test(split="train", progress=False)
    assert list(parts["parts"]) == [2]


def test_metrics_are_those_of_one_process_with_one_to_five_workers(own_lab: MakeLab) -> None:
    """Every metric, to the bit; and the rows of the split come in one order, however many workers cut it."""
    lab = own_lab()
    cpu, orders = torch.device("cpu"), set()
    for workers in (5, 4, 3, 2, 1):
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
        expected = evaluate(
            Ranking(),
            trainee,
            InstrumentedLoader(loader),
            result.best.hyperparams,
            seed=unit_seed(3, "m00", 1, -1),
        )
        assert table.loc["m00", list(expected)].to_dict() == expected
        assert expected["num_rows"] == 41
    assert len(orders) == 1
