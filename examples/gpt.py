"""Train a GPT that may be larger than one device.

The example downloads nothing: a small Markov chain generates the texts. ``--data FILE`` trains on the bytes of your own
text file, of any size, instead. By default the network has the shape of GPT-2 XL: 1.56 billion parameters, 25 GB with
gradients and Adam's state. ``--small`` runs on a laptop.

Cerebro chooses the technique that trains the network. If training on one device (`single`) runs out of memory, Cerebro
continues with techniques that need less memory per device. To see this on a large GPU, limit the memory of each
process with ``--memory-mib``. Without GPUs, set the memory of a device when you start the workers::

    CEREBRO_DEVICE_MEMORY=400MiB cerebro up --workers 1 --devices 2
    python examples/gpt.py --small --layers 12 --width 128 --context 512 --texts 32
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cerebro import ETLSpec, Experiment, Hints, SubEpochSpec, data_folder
from cerebro.errors import CerebroError, LocatorError

SUCCESSORS = 4
"""Number of equally likely tokens after each token. The lowest possible loss is log(4) = 1.386."""
LEAST_PIECES = 40
"""Minimum number of texts in a file. Each of two workers then has a batch of 16 to train on."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the network and the data.

    Attributes:
        layers: number of transformer blocks.
        width: size of the embedding.
        heads: number of attention heads.
        context: tokens per text.
        vocabulary: number of different tokens.
        texts: number of training texts.
    """

    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int
    texts: int


XL = Shape(layers=48, width=1600, heads=25, context=1024, vocabulary=50257, texts=2048)
SMALL = Shape(layers=4, width=64, heads=4, context=64, vocabulary=64, texts=256)


class TextETL(ETLSpec):
    """Turns the seed of a row into a text and its next tokens."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def initialize_worker(self) -> None:
        """Create the Markov chain. The fixed seed gives the same chain on all workers."""
        size = (self.shape.vocabulary, SUCCESSORS)
        self.chain = np.random.default_rng(0).integers(self.shape.vocabulary, size=size)

    def row_preprocessor(self, row: Mapping[str, Any], mode: str, object_dir: str) -> tuple[Any, Any]:
        """Generate a text.

        Returns:
            Input: int64 of shape (context,). Output: the next token of each position, with the same shape.
        """
        generator = np.random.default_rng(int(row["seed"]))
        tokens = np.empty(self.shape.context + 1, np.int64)
        tokens[0] = generator.integers(self.shape.vocabulary)
        for position, choice in enumerate(generator.integers(SUCCESSORS, size=self.shape.context)):
            tokens[position + 1] = self.chain[tokens[position], choice]
        return tokens[:-1], tokens[1:]


class ByteETL(ETLSpec):
    """Turns a piece of a file into its bytes and its next bytes."""

    def __init__(self, context: int) -> None:
        self.is_feature_download = ["file"]
        self.context = context

    def row_preprocessor(self, row: Mapping[str, Any], mode: str, object_dir: str) -> tuple[Any, Any]:
        """Read a piece of the file.

        Returns:
            Input: int64 of shape (context,). Output: the next byte of each position, with the same shape.
        """
        with Path(object_dir, row["file"]).open("rb") as file:
            file.seek(row["begin"])
            tokens = np.frombuffer(file.read(self.context + 1), np.uint8).astype(np.int64)
        return tokens[:-1], tokens[1:]


