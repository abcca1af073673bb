"""COCO files, caption vocabulary and BLEU-4 for `coco.py`."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from PIL import Image, ImageDraw

from cerebro.errors import LocatorError

PAD, START, END, UNKNOWN = range(4)
SPECIAL = ("<pad>", "<start>", "<end>", "<unk>")
VOCABULARY = "vocabulary.txt"
SPLITS = {
    "train": ("captions_train2017.json", "train2017"),
    "valid": ("captions_val2017.json", "val2017"),
    "predict": ("image_info_test2017.json", "test2017"),
}
"""Annotation file and image folder of each split. The files of `predict` are optional."""

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def words_of(caption: str) -> list[str]:
    """Split a caption into lower-case words without punctuation.

    COCO's own evaluation uses another tokenizer, with nearly the same result.
    """
    return _WORD.findall(caption.lower())


@dataclass(frozen=True)
class Vocabulary:
    """Words and their token numbers.

    Attributes:
        words: `SPECIAL`, then the words of the captions. The index of a word is its token number.
    """

    words: Sequence[str]

    @classmethod
    def of(cls, captions: Iterable[str], at_least: int) -> Vocabulary:
        """Collect the words that occur at least `at_least` times, most frequent first."""
        counts = Counter(word for caption in captions for word in words_of(caption))
        known = sorted((-count, word) for word, count in counts.items() if count >= at_least)
        return cls((*SPECIAL, *(word for _, word in known)))

    @classmethod
    def read(cls, path: Path) -> Vocabulary:
        """Read a file with one word per line."""
        return cls(path.read_text().splitlines())

    def numbers(self) -> dict[str, int]:
        """Map each word to its token number."""
        return {word: number for number, word in enumerate(self.words)}

    def text(self, tokens: Iterable[int]) -> str:
        """Join the words before the first `END` with spaces."""
        words = itertools.takewhile(lambda token: token != END, tokens)
        return " ".join(self.words[token] for token in words)


def tokens_of(captions: Iterable[str], numbers: Mapping[str, int]) -> Any:
    """Convert captions to tokens and concatenate them.

    Each caption starts with `START` and ends with `END`. A word that is not in `numbers` becomes `UNKNOWN`.

    Returns:
        int32 of shape (tokens,).
    """
    found = (
        [START, *(numbers.get(word, UNKNOWN) for word in words_of(caption)), END] for caption in captions
    )
    return np.fromiter(itertools.chain.from_iterable(found), np.int32)


def bleu4(said: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Compute corpus BLEU-4 (Papineni et al., 2002), from 0 to 1.

    As in COCO's own evaluation, BLEU is not smoothed, and each caption is compared with all references of its image.

    Args:
        said: generated captions, as words separated by spaces.
        references: human captions of each image, in the same format.
    """
    from sacrebleu.metrics.bleu import BLEU

    most = max(map(len, references))
    # sacrebleu needs the same number of references for each image, and ignores `None`.
    streams: Any = [[given[n] if n < len(given) else None for given in references] for n in range(most)]
    score = BLEU(tokenize="none", smooth_method="none", force=True).corpus_score(list(said), streams)
    return float(score.score) / 100


# --- read COCO's files ---------------------------------------------------------------------------


def read_split(path: Path) -> list[dict[str, Any]]:
    """Read the images of a COCO file with their captions.

    Returns:
        One dict per image: ``id``, ``image`` (the file name) and ``captions``, an empty list if the file has no
        captions.

    Raises:
        LocatorError: the file is missing or has another format, or a caption names an image that is not in the file.
    """
    try:
        content = json.loads(path.read_text())
        rows = {
            image["id"]: {"id": image["id"], "image": image["file_name"], "captions": []}
            for image in content["images"]
        }
        for caption in content.get("annotations", ()):
            if caption["image_id"] not in rows:
                raise LocatorError(
                    f"{path}: caption {caption['id']} is of image {caption['image_id']}, which it does not list: "
                    "remove the caption or add the image"
                )
            rows[caption["image_id"]]["captions"].append(caption["caption"])
    except FileNotFoundError as cause:
        raise LocatorError(
            f"there is no file {path}: give --data the folder that contains annotations, train2017 and val2017"
        ) from cause
    except (ValueError, KeyError, TypeError) as cause:
        raise LocatorError(
            f"{path} is none of COCO's files of captions ({type(cause).__name__}: {cause}): expected JSON with a list "
            "'images' (id, file_name) and a list 'annotations' (id, image_id, caption)"
        ) from cause
    return list(rows.values())


