"""Fine-tune a language model with LoRA adapters, and export the best adapter in PEFT's own format.

The example downloads nothing: it builds a small GPT-2 from a configuration, trains it for a moment on texts of a
Markov chain, and writes it to disk. The models then learn the texts of another chain with `peft`: only the adapters
train, so a hop moves them and their optimizer's state. ``--base FOLDER`` uses your own GPT-2 in the format of
`transformers` instead. Needs ``pip install peft transformers``.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from cerebro import ETLSpec, Experiment, StepSpec, data_folder
from cerebro.errors import CerebroError

SUCCESSORS = 4
"""Number of equally likely tokens after each token. The lowest possible loss is log(4) = 1.386."""
OLD, NEW = 0, 1
"""Seeds of the chains: for the base model, and for fine-tuning."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the base model and the data.

    Attributes:
        layers, width, heads: as of GPT-2.
        vocabulary: number of different tokens.
        context: tokens per text.
        texts: number of training texts.
        steps: optimizer steps that train the base model.
    """

    layers: int = 6
    width: int = 512
    heads: int = 8
    vocabulary: int = 64
    context: int = 128
    texts: int = 2000
    steps: int = 200


SMALL = Shape(layers=6, width=256, heads=4, context=32, texts=96, steps=20)
SPACE: dict[str, Any] = {"rank": [4, 8], "alpha": [16], "lr": [3e-3, 1e-3], "batch_size": [16]}


def chain(seed: int, vocabulary: int) -> Any:
    """Return the possible successors of each token."""
    return np.random.default_rng(seed).integers(vocabulary, size=(vocabulary, SUCCESSORS))


def text(successors: Any, seed: int, length: int) -> Any:
    """Return the tokens of a text: int64 of shape (length,)."""
    generator = np.random.default_rng(seed)
    tokens = np.empty(length, np.int64)
    tokens[0] = generator.integers(len(successors))
    for position, choice in enumerate(generator.integers(SUCCESSORS, size=length - 1)):
        tokens[position + 1] = successors[tokens[position], choice]
    return tokens


class TextETL(ETLSpec):
    """Turns the seed of a row into a text of the new chain."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape

    def initialize_worker(self) -> None:
        """Create the chain."""
        self.chain = chain(NEW, self.shape.vocabulary)

    def row_preprocessor(self, row: Mapping[str, Any], mode: str, object_dir: str) -> tuple[Any, Any]:
        """Generate a text.

        Returns:
            Input and output: int64 of shape (context,). The network shifts the output itself.
        """
        tokens = text(self.chain, int(row["seed"]), self.shape.context)
        return tokens, tokens


class LoraTraining(StepSpec):
    """Trains adapters of the attention layers with AdamW."""

    clip_norm = 1.0

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        """Load the base model from the `misc` files, and add adapters."""
        from peft import LoraConfig, get_peft_model
        from transformers import GPT2LMHeadModel

        base = GPT2LMHeadModel.from_pretrained(self.misc_dir)
        adapter = LoraConfig(
            r=hyperparams["rank"],
            lora_alpha=hyperparams["alpha"],
            target_modules=["c_attn"],
            fan_in_fan_out=True,  # GPT-2's layers store their weights transposed
            task_type="CAUSAL_LM",
        )
        return [get_peft_model(base, adapter)]

    def configure_optimizers(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Any:
        """Give the optimizer the adapters only."""
        adapters = [each for each in models[0].parameters() if each.requires_grad]
        return torch.optim.AdamW(adapters, lr=hyperparams["lr"])

    def training_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        """Compute the loss per token."""
        tokens, labels = batch
        return models[0](input_ids=tokens, labels=labels).loss

    def validation_step(self, models: list[Any], batch: Any, hyperparams: Mapping[str, Any]) -> Any:
        """Compute the loss per token."""
        return {"loss": self.training_step(models, batch, hyperparams)}


def write_base(folder: Path, shape: Shape, source: Path | None = None) -> list[str]:
    """Write the base model, trained on the old chain, or copy it from `source`.

    Returns:
        Its files, for the locator `misc`.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    if source is not None:
        network = GPT2LMHeadModel.from_pretrained(source)
    else:
        torch.manual_seed(0)
        network = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=shape.vocabulary,
                n_positions=shape.context,
                n_embd=shape.width,
                n_layer=shape.layers,
                n_head=shape.heads,
                bos_token_id=0,
                eos_token_id=0,
            )
        )
        old = chain(OLD, shape.vocabulary)
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
        for step in range(shape.steps):
            rows = [text(old, 16 * step + row, shape.context) for row in range(16)]
            tokens = torch.from_numpy(np.stack(rows))
            logits = network(input_ids=tokens).logits[:, :-1]
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    network.save_pretrained(folder)
    return [str(path) for path in sorted(folder.iterdir())]


def lay_out(folder: Path, shape: Shape, source: Path | None = None) -> dict[str, Any]:
    """Write the base model and a table of seeds for each split.

    Returns:
        Dataset locators.
    """
    folder.mkdir(parents=True, exist_ok=True)
    located: dict[str, Any] = {"misc": write_base(folder / "base", shape, source)}
    for split, seeds in (("train", range(shape.texts)), ("valid", range(shape.texts, shape.texts * 9 // 8))):
        with (folder / f"{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([["id", "seed"], *([seed, seed] for seed in seeds)])
        located[split] = {"metadata": str(folder / f"{split}.csv")}
    return located


def export(network: Any, base: Path, folder: Path, shape: Shape) -> float:
    """Write an adapter in PEFT's format, and load it again.

    Returns:
        Maximum difference of the outputs.
    """
    from peft import PeftModel
    from transformers import GPT2LMHeadModel

    network.save_pretrained(folder, save_embedding_layers=False)
    again = PeftModel.from_pretrained(GPT2LMHeadModel.from_pretrained(base), folder).eval()
    tokens = torch.from_numpy(text(chain(NEW, shape.vocabulary), 0, shape.context))[None]
    with torch.no_grad():
        outputs = [model(input_ids=tokens).logits for model in (network, again)]
    return float((outputs[0] - outputs[1]).abs().max())


def main() -> int:
    """Run the example on the current cluster, or start a local one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--small", action="store_true", help="a small base model, for a laptop")
    parser.add_argument("--base", type=Path, help="folder of a GPT-2 to fine-tune (default: made here)")
    parser.add_argument("--epochs", type=int, default=2, help="number of epochs of each model (default: 2)")
    parser.add_argument("--name", default="lora", help="name of the experiment")
    arguments = parser.parse_args()
    shape = SMALL if arguments.small else Shape()
    began = time.monotonic()
    try:
        folder = data_folder(f"examples/{arguments.name}")
        experiment = Experiment(arguments.name, locators=lay_out(folder, shape, arguments.base))
        experiment.run_etl(TextETL(shape), seed=1)
        result = experiment.run_fit(
            LoraTraining(), SPACE, epochs=arguments.epochs, metric="loss", mode="min", seed=1
        )
        (network,) = result.best.modules()
    except (CerebroError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    difference = export(network, folder / "base", folder / "adapter", shape)
    print(f"\n{result.leaderboard().to_string()}\n")
    print(f"the adapter is in {folder / 'adapter'}; loaded by peft, its outputs differ by {difference}")
    print(
        f"done in {time.monotonic() - began:.0f} s; the lowest possible loss is {np.log(SUCCESSORS):.3f} per token"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