class Block(nn.Module):
    """Transformer block: causal self-attention, then an MLP with one hidden layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.value = nn.Linear(width, width), nn.Linear(width, width)
        # A bias would add the same number to all scores of a query, and softmax would cancel it.
        self.key = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map shape (batch, context, width) to the same shape."""
        normed = self.norm(hidden)
        query, key, value = (self._split(part(normed)) for part in (self.query, self.key, self.value))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).flatten(2))
        thought: Tensor = self.down(functional.gelu(self.up(self.norm2(hidden))))
        return hidden + thought

    def _split(self, projected: Tensor) -> Tensor:
        batch, context, width = projected.shape
        return projected.view(batch, context, self.heads, width // self.heads).transpose(1, 2)


class Gpt(nn.Module):
    """Network that predicts the next token.

    The token embedding and the output layer share their weights.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width, shape.heads) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (batch, context) to logits (batch, context, vocabulary)."""
        hidden = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class GptTraining(SubEpochSpec):
    """Trains with AdamW and clipped gradients.

    The code names no device, rank or technique, so Cerebro can choose them.

    Args:
        shape: sizes of the network.
        memory_mib: GPU memory limit of each process, in MiB. Default 0: no limit.
    """

    def __init__(self, shape: Shape, memory_mib: int = 0) -> None:
        self.shape, self.memory_mib = shape, memory_mib

    def initialize_worker(self) -> None:
        """Limit the GPU memory of this process."""
        if self.memory_mib and torch.cuda.is_available():
            _, total = torch.cuda.mem_get_info()
            torch.cuda.set_per_process_memory_fraction((self.memory_mib << 20) / total)

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        """Create the network."""
        return [Gpt(self.shape)]

    def hints(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Hints:
        """Name the repeated block, and how tensor parallelism splits its weights."""
        columns = dict.fromkeys((f"blocks.*.{name}" for name in ("query", "key", "value", "up")), "colwise")
        rows = dict.fromkeys((f"blocks.*.{name}" for name in ("out", "down")), "rowwise")
        return Hints(blocks=(Block,), tensor_plan=columns | rows)

    def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        """Train on one partition."""
        (network,) = models
        optimizer = torch.optim.AdamW(network.parameters(), lr=hyperparams["lr"])
        checkpoint.track(optimizer=optimizer)
        total = dataloader.progress({"loss": 0.0})
        for tokens, following in dataloader:
            loss = _loss(network, tokens, following)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            total["loss"] += loss.item() * len(tokens)
            dataloader.report(loss=loss)
        return {"loss": total["loss"] / dataloader.num_rows}

    def test(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> dict[str, float]:
        """Compute the loss per token."""
        (network,) = models
        total = sum(
            _loss(network, tokens, following).item() * len(tokens) for tokens, following in dataloader
        )
        return {"loss": total / dataloader.num_rows}


def _loss(network: nn.Module, tokens: Tensor, following: Tensor) -> Tensor:
    return functional.cross_entropy(network(tokens).flatten(0, 1), following.flatten())


def lay_out(folder: Path, shape: Shape) -> dict[str, dict[str, str]]:
    """Write a table of seeds for each split.

    Returns:
        Dataset locators.
    """
    rows = [{"id": number, "seed": number} for number in range(shape.texts + max(1, shape.texts // 8))]
    return _tables(folder, {"train": rows[: shape.texts], "valid": rows[shape.texts :]})


def lay_out_file(folder: Path, source: Path, context: int, most: int | None) -> dict[str, dict[str, str]]:
    """Write a table of text pieces for each split.

    The last tenth of the file is for validation.

    Args:
        folder: output folder for the tables.
        source: text file.
        context: bytes per piece.
        most: maximum number of training pieces. `None`: all.

    Returns:
        Dataset locators.

    Raises:
        LocatorError: the file is missing or has fewer than `LEAST_PIECES` pieces.
    """
    if not source.is_file():
        raise LocatorError(f"there is no file {source}: give --data a text file")
    pieces = (source.stat().st_size - 1) // context
    if pieces < LEAST_PIECES:
        raise LocatorError(
            f"{source} has {source.stat().st_size} bytes, which are {max(0, pieces)} texts of {context}: expected "
            f"{LEAST_PIECES} at least. Give a longer file or a smaller --context"
        )
    valid = max(1, pieces // 10)
    rows = [{"id": n, "file": source.name, "begin": n * context} for n in range(pieces)]
    return _tables(
        folder, {"train": rows[:-valid][:most], "valid": rows[-valid:]}, {"objects": str(source.parent)}
    )


def _tables(
    folder: Path, splits: dict[str, list[dict[str, Any]]], more: Mapping[str, str] = MappingProxyType({})
) -> dict[str, dict[str, str]]:
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in splits.items():
        with (folder / f"{split}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return {split: {"metadata": str(folder / f"{split}.csv"), **more} for split in splits}


def main() -> int:
    """Run the example on the current cluster, or start a local one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--small", action="store_true", help="a small network, for a laptop")
    parser.add_argument("--layers", type=int, help="number of transformer blocks")
    parser.add_argument("--width", type=int, help="size of the embedding")
    parser.add_argument("--context", type=int, help="tokens per text")
    parser.add_argument("--texts", "--rows", type=int, help="number of training texts")
    parser.add_argument(
        "--data", type=Path, help="text file to train on, byte by byte (default: synthetic texts)"
    )
    parser.add_argument(
        "--memory-mib",
        type=int,
        default=0,
        help="GPU memory limit of each process, in MiB (default: no limit)",
    )
    parser.add_argument("--epochs", type=int, default=1, help="number of epochs of each model (default: 1)")
    parser.add_argument(
        "--models", type=int, default=6, help="number of configurations to train (default: 6)"
    )
    parser.add_argument("--name", default="gpt", help="name of the experiment")
    arguments = parser.parse_args()
    base = SMALL if arguments.small else XL
    changes = {
        name: value for name in ("layers", "width", "context", "texts") if (value := getattr(arguments, name))
    }
    shape = Shape(**{**vars(base), **changes, **({"vocabulary": 256} if arguments.data else {})})
    sizes = [8, 16] if arguments.small else [4, 8]
    space = [{"lr": lr, "batch_size": size} for size in sizes for lr in (1e-3, 3e-4, 1e-4)]
    began = time.monotonic()
    try:
        folder = data_folder(f"examples/{arguments.name}")
        if arguments.data is None:
            located = lay_out(folder, shape)
            etl: ETLSpec = TextETL(shape)
        else:
            located = lay_out_file(folder, arguments.data.resolve(), shape.context, arguments.texts)
            etl = ByteETL(shape.context)
        experiment = Experiment(arguments.name, locators=located)
        experiment.run_etl(etl, seed=1)
        result = experiment.run_fit(
            GptTraining(shape, arguments.memory_mib),
            space[: arguments.models],
            epochs=arguments.epochs,
            metric="loss",
            mode="min",
            seed=1,
        )
    except (CerebroError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(
        f"\n{result.leaderboard().to_string()}\n\n{result.parallel_plans().to_string()}\n\n{result.sub_epochs().to_string()}\n"
    )
    least = "" if arguments.data else f"; the lowest possible loss is {np.log(SUCCESSORS):.3f}"
    print(f"done in {time.monotonic() - began:.0f} s{least}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
