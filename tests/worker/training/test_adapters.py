"""Compare the examples in docs/coming-from.md with the libraries' own loops, on the same batches.

Trained over several sub-epochs, both give the same bits, dropout included.

The libraries are not installed; fakes repeat their loops' steps, order and seeding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from cerebro import StepSpec, SubEpochSpec
from cerebro.data.loader import PartitionLoader
from cerebro.data.mapped import MappedRows
from cerebro.worker.training.checkpoints.checkpoint import load, save
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.seeds import seed_everything, sub_epoch_seed
from cerebro.worker.training.sub_epoch import create, restore, train_sub_epoch

CPU = torch.device("cpu")
SPEC_NAMES: dict[str, Any] = {
    "torch": torch, "functional": functional, "nn": torch.nn, "SubEpochSpec": SubEpochSpec, "StepSpec": StepSpec,
}  # fmt: skip
PLACES = ((1, 0), (1, 1), (2, 1), (2, 0))
"""(epoch, partition) of each sub-epoch."""
HYPERPARAMS = {"lr": 0.05, "width": 8, "batch_size": 10}


def example(heading: str, number: int) -> str:
    """Return a code block below a heading of the page."""
    page = (Path(__file__).parents[3] / "docs/coming-from.md").read_text()
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL)
    found: str = re.findall(r"```(?:py|python)\n(.*?)```", section, flags=re.DOTALL)[number]
    return found


def run_code(code: str, **names: Any) -> dict[str, Any]:
    """Run code of the page in a module with these names; return its globals."""
    module = {**SPEC_NAMES, "__name__": "coming_from", **names}
    exec(code, module)
    return module


class Halves:
    """Batches from the first or second half of a partition, with two inputs per row."""

    def __init__(self, partition: int) -> None:
        generator = np.random.default_rng(partition)
        self.inputs = torch.from_numpy(generator.normal(size=(46, 2)).astype(np.float32))
        self.labels = (self.inputs.sum(1) > 0).long()


class PairLoader(PartitionLoader):
    """A partition loader in its usual order with two inputs and a label per row."""

    def __init__(self, rows: MappedRows, epoch: int, partition: int) -> None:
        super().__init__(rows, batch_size=10, seed=sub_epoch_seed(3, "m00", epoch, partition))
        self._numbers = Halves(partition)

    def __iter__(self) -> Iterator[Any]:
        for _ in super().__iter__():
            chosen = torch.from_numpy(self._latest)
            yield self._numbers.inputs[chosen], self._numbers.labels[chosen]


def batches(rows: MappedRows) -> Iterator[Any]:
    """Yield the batches of all sub-epochs, and seed at the start of each as Cerebro does."""
    for epoch, partition in PLACES:
        seed_everything(sub_epoch_seed(3, "m00", epoch, partition))
        yield from PairLoader(rows, epoch, partition)


def weights_of(network: torch.nn.Module) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in network.state_dict().values()]


def hopped(spec: SubEpochSpec, rows: MappedRows, folder: Path) -> list[torch.Tensor]:
    """Return the weights after all sub-epochs, each in a new model restored from a file."""
    state: dict[str, Any] | None = None
    for sub_epoch, (epoch, partition) in enumerate(PLACES):
        trainee = create(spec, HYPERPARAMS, seed=3, model="m00", device=CPU)
        if state is not None:
            restore(trainee, state)
        feed = InstrumentedLoader(PairLoader(rows, epoch, partition), epoch=epoch, sub_epoch=sub_epoch)
        train_sub_epoch(
            spec, trainee, feed, HYPERPARAMS, seed=3, model="m00", epoch=epoch, partition=partition
        )
        state = load(folder, save(folder, f"u{sub_epoch}.pt", trainee.state()), CPU)
    assert state is not None
    return list(state["models"][0].values())


def stayed(
    spec: SubEpochSpec, train: Callable[[Any, Iterable[Any]], None], rows: MappedRows
) -> list[torch.Tensor]:
    """Return the weights after one library loop over all batches with one model."""
    (network,) = create(spec, HYPERPARAMS, seed=3, model="m00", device=CPU).modules
    network.train()
    train(network, batches(rows))
    return weights_of(network)


def assert_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert len(one) == len(other)
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))


def with_dropout() -> torch.nn.Sequential:
    return torch.nn.Sequential(
        torch.nn.Linear(2, 8), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2)
    )


# --- a script ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 2], ids=["steps", "loop"])
def test_a_script_computes_the_same(block: int, rows: MappedRows, tmp_path: Path) -> None:
    """Compares the page's "before" script with its two "after" specs, with dropout."""
    spec = run_code(example("A PyTorch script", block))["Classifier"]()
    spec.create_models = lambda hyperparams: [with_dropout()]

    def train(network: torch.nn.Module, loader: Iterable[Any]) -> None:
        optimizer = torch.optim.Adam(network.parameters(), lr=0.05)
        for inputs, labels in loader:
            loss = functional.cross_entropy(network(inputs), labels)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()

    assert_same(hopped(spec, rows, tmp_path), stayed(spec, train, rows))


# --- Lightning -----------------------------------------------------------------------------------------


