"""Train image captioning on COCO: a frozen CNN encoder and an LSTM decoder.

The workload of Sridhara (2023, section 5.2), after Vinyals et al. (CVPR 2015): 8 configurations, compared by BLEU-4.
The example downloads nothing. It paints shapes and writes them, with captions, in COCO's format. ``--data FOLDER``
reads the real files instead. ``--encoder FILE`` loads published weights of ResNet50. ``--small`` runs on a laptop.
docs/workloads.md lists the results.
"""

from __future__ import annotations

import argparse
import io
import itertools
import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cerebro import ETLSpec, Experiment, Frozen, Hints, Ragged, Ratio, SubEpochSpec, data_folder, ragged
from cerebro.errors import CerebroError, LocatorError

if __package__:
    from examples import captions, vision
else:  # run as a script: Python searches the script's folder
    import captions  # type: ignore[import-not-found, no-redef]
    import vision  # type: ignore[import-not-found, no-redef]

ENCODER = "encoder.pt"
LONGEST = 20
"""Maximum length of a generated caption, in words. One in a hundred COCO captions is longer."""
CALIBRATION = 64
"""Number of images that set the encoder's batch norm statistics."""


@dataclass(frozen=True)
class Size:
    """Sizes of the data and the networks, and the search space.

    Attributes:
        rows: number of synthetic training images. A tenth as many are for validation.
        side: side of a preprocessed image, in pixels.
        crop: side of the encoder's input, in pixels.
        width: number of channels of the encoder, as a fraction of the published ResNet50.
        at_least: minimum count of a word in the vocabulary.
        epochs: number of epochs of each model.
        space: values of each hyperparameter. All combinations are trained.
    """

    rows: int
    side: int
    crop: int
    width: float
    at_least: int
    epochs: int
    space: dict[str, list[float | int]]


PAPER = Size(
    rows=20_000,
    side=256,
    crop=224,
    width=1.0,
    at_least=5,
    epochs=8,
    # 26 images have 130 captions. The batches of the thesis have 128 captions.
    space={"lr": [1e-2, 1e-3], "embed": [256, 512], "hidden": [256, 512], "batch_size": [26]},
)
SMALL = Size(
    rows=500,
    side=40,
    crop=32,
    width=0.5,
    at_least=3,
    epochs=3,
    space={"lr": [1e-2], "embed": [64], "hidden": [64, 128], "batch_size": [10]},
)


class CocoETL(ETLSpec):
    """Turns an image into a square of uint8 pixels, and its captions into tokens."""

    def __init__(self, side: int) -> None:
        self.is_feature_download = ["image"]
        self.side = side

    def initialize_worker(self) -> None:
        """Read the vocabulary from the `misc` files."""
        self.numbers = captions.Vocabulary.read(Path(self.misc_dir) / captions.VOCABULARY).numbers()

    def row_preprocessor(self, row: Mapping[str, Any], mode: str, object_dir: str) -> tuple[Any, Any]:
        """Read an image and convert its captions.

        Both outputs are ragged, because the number and length of captions differ. `test` needs ``text`` for BLEU: a
        reference word outside the vocabulary must not match any prediction.

        Returns:
            Input: uint8 of shape (3, side, side). Output: ``tokens``, all captions of the image concatenated; ``text``,
            the words as UTF-8 bytes, one caption per line. In `predict` the output is `None`.
        """
        pixels = vision.read_image(object_dir, "image", row["image"], self.side)
        if mode == "predict":
            return pixels, None
        text = "\n".join(" ".join(captions.words_of(caption)) for caption in row["captions"])
        return pixels, {
            "tokens": ragged(captions.tokens_of(row["captions"], self.numbers)),
            "text": ragged(np.frombuffer(text.encode(), np.uint8)),
        }


