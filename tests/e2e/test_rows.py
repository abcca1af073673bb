"""Rows that models get wrong or disagree on, from a notebook and on the page, with images of a user's folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from cerebro.cli import main
from cerebro.errors import DataError
from cerebro.spec import PerRow
from tests.e2e.browser import Complaints, mistakes, sign_in, window
from tests.e2e.harness import Lab
from tests.e2e.specs import TinyETL, TinyTraining
from tests.e2e.walk import Walk, write_data

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


class ImageETL(TinyETL):
    """Also stores an image that is no object."""

    def row_preprocessor(self, row: Any, mode: str, object_dir: str) -> tuple[Any, Any]:
        values, label = super().row_preprocessor(row, mode, object_dir)
        return values, {"label": label, "picture": np.full((16, 12, 3), row["id"], np.uint8)}


class Guesses(TinyTraining):
    """Model ``a`` predicts 0 for each row, ``b`` 1, and ``c`` the label, or 0 for row 104."""

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, Any]:
        return {"loss": sum(len(targets["label"]) for _, targets in dataloader)}

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, Any]:
        labels = [int(label) for _, targets in dataloader for label in targets["label"]]
        ids = [row for _ in dataloader for row in dataloader.ids]
        tag = hyperparams["tag"]
        guesses = [
            "ab".index(tag) if tag in "ab" else 0 if row == 104 else label
            for row, label in zip(ids, labels, strict=True)
        ]
        right = [guess == label for guess, label in zip(guesses, labels, strict=True)]
        return {"loss": 1.0, "right": PerRow(right), "label": PerRow(labels), "prediction": PerRow(guesses)}


def test_rows_from_a_real_test(
    lab: Lab, browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A notebook gets values, labels and predictions; the page shows objects, and arrays where an object is missing."""
    table, objects = write_data(tmp_path / "data", 30)
    valid, _ = write_data(tmp_path / "valid", 12, first=100)
    locators = {
        "train": {"metadata": table, "objects": objects},
        "valid": {"metadata": valid, "objects": objects},
    }
    experiment = lab.experiment(locators)
    experiment.run_etl(ImageETL(), progress=False)
    result = lab.result(lab.fit(experiment, Guesses(), tags="abc", epochs=1), experiment)
    assert result.failures() == {}
    tested = experiment.run_test(["m00", "m01", "m02"], split="valid", progress=False)
    hardest = tested.rows(metric="right", mode="max", hardest=1)
    assert hardest.index.tolist() == [104]
    (found,) = hardest.to_dict("records")
    assert [found[name] for name in ("m00", "m01", "m02", "mean", "label")] == [0, 0, 0, 0, 2]
    assert [found[f"{name} prediction"] for name in ("m00", "m01", "m02")] == [0, 1, 0]
    pair = lab.attach(experiment.name).rows(metric="right", disagree=("m00", "m01"))
    assert sorted(pair.index[pair["difference"] == 1]) == [102, 105, 108, 111]
    assert sorted(pair.index[pair["difference"] == -1]) == [100, 103, 106, 109]
    assert len(tested.rows(metric="right")) == 12
    with pytest.raises(DataError, match="no values per row of 'm07': it has them of m00, m01, m02"):
        tested.rows(metric="right", models=["m07"])
    command = ["rows", experiment.name, "--metric", "right", "--mode", "max"]
    capsys.readouterr()
    assert main([*command, "--size", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["104", *"0000"]
    assert main([*command, "--disagree", "m00", "m01"]) == 0
    assert capsys.readouterr().out.endswith("m00 and m01 differ on 8 of 12 rows.\n")
    (Path(objects) / "0.png").unlink()  # of rows with label 0
    complaints = Complaints()
    with window(browser) as context:
        page = complaints.listen(context.new_page())
        address = lab.info().dispatcher
        walk = Walk(lab=lab, page=page, address=address, folder=tmp_path)
        path = f"/experiments/{experiment.name}/rows?metric=right&mode=max"
        sign_in(page, address, lab.info().token(), path)
        walk.shows("1 of 12 rows is wrong for all 3 models. The 12 rows with the worst mean right")
        row = page.locator("#hardest + p + div tbody tr").first
        walk.says(row, re.compile(r"104.*predicts 1.*label 2.*image 2\.png", re.DOTALL))
        page.select_option("#first", "m00")
        page.select_option("#second", "m01")
        page.get_by_role("button", name="Show").click()
        walk.shows("m00 and m01 differ on 8 of 12 rows.")
        sizes = page.evaluate(
            """() => Promise.all([...document.querySelectorAll(".rows img")].map(async (image) => {
                image.loading = "eager";
                await image.decode();
                return [+image.nextElementSibling.textContent, image.naturalWidth, image.naturalHeight];
            }))"""
        )
        assert len(sizes) == 20
        assert all(size == ([12, 16] if row % 3 == 0 else [8, 8]) for row, *size in sizes)
        assert mistakes(page, path, tmp_path) == []
    complaints.check()
