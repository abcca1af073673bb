"""`examples/coco.py` and `examples/captions.py`: tokens, vocabulary, BLEU, loss, and a small run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cerebro import Experiment, Ragged
from cerebro.errors import LocatorError
from cerebro.local import cluster
from examples import captions, coco, vision
from tests.waiting import HANG_S

ROOT = Path(__file__).resolve().parents[2]
_CAPTIONS = st.lists(st.text("ab ", max_size=8), min_size=1, max_size=4)


def test_captions_are_split_into_lower_case_words() -> None:
    """Lower case, without punctuation, with apostrophes inside."""
    said = "A man's dog, isn't it?  On 2 café_tables."
    assert captions.words_of(said) == ["a", "man's", "dog", "isn't", "it", "on", "2", "café", "tables"]


@given(images=st.lists(_CAPTIONS, min_size=1, max_size=4))
def test_captions_round_trip_through_tokens(images: list[list[str]]) -> None:
    """For any number and length of captions; unknown words become the unknown token."""
    vocabulary = captions.Vocabulary((*captions.SPECIAL, "a", "b"))
    rows = [torch.from_numpy(captions.tokens_of(said, vocabulary.numbers())) for said in images]
    tokens, owners = coco.one_by_one(Ragged.of(rows))
    expected = [(image, caption) for image, said in enumerate(images) for caption in said]
    assert owners.tolist() == [image for image, _ in expected]
    assert [vocabulary.text(row[1:]) for row in tokens.tolist()] == [
        " ".join(word if word in ("a", "b") else "<unk>" for word in captions.words_of(caption))
        for _, caption in expected
    ]


def test_the_vocabulary_has_the_most_frequent_words() -> None:
    """The most frequent first, in any order of captions; ties are alphabetical."""
    vocabulary = captions.Vocabulary.of(["b a b", "A c"], 2)
    assert list(vocabulary.words) == [*captions.SPECIAL, "a", "b"]


def test_bleu_follows_the_paper() -> None:
    """Papineni et al., 2002: corpus-wide counts of 1 to 4-grams, clipped by the references, with a brevity penalty."""
    references = [["the cat is on the mat", "there is a cat on the mat"], ["a dog runs here"]]
    assert captions.bleu4(["the cat is on the mat", "a dog runs here"], references) == pytest.approx(1)
    # 1 to 4-grams: 9/9, 6/7, 4/5, 2/3; 9 words against references of 6 and 4.
    expected = np.exp(1 - 10 / 9) * (1 * 6 / 7 * 4 / 5 * 2 / 3) ** 0.25
    said = ["the cat is on mat", "a dog runs here"]
    assert captions.bleu4(said, references) == pytest.approx(expected)
    assert captions.bleu4(["", ""], references) == 0
    # Missing references have no length: 8 words against 6 and 4.
    assert captions.bleu4(["the cat is on the mat", "a dog"], references) == pytest.approx(np.exp(1 - 10 / 8))


def test_the_loss_ignores_padding() -> None:
    """A uniform decoder has the logarithm of the vocabulary size as loss, for any padding."""

    class Even(torch.nn.Module):
        def forward(self, features: Any, images: Any, tokens: Any) -> Any:
            return torch.zeros(*tokens.shape, 7)

    rows = [captions.tokens_of(said, {"a": 4}) for said in (["a a a", ""], ["a"])]
    loss, tokens = coco._loss(Even(), torch.zeros(2, 3), Ragged.of([torch.from_numpy(row) for row in rows]))
    assert tokens == 4 + 1 + 2
    assert float(loss) == pytest.approx(tokens * np.log(7))


def test_captions_are_generated_word_by_word() -> None:
    """Each word is the likeliest under the scores of the whole caption, up to the length limit."""
    torch.manual_seed(0)
    decoder = coco.Decoder(5, 9, 4, 6).eval()
    features = torch.randn(3, 5)
    said = decoder.say(features)
    assert 1 <= said.shape[1] <= coco.LONGEST
    shown = torch.cat([torch.full((3, 1), captions.START), said[:, :-1]], 1)
    assert torch.equal(decoder(features, torch.arange(3), shown).argmax(2), said)


def test_each_image_is_a_row_with_all_its_captions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With all its captions; only the training split defines the vocabulary, and unknown words are counted."""
    captions.synthesize(tmp_path, 20, 16)
    located = captions.lay_out(tmp_path, tmp_path / "tables", at_least=2)
    rows = pa.parquet.read_table(located["valid"]["metadata"]).to_pylist()
    listed = json.loads((tmp_path / "annotations/captions_val2017.json").read_text())
    assert [row["id"] for row in rows] == [image["id"] for image in listed["images"]]
    assert [caption for row in rows for caption in row["captions"]] == [
        each["caption"] for each in listed["annotations"]
    ]
    assert "captions" not in pa.parquet.read_table(located["predict"]["metadata"]).column_names
    output = capsys.readouterr().out
    unknown = captions.tokens_of(
        [each["caption"] for each in listed["annotations"]],
        captions.Vocabulary.read(tmp_path / "tables" / captions.VOCABULARY).numbers(),
    )
    assert f"valid: 2 images, 10 captions; {(unknown == captions.UNKNOWN).sum()} of " in output