class Decoder(nn.Module):
    """LSTM that predicts the next word of a caption.

    Its first input is the image. The words of the caption follow (Vinyals et al., section 3.1).
    """

    def __init__(self, features: int, words: int, embed: int, hidden: int) -> None:
        super().__init__()
        self.image = nn.Linear(features, embed)
        self.word = nn.Embedding(words, embed, padding_idx=captions.PAD)
        self.lstm = nn.LSTM(embed, hidden, batch_first=True)
        self.next = nn.Linear(hidden, words)

    def forward(self, features: Tensor, images: Tensor, tokens: Tensor) -> Tensor:
        """Compute logits of the word after each token.

        Args:
            features: output of the encoder, shape (images, features).
            images: index of each caption's image, shape (captions,).
            tokens: captions, shape (captions, length).

        Returns:
            Logits, shape (captions, length, words).
        """
        shown = torch.cat([self.image(features)[images, None], self.word(tokens)], dim=1)
        scores: Tensor = self.next(self.lstm(shown)[0][:, 1:])
        return scores

    def say(self, features: Tensor) -> Tensor:
        """Generate a caption for each image by greedy decoding.

        Stops when each caption has an `END` token, or after `LONGEST` words.

        Returns:
            Tokens, shape (images, words).
        """
        _, state = self.lstm(self.image(features)[:, None])
        token = torch.full((len(features), 1), captions.START, device=features.device)
        said = [token[:, :0]]
        while len(said) <= LONGEST and not all_ended(said):
            out, state = self.lstm(self.word(token), state)
            token = self.next(out).argmax(2)
            said.append(token)
        return torch.cat(said, 1)


def all_ended(said: list[Tensor]) -> bool:
    """Return True if each caption has an `END` token."""
    return bool((torch.cat(said, 1) == captions.END).any(1).all())


def one_by_one(tokens: Ragged) -> tuple[Tensor, Tensor]:
    """Split concatenated captions into one padded row per caption.

    Args:
        tokens: one row per image, with all captions of the image concatenated.

    Returns:
        Tokens of shape (captions, length), padded with `PAD`; and the index of each caption's image, shape (captions,).
    """
    begins = (tokens.values == captions.START).nonzero().flatten()
    images = torch.searchsorted(tokens.offsets, begins, right=True) - 1
    ends = begins.new_tensor([len(tokens.values)])
    return Ragged(tokens.values, torch.cat([begins, ends])).padded(captions.PAD).long(), images


def centered(images: Tensor, crop: int) -> Tensor:
    """Scale the pixels and crop the central square."""
    return vision.middle(vision.normalized(images), crop)