class LitClassifier(torch.nn.Module):
    """The methods that Lightning's automatic optimization calls."""

    def __init__(self, width: int, lr: float) -> None:
        super().__init__()
        self.network, self.lr = with_dropout(), lr

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, labels = batch
        return functional.cross_entropy(self.network(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def lightning_fit(module: Any, loader: Iterable[Any]) -> None:
    """Run Lightning's documented automatic optimization, with the backward pass in the optimizer's closure."""
    optimizer = module.configure_optimizers()
    for index, batch in enumerate(loader):

        def closure(batch: Any = batch, index: int = index) -> Any:
            loss = module.training_step(batch, index)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            return loss

        optimizer.step(closure)


def test_a_lightning_module_computes_the_same(rows: MappedRows, tmp_path: Path) -> None:
    """Compares its Trainer's loop with the page's spec. `tests/steps/test_lightning.py` runs the Trainer itself."""
    spec = run_code(example("Lightning", 1), LitClassifier=LitClassifier)["spec"]
    assert_same(hopped(spec, rows, tmp_path), stayed(spec, lightning_fit, rows))


# --- Hugging Face Trainer ------------------------------------------------------------------------------


class AutoModel(torch.nn.Module):
    """A model that returns its loss in an object, like Hugging Face models with labels."""

    def __init__(self) -> None:
        super().__init__()
        self.network = with_dropout()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        return SimpleNamespace(loss=functional.cross_entropy(self.network(x), labels))

    @classmethod
    def from_pretrained(cls, path: str, num_labels: int) -> AutoModel:
        return cls()


class TrainingArguments(SimpleNamespace):
    """The example's arguments and the Trainer's defaults."""

    def __init__(self, output_dir: str, **given: Any) -> None:
        super().__init__(**{"seed": 42, "max_grad_norm": 1.0, **given})


class Trainer:
    """Seeds in its constructor; clips gradients and steps optimizer and schedule after each batch."""

    def __init__(self, model: Any, args: Any, optimizers: Any) -> None:
        seed_everything(args.seed)
        self.model, self.args, (self.optimizer, self.schedule) = model, args, optimizers

    def get_train_dataloader(self) -> Iterable[Any]:
        raise NotImplementedError

    def train(self) -> Any:
        self.model.train()
        losses = []
        for inputs in self.get_train_dataloader():
            loss = self.model(**inputs).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
            self.optimizer.step()
            self.schedule.step()
            self.model.zero_grad()
            losses.append(loss.item())
        return SimpleNamespace(training_loss=float(np.mean(losses)))


HUGGING_FACE: dict[str, Any] = {
    "Trainer": Trainer, "TrainingArguments": TrainingArguments, "ETLSpec": object,
    "AutoModelForSequenceClassification": AutoModel, "unpacked": str,
}  # fmt: skip


def arranged(batch: Any) -> Mapping[str, Any]:
    return {"x": batch[0], "labels": batch[1]}


def test_the_loop_instead_of_the_trainer_computes_the_same(rows: MappedRows, tmp_path: Path) -> None:
    """Uses a Hugging Face model without gradient clipping and schedule."""
    spec = run_code(example("The Trainer of Hugging Face", 1), **HUGGING_FACE)["Classifier"]()
    train = spec.train
    spec.train = lambda models, checkpoint, loader, given: train(models, checkpoint, Dicts(loader), given)

    def own(network: torch.nn.Module, loader: Iterable[Any]) -> None:
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.05)
        for batch in loader:
            loss = network(**arranged(batch)).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert_same(hopped(spec, rows, tmp_path), stayed(spec, own, rows))


class Dicts:
    """A loader whose inputs are dicts."""

    def __init__(self, loader: InstrumentedLoader) -> None:
        self._loader, self.report = loader, loader.report

    def __iter__(self) -> Iterator[Any]:
        for inputs, labels in self._loader:
            yield {"x": inputs}, labels


def test_the_trainer_of_hugging_face_computes_the_same(rows: MappedRows, tmp_path: Path) -> None:
    """Compare one Trainer per sub-epoch, which seeds with 42 each time, with one Trainer for all batches."""
    module = run_code(example("The Trainer of Hugging Face", 2), **HUGGING_FACE)
    code = example("The Trainer of Hugging Face", 2)
    assert "{**inputs" in code

    class Spec(SubEpochSpec):
        def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
            return [AutoModel()]

        def train(self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Any) -> Any:
            as_torch = dataloader.as_torch
            dataloader.as_torch = lambda arrange: as_torch(
                lambda inputs, labels: arrange({"x": inputs}, labels)
            )
            return module["train"](self, models, checkpoint, dataloader, hyperparams)

    def own(network: torch.nn.Module, loader: Iterable[Any]) -> None:
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.05)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        arguments = module["TrainingArguments"](
            str(tmp_path), num_train_epochs=1, save_strategy="no", report_to="none"
        )
        module["SubEpochTrainer"](
            All(loader), model=network, args=arguments, optimizers=(optimizer, schedule)
        ).train()

    assert_same(hopped(Spec(), rows, tmp_path), stayed(Spec(), own, rows))


class All(torch.utils.data.IterableDataset[Any]):
    """All batches, for a Trainer."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return map(arranged, self._loader)

    def __len__(self) -> int:
        return 5 * len(PLACES)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
