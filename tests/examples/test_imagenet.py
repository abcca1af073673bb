"""`examples/imagenet.py` and `examples/vision.py`: networks, augmentation, folders, and a small run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cerebro import Experiment
from cerebro.errors import LocatorError
from cerebro.local import cluster
from examples import imagenet, vision
from tests.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[2]
TINY = imagenet.Size(rows=6, classes=3, side=8, crop=6, width=0.1, epochs=1, space={})


def parameters(network: torch.nn.Module) -> int:
    """Count the trainable parameters."""
    return sum(each.numel() for each in network.parameters())


def test_networks_have_the_published_numbers_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the paper's 112 pixels, with Adam's two moments, the sizes equal the paper's table 5."""
    # On the meta device, torch's initialisation would import the compiler, which takes seconds.
    monkeypatch.setattr(torch.nn.init, "kaiming_normal_", lambda *_, **__: None)
    with torch.device("meta"):
        assert parameters(vision.vgg16(1000, 224)) == 138_357_544
        assert parameters(vision.ResNet50(1000)) == 25_557_032
        assert round(12 * parameters(vision.vgg16(1000, 112)) / 2**20) == 791  # the paper has 792
        assert round(12 * parameters(vision.ResNet50(1000)) / 2**20) == 292  # the paper has 293


@given(seed=st.integers(0, 2**32), rows=st.integers(1, 5), side=st.integers(6, 12))
def test_image_crops_depend_on_the_seed(seed: int, rows: int, side: int) -> None:
    """The same seed gives the same crops and each call new ones; values stay within the image's range."""
    images = torch.rand(rows, 3, side, side, generator=torch.Generator().manual_seed(seed))
    torch.manual_seed(seed)
    first, second = vision.augmented(images, 5), vision.augmented(images, 5)
    torch.manual_seed(seed)
    assert torch.equal(vision.augmented(images, 5), first)
    assert not torch.equal(first, second)
    assert first.shape == (rows, 3, 5, 5)
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    assert bool(((first >= low - 1e-5) & (first <= high + 1e-5)).all())


def test_half_of_the_images_are_mirrored() -> None:
    """Horizontally, not vertically."""
    torch.manual_seed(0)
    down = torch.linspace(0, 1, 16).view(16, 1).expand(16, 16)
    parts = vision.augmented(torch.stack([down, down.T, down]).expand(200, 3, 16, 16), 8)
    assert bool((parts[:, 0, -1, 0] > parts[:, 0, 0, 0]).all())
    mirrored = int((parts[:, 1, 0, -1] < parts[:, 1, 0, 0]).sum())
    assert 70 < mirrored < 130


def test_top_k_hits_are_counted() -> None:
    """For any number of classes."""
    logits = torch.arange(12.0).view(2, 6)
    assert imagenet.hits(logits, torch.tensor([5, 4]), 1) == 1
    assert imagenet.hits(logits, torch.tensor([1, 0]), 5) == 1
    assert imagenet.hits(logits[:, :2], torch.tensor([1, 0]), 5) == 2


class Batches(list[tuple[torch.Tensor, torch.Tensor]]):
    """A data loader double for `train`, without stored rows."""

    ranks = 1

    def progress(self, total: dict[str, Any]) -> dict[str, Any]:
        """Return no progress."""
        return total

    def report(self, **values: Any) -> None:
        """Ignore reports."""


@pytest.mark.slow
def test_a_last_batch_of_one_row_is_skipped(tmp_path: Path) -> None:
    """Batch normalization needs more than one value per channel, which a one-pixel feature map lacks."""
    (tmp_path / imagenet.MAPPING).write_text("n01440764 tench\nn01443537 goldfish\n")
    spec = imagenet.ImageNetTraining(32, 0.03)
    spec.misc_dir = str(tmp_path)
    spec.initialize_worker()
    chosen = {"architecture": "resnet50", "lr": 1e-3, "decay": 0.0}
    models = spec.create_models(chosen)
    images, labels = torch.zeros(3, 3, 36, 36, dtype=torch.uint8), torch.tensor([0, 1, 0])
    batches = Batches([(images[:2], labels[:2]), (images[2:], labels[2:])])
    metrics = spec.train(models, Mock(), batches, chosen)
    assert {ratio.denominator for ratio in metrics.values()} == {2}