def lay_out(data: Path, folder: Path, *, at_least: int) -> dict[str, Any]:
    """Write the vocabulary, and one table per split with one row per image.

    The vocabulary contains words of the training captions. Prints the number of words outside the vocabulary.

    Args:
        data: folder with COCO's ``annotations``, ``train2017``, ``val2017`` and, optionally, ``test2017``.
        folder: output folder for the tables and the vocabulary.
        at_least: minimum count of a word in the training captions.

    Returns:
        Dataset locators.

    Raises:
        LocatorError: as in `read_split`; or a training or validation image has no caption.
    """
    folder.mkdir(parents=True, exist_ok=True)
    located: dict[str, Any] = {"misc": [str(folder / VOCABULARY)]}
    numbers: dict[str, int] = {}
    for split, (name, images) in SPLITS.items():
        path = data / "annotations" / name
        if split == "predict" and not path.exists():
            continue
        rows = read_split(path)
        if split != "predict":
            _require_captions(path, rows)
            captions = [caption for row in rows for caption in row["captions"]]
            if split == "train":
                vocabulary = Vocabulary.of(captions, at_least)
                numbers = vocabulary.numbers()
                write_if_changed(folder / VOCABULARY, "\n".join(vocabulary.words).encode())
                print(f"{len(numbers):,} tokens: words that occur at least {at_least} times, and {SPECIAL}")
            tokens = tokens_of(captions, numbers)
            words, unknown = int((tokens > END).sum()), int((tokens == UNKNOWN).sum())
            print(
                f"{split}: {len(rows):,} images, {len(captions):,} captions; {unknown:,} of {words:,} words are not "
                f"in the vocabulary ({unknown / max(1, words):.2%}) and become {SPECIAL[UNKNOWN]}"
            )
        table = pa.Table.from_pylist(rows)
        pa.parquet.write_table(
            table.drop_columns("captions") if split == "predict" else table, folder / f"{split}.parquet"
        )
        located[split] = {"metadata": str(folder / f"{split}.parquet"), "objects": str(data / images)}
    return located


def _require_captions(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    without = [row["id"] for row in rows if not row["captions"]]
    if without:
        raise LocatorError(
            f"{path}: {len(without)} of {len(rows)} images have no caption, such as image {without[0]}: add captions "
            "or remove these images"
        )


def write_if_changed(path: Path, content: bytes) -> None:
    """Write a file, unless it already has this content.

    A rewritten `misc` file makes Cerebro preprocess all rows again.
    """
    if not path.exists() or path.read_bytes() != content:
        path.write_bytes(content)


# --- write synthetic files in COCO's format ------------------------------------------------------

COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 180, 60),
    "blue": (40, 70, 220),
    "yellow": (230, 210, 50),
    "black": (25, 25, 25),
    "white": (240, 240, 240),
}
SHAPES = ("circle", "square", "triangle")
SAYINGS = (
    "A {size} {shape_colour} {shape} on a {ground} ground.",
    "There is a {shape_colour} {shape}.",
    "A {shape} that is {size} and {shape_colour}, in front of something {ground}.",
    "Somebody painted a {size} {shape} {shape_colour}",
    "A {ground} picture with one {shape_colour} {shape} in it.",
)


def synthesize(data: Path, rows: int, side: int, *, seed: int = 0) -> None:
    """Write images of painted shapes, with five captions each, in COCO's folders and format.

    About one image in ten has a caption with a unique word, so the vocabulary omits some words.

    Args:
        data: output folder.
        rows: number of training images. A tenth as many are for validation.
        side: minimum width and height of an image, in pixels.
        seed: seed of the images and captions.
    """
    (data / "annotations").mkdir(parents=True, exist_ok=True)
    first = 1
    for number, (split, (name, images)) in enumerate(SPLITS.items()):
        count = {"train": rows, "valid": max(1, rows // 10)}.get(split, max(1, rows // 50))
        generator = np.random.default_rng([seed, number])
        (data / images).mkdir(exist_ok=True)
        scenes = [_Scene.drawn(generator, side) for _ in range(count)]
        listed = [{"id": first + n, "file_name": f"{first + n:012d}.jpg"} for n in range(count)]
        said = [
            (image["id"], caption)
            for image, scene in zip(listed, scenes, strict=True)
            for caption in scene.said
        ]
        annotations = [
            {"id": 10 * first + n, "image_id": image, "caption": caption}
            for n, (image, caption) in enumerate(said)
        ]
        content = {"images": listed} | ({} if split == "predict" else {"annotations": annotations})
        (data / "annotations" / name).write_text(json.dumps(content))
        paths = [data / images / str(image["file_name"]) for image in listed]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(_Scene.paint, scenes, paths):
                pass
        first += count


@dataclass(frozen=True)
class _Scene:
    """One shape on a background, with its captions."""

    size: tuple[int, int]
    corner: tuple[int, int]
    diameter: int
    shape: str
    shape_colour: str
    ground: str
    said: Sequence[str]

    @classmethod
    def drawn(cls, generator: np.random.Generator, side: int) -> _Scene:
        width, height = (int(each) for each in generator.integers(side, side + side // 4, 2))
        is_large = bool(generator.integers(2))
        diameter = 4 * side // 5 if is_large else 2 * side // 5
        across, down = (int(generator.integers(0, room - diameter)) for room in (width, height))
        shape = str(generator.choice(SHAPES))
        shape_colour, ground = (str(each) for each in generator.choice(list(COLOURS), 2, replace=False))
        attributes = {"size": "large" if is_large else "small", "shape": shape, "shape_colour": shape_colour}
        said = [saying.format(**attributes, ground=ground) for saying in SAYINGS]
        if generator.random() < 0.1:
            said[0] += f" Seen by {generator.integers(2**32):x}q."
        return cls((width, height), (across, down), diameter, shape, shape_colour, ground, said)

    def paint(self, path: Path) -> None:
        image = Image.new("RGB", self.size, COLOURS[self.ground])
        (left, top), draw = self.corner, ImageDraw.Draw(image)
        right, bottom = left + self.diameter, top + self.diameter
        fill = COLOURS[self.shape_colour]
        if self.shape == "circle":
            draw.ellipse((left, top, right, bottom), fill)
        elif self.shape == "square":
            draw.rectangle((left, top, right, bottom), fill)
        else:
            draw.polygon([((left + right) // 2, top), (left, bottom), (right, bottom)], fill)
        image.save(path, "JPEG")