def test_invalid_coco_files_are_errors(tmp_path: Path) -> None:
    """Missing, truncated or foreign files, captions without an image, or images without captions."""
    path = tmp_path / "annotations/captions_train2017.json"
    with pytest.raises(LocatorError, match=r"there is no file .*train2017.json: give --data the folder"):
        captions.lay_out(tmp_path, tmp_path, at_least=1)
    path.parent.mkdir()
    for content in ('{"images": [', "[]", '{"annotations": []}'):
        path.write_text(content)
        with pytest.raises(LocatorError, match="is none of COCO's files of captions"):
            captions.read_split(path)
    image, caption = {"id": 1, "file_name": "1.jpg"}, {"id": 7, "image_id": 2, "caption": "A dog."}
    path.write_text(json.dumps({"images": [image], "annotations": [caption]}))
    with pytest.raises(LocatorError, match="caption 7 is of image 2, which it does not list"):
        captions.read_split(path)
    path.write_text(json.dumps({"images": [image], "annotations": []}))
    with pytest.raises(LocatorError, match="1 of 1 images have no caption, such as image 1"):
        captions.lay_out(tmp_path, tmp_path, at_least=1)


@pytest.mark.parametrize("content", [b"", b"hello", None])
def test_invalid_encoder_weights_are_an_error(tmp_path: Path, content: bytes | None) -> None:
    """Empty or foreign files, or weights of another network."""
    path = tmp_path / "weights.pth"
    if content is None:
        torch.save({"conv1.weight": torch.zeros(1)}, path)
    else:
        path.write_bytes(content)
    with pytest.raises(
        LocatorError, match=r"weights.*: give a state_dict of ResNet50 with torchvision's names"
    ):
        coco._published(path, vision.ResNet50(0, 0.1).state_dict())


@pytest.mark.slow
@pytest.mark.processes
def test_the_small_example_finishes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On its own cluster: captions beat a constant one, each model stores the encoder once, predictions are text."""
    monkeypatch.delenv("CEREBRO_SERVER", raising=False)
    monkeypatch.setenv("CEREBRO_HOME", str(tmp_path))
    command = [sys.executable, str(ROOT / "examples/coco.py"), "--small"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=dict(os.environ), timeout=4 * HANG_S, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert "are not in the vocabulary" in done.stdout
        board = Experiment.attach("coco").result().leaderboard()
        assert list(board["state"]) == ["finished"] * 2
        assert board["bleu4"].max() > 0.4
        assert "picture with one" in done.stdout or "ground" in done.stdout.split("such as:")[1]
        for model in board["model"]:
            files = list((tmp_path / "volumes/checkpoints/coco/fit-1" / model).iterdir())
            frozen = [path.stat().st_size for path in files if path.name.startswith("frozen-")]
            assert len(frozen) == 1
            assert frozen[0] > 20 * 2**20
            assert all(path.stat().st_size < 4 * 2**20 for path in files if path.suffix == ".pt")
    finally:
        cluster.stop(tmp_path)