def test_both_layouts_of_the_validation_images_give_the_same_rows(tmp_path: Path) -> None:
    """The archive's flat folder with its solution file, and a folder per class."""
    data = tmp_path / "imagenet"
    imagenet.synthesize(data, TINY)
    root = data / "ILSVRC/Data/CLS-LOC"
    flat = rows(imagenet.lay_out(data, tmp_path)["valid"]["metadata"])
    assert len(flat) == 3
    assert len(rows(str(tmp_path / "train.parquet"))) == 6
    assert set(rows(str(tmp_path / "predict.parquet"))) == {"ILSVRC2012_test_00000001"}
    (data / imagenet.SOLUTION).unlink()
    (root / "val" / ".DS_Store").touch()
    names = list(imagenet.read_mapping(data / imagenet.MAPPING))
    for row in flat.values():
        (root / "val" / names[row["label"]]).mkdir(exist_ok=True)
        (root / "val" / row["image"]).rename(root / "val" / names[row["label"]] / row["image"])
    sorted_in = rows(imagenet.lay_out(data, tmp_path)["valid"]["metadata"])
    assert {row: sorted_in[row]["label"] for row in sorted_in} == {row: flat[row]["label"] for row in flat}


def rows(path: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a table by id."""
    return {row["id"]: row for row in pa.parquet.read_table(path).to_pylist()}


def test_an_unknown_class_is_named(tmp_path: Path) -> None:
    """A folder or solution line of an unknown class, or a missing mapping."""
    imagenet.synthesize(tmp_path, TINY)
    stray = tmp_path / "ILSVRC/Data/CLS-LOC/train/n99999999"
    stray.mkdir()
    with pytest.raises(
        LocatorError, match=r"the folder .*/n99999999 is of no class in .*mapping.txt: add a line"
    ):
        imagenet.lay_out(tmp_path, tmp_path)
    stray.rmdir()
    with (tmp_path / imagenet.SOLUTION).open("a") as file:
        file.write("ILSVRC2012_val_00000009,n99999999 0 0 1 1\n")
    with pytest.raises(LocatorError, match="line 5: ILSVRC2012_val_00000009 is of the class 'n99999999'"):
        imagenet.lay_out(tmp_path, tmp_path)
    (tmp_path / imagenet.MAPPING).unlink()
    with pytest.raises(LocatorError, match=r"has no LOC_synset_mapping.txt: give --data the folder"):
        imagenet.lay_out(tmp_path, tmp_path)


def test_invalid_image_files_are_errors(tmp_path: Path) -> None:
    """Missing, truncated or foreign files are reported; valid images are center-cropped."""
    Image.new("RGB", (60, 20), "red").save(tmp_path / "red.JPEG")
    assert vision.read_image(str(tmp_path), "image", "red.JPEG", 8).shape == (3, 8, 8)
    whole = (tmp_path / "red.JPEG").read_bytes()
    for name, content in (("cut.JPEG", whole[:-200]), ("text.JPEG", b"<html>"), ("empty.JPEG", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(
            ValueError, match=f"column 'image' names {name}, which cannot be read as an image"
        ):
            vision.read_image(str(tmp_path), "image", name, 8)
    with pytest.raises(FileNotFoundError, match=r"column 'image' names gone\.JPEG, which is not in"):
        vision.read_image(str(tmp_path), "image", "gone.JPEG", 8)


@pytest.mark.slow
@pytest.mark.processes
def test_the_small_example_finishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On its own cluster with given files, one damaged and one missing: both rows are reported, and training uses the
    rest.
    """
    data = tmp_path / "imagenet"
    imagenet.synthesize(data, imagenet.SMALL)
    root = data / "ILSVRC/Data/CLS-LOC"
    damaged = root / "train/n10000003/n10000003_3.JPEG"
    damaged.write_bytes(damaged.read_bytes()[:100])
    (root / "val/ILSVRC2012_val_00000001.JPEG").unlink()
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    monkeypatch.setenv("CEREBRO_HOME", str(tmp_path / "home"))
    command = [sys.executable, str(ROOT / "examples/imagenet.py"), "--small", "--data", str(data)]
    command += ["--max-failed", "0.02"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=dict(os.environ), timeout=4 * HANG_S, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        experiment = Experiment.attach("imagenet")
        dataset = experiment.state().newest_dataset()
        assert dataset is not None
        assert "2 rows were left out, such as 'n10000003_3'" in done.stdout
        board = experiment.result().leaderboard()
        assert list(board["state"]) == ["finished"] * 4
        assert board["top1"].max() > 0.25  # chance gives 0.1
    finally:
        cluster.stop(tmp_path / "home")
