"""What `run_test` measures on a real cluster: the same as validation of the same checkpoint on the same split."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.harness import Lab
from tests.e2e.specs import TinyTraining


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