class CocoTraining(SubEpochSpec):
    """Trains the decoder with Adam. The encoder is frozen, so all models share its outputs.

    Args:
        crop, width: see `Size`.
        augment: crop the training images at random. Then the encoder computes every image in every epoch of each model.
    """

    def __init__(self, crop: int, width: float, *, augment: bool = False) -> None:
        self.crop, self.width, self.augment = crop, width, augment

    def initialize_worker(self) -> None:
        """Load the vocabulary and the encoder's weights from the `misc` files."""
        self.vocabulary = captions.Vocabulary.read(Path(self.misc_dir) / captions.VOCABULARY)
        self.weights = torch.load(Path(self.misc_dir) / ENCODER)

    def create_models(self, hyperparams: Any) -> list[nn.Module]:
        """Create a frozen encoder and a decoder."""
        encoder = make_encoder(self.width)
        encoder.load_state_dict(self.weights)
        features = len(self.weights["1.running_mean"])
        decoder = Decoder(features, len(self.vocabulary.words), hyperparams["embed"], hyperparams["hidden"])
        return [Frozen(encoder, prepare=partial(centered, crop=self.crop)), decoder]

    def hints(self, models: Any, hyperparams: Any) -> Hints:
        """Declare that the loss is a mean over tokens, not over rows."""
        return Hints(terms=lambda images, outputs: int((outputs["tokens"].values != captions.START).sum()))

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, Any]:
        """Train the decoder on one partition.

        A batch contains all captions of its images, so the encoder processes each image once.
        """
        encoder, decoder = models
        optimizer = torch.optim.Adam(decoder.parameters(), lr=hyperparams["lr"])
        checkpoint.track(optimizer=optimizer)
        total = dataloader.progress({"loss": 0.0, "tokens": 0})
        for images, outputs in dataloader:
            shown = vision.augmented(images.float(), self.crop, least=0.8) if self.augment else images
            loss, tokens = _loss(decoder, encoder(shown), outputs["tokens"])
            optimizer.zero_grad()
            (loss / tokens).backward()  # type: ignore[no-untyped-call]  # torch has no types here
            optimizer.step()
            total["loss"] += loss.item()
            total["tokens"] += tokens
            dataloader.report(loss=loss / tokens)
        return {"loss": Ratio(total["loss"], total["tokens"])}

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, Any]:
        """Compute loss per token, perplexity, and BLEU-4 of generated captions.

        BLEU-4 compares a generated caption with all human captions of the image.
        """
        encoder, decoder = models
        total, tokens = 0.0, 0
        said: list[str] = []
        references: list[list[str]] = []
        for images, outputs in dataloader:
            features = encoder(images)
            loss, count = _loss(decoder, features, outputs["tokens"])
            total, tokens = total + float(loss), tokens + count
            said += self._texts(decoder.say(features))
            references += [bytes(text.tolist()).decode().split("\n") for text in outputs["text"]]
        return {
            "loss": Ratio(total, tokens),
            "perplexity": math.exp(total / tokens),
            "bleu4": captions.bleu4(said, references),
        }

    def predict(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Iterator[Any]:
        """Generate a caption for each image, batch by batch."""
        encoder, decoder = models
        for images, _ in dataloader:
            features = encoder(images)
            yield {"caption": self._texts(decoder.say(features))}

    def _texts(self, said: Tensor) -> list[str]:
        return [self.vocabulary.text(row) for row in said.tolist()]


def _loss(decoder: nn.Module, features: Tensor, tokens: Ragged) -> tuple[Tensor, int]:
    """Sum the loss over all tokens after `START`, and count these tokens."""
    each, images = one_by_one(tokens)
    scores = decoder(features, images, each[:, :-1])
    following = each[:, 1:]
    loss = functional.cross_entropy(
        scores.flatten(0, 1), following.flatten(), ignore_index=captions.PAD, reduction="sum"
    )
    return loss, len(tokens.values) - len(each)


# --- encoder -------------------------------------------------------------------------------------


def make_encoder(width: float) -> nn.Sequential:
    """Create ResNet50 without its last layer, followed by batch norm.

    The batch norm scales each feature to mean 0 and variance 1.
    """
    network = vision.ResNet50(0, width)
    return nn.Sequential(network, nn.BatchNorm1d(network.features, affine=False))


def write_encoder(path: Path, given: Path | None, size: Size, images: Path) -> None:
    """Write the encoder's weights: published weights of ResNet50, or random weights with a fixed seed.

    One forward pass over `CALIBRATION` images sets the batch norm statistics. Published weights include the statistics
    of ResNet50's layers, so the pass sets only the statistics of the output features. With random weights it sets the
    statistics of all layers: features of a random network then distinguish colours and shapes to some degree.

    Args:
        path: output file.
        given: file with published weights. `None`: random weights.
        size: sizes of the encoder and its input.
        images: folder with training images.

    Raises:
        LocatorError: `given` has other weights, or `images` has no readable image.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        encoder = make_encoder(size.width)
        network, features = encoder
        for name, module in encoder.named_modules():
            if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
                module.momentum = None  # the statistics of these images, not a moving average
            if name.endswith("bn3"):
                # Weak residual branches: the shortcuts carry most of the image to the last layer.
                nn.init.constant_(module.weight, 0.1)
        if given is not None:
            network.load_state_dict(_published(given, network.state_dict()))
        seen = list(itertools.islice(_readable(images, size.crop), CALIBRATION))
        if not seen:
            raise LocatorError(f"{images} has no readable image: put the images of COCO's train2017 there")
        features.train()(network.train(given is None)(vision.normalized(torch.stack(seen))))
    buffer = io.BytesIO()
    torch.save(encoder.state_dict(), buffer)
    captions.write_if_changed(path, buffer.getvalue())


def _readable(images: Path, side: int) -> Iterator[Tensor]:
    """Yield the readable images of a folder by name. Preprocessing reports damaged images."""
    for path in sorted(images.iterdir()):
        with suppress(OSError, ValueError):
            yield torch.from_numpy(vision.read_image(str(images), "image", path.name, side))


def _published(path: Path, weights_of_encoder: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Load published weights of ResNet50, without its last layer.

    Raises:
        LocatorError: the file has other weights than ResNet50.
    """
    expected = {name: tuple(each.shape) for name, each in weights_of_encoder.items()}
    try:
        weights: dict[str, Tensor] = torch.load(path, map_location="cpu")
        kept = {name: each for name, each in weights.items() if not name.startswith("fc.")}
        found = {name: tuple(each.shape) for name, each in kept.items()}
    except Exception as cause:  # torch and pickle raise any exception for other file formats
        raise LocatorError(
            f"{path} cannot be read as weights ({type(cause).__name__}: {cause}): {_EXPECTED}"
        ) from cause
    unlike = [name for name in {**expected, **found} if found.get(name) != expected.get(name)]
    if unlike:
        raise LocatorError(
            f"{path} has other weights than ResNet50: {unlike[0]!r} has shape {found.get(unlike[0])}, expected "
            f"{expected.get(unlike[0])}: {_EXPECTED}"
        )
    return kept


_EXPECTED = "give a state_dict of ResNet50 with torchvision's names, such as 'layer1.0.conv1.weight'"


def main() -> int:
    """Run the example on the current cluster, or start a local one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--small", action="store_true", help="fewer images and smaller networks, for a laptop"
    )
    parser.add_argument("--rows", type=int, help="number of synthetic training images")
    parser.add_argument(
        "--data",
        type=Path,
        help="folder with COCO's annotations, train2017 and val2017 (default: synthetic images)",
    )
    parser.add_argument(
        "--encoder", type=Path, help="file with published weights of ResNet50 (default: random weights)"
    )
    parser.add_argument(
        "--augment",
        action="store_true",
        help="crop training images at random; the encoder then computes them anew for each model and epoch",
    )
    parser.add_argument(
        "--max-failed",
        type=float,
        default=0.01,
        help="fraction of images that may be missing or damaged (default: %(default)s)",
    )
    parser.add_argument("--name", default="coco", help="name of the experiment")
    arguments = parser.parse_args()
    size = SMALL if arguments.small else PAPER
    size = replace(size, rows=arguments.rows or size.rows)
    if arguments.encoder is not None:
        size = replace(size, width=1.0)
    began = time.monotonic()
    try:
        folder = data_folder(f"examples/{arguments.name}")
        data = arguments.data or folder / f"{size.rows}-images-{size.side}"
        if arguments.data is None:
            captions.synthesize(data, size.rows, size.side)
        located = captions.lay_out(data, folder, at_least=size.at_least)
        write_encoder(folder / ENCODER, arguments.encoder, size, data / "train2017")
        located["misc"].append(str(folder / ENCODER))
        experiment = Experiment(arguments.name, locators=located)
        etl = experiment.run_etl(CocoETL(size.side), seed=1, max_failed=arguments.max_failed)
        vision.say_preprocessed(etl)
        training = CocoTraining(size.crop, size.width, augment=arguments.augment)
        result = experiment.run_fit(
            training, size.space, epochs=size.epochs, metric="bleu4", mode="max", seed=1
        )
        test = experiment.run_test(split="valid")
        predictions = experiment.run_predict() if "predict" in etl.kept_rows else None
    except (CerebroError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"\n{result.leaderboard().to_string()}\n\n{test.to_string()}\n")
    if predictions is not None:
        print(
            f"generated captions for {len(predictions)} images, such as:\n{predictions.head(3).to_string()}\n"
        )
    print(f"done in {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
