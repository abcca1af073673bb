"""Ragged fields on a real cluster: ETL, training, validation and prediction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cerebro import ETLSpec, ragged
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyTraining

pytestmark = pytest.mark.slow


class CaptionETL(ETLSpec):
    """A picture and words as input; words, boxes and a label as output. A row has id mod 4 words."""

    def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
        count = row["id"] % 4
        words = np.arange(count, dtype=np.int64) + row["id"]
        boxes = np.full((count, 2), row["x"], np.float32)
        picture = np.full((2, 3), row["id"], np.uint8)
        return {"picture": picture, "words": ragged(words)}, (ragged(boxes), int(row["label"]))


class Captioning(TinyTraining):
    """Averages a row's words; raises if a value does not match the row's id."""

    def create_models(self, hyperparams: Any) -> list[Any]:
        return [nn.ModuleDict({"known": nn.Embedding(64, 4), "head": nn.Linear(4, 3)})]

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        loss = torch.zeros(())
        for inputs, (boxes, labels) in dataloader:
            counts = [number % 4 for number in dataloader.ids]
            assert inputs["words"].lengths.tolist() == boxes.lengths.tolist() == counts
            assert inputs["picture"][:, 0, 0].tolist() == dataloader.ids
            loss = nn.functional.cross_entropy(self.scores(models[0], inputs["words"]), labels)
            weights = list(models[0].parameters())
            for weight, slope in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.data.sub_(slope, alpha=hyperparams["lr"])
        return {"loss": loss.item()}

    def scores(self, network: Any, words: Any) -> torch.Tensor:
        """Score the mean of a row's words."""
        vectors = words.with_values(network["known"](words.values)).padded()
        mean = vectors.sum(1) / words.lengths.clamp(min=1)[:, None]
        return network["head"](mean)  # type: ignore[no-any-return]

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        loss = [
            float(nn.functional.cross_entropy(self.scores(models[0], inputs["words"]), labels))
            for inputs, (_, labels) in dataloader
        ]
        return {"loss": sum(loss)}

    def predict(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Any:
        for inputs, (boxes, _) in dataloader:
            words = inputs["words"]
            yield {
                "caption": [" ".join(map(str, row.tolist())) for row in words],
                "words": words,
                "boxes": list(boxes),
                "scores": {"all": self.scores(models[0], words), "best": torch.zeros(len(words))},
            }


def test_captions_are_trained_on_and_predicted(lab: Lab) -> None:
    """Predictions return each row's values under its id; fields with a fixed shape work as before."""
    experiment = lab.experiment()
    experiment.run_etl(CaptionETL(), progress=False)
    result = lab.result(lab.fit(experiment, Captioning(), tags="ab", epochs=2), experiment)
    assert set(result.history()["split"]) == {"train", "valid"}
    table = experiment.run_predict(split="valid", models=["m00"], progress=False)
    assert len(table) == 12
    for number, row in zip(map(int, table.index), table.to_dict("records"), strict=True):
        words = [number + at for at in range(number % 4)]
        assert row["words"] == words
        assert row["caption"] == " ".join(map(str, words))
        assert np.shape(row["boxes"]) == ((len(words), 2) if words else (0,))
        assert len(row["scores.all"]) == 3
        assert row["scores.best"] == 0
    tried = experiment.dry_run(CaptionETL(), Captioning(), {"lr": 0.1, "batch_size": 4})
    assert tried.batch["input.words"] == "int64 (4, any)"
    assert tried.batch["output.0"] == "float32 (4, any, 2)"
