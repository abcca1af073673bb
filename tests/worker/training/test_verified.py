"""Verification repeats a sub-epoch bit-identically and detects a single flipped bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cerebro.contract.records import COMPUTES, ExperimentRecord, Locator, Locators
from cerebro.contract.runs import FitPlan
from cerebro.contract.tasks.bodies import TrainTask, VerificationTask
from cerebro.contract.tasks.results import TaskResult
from cerebro.contract.trials import DeviceKind
from cerebro.spec import DataLoader
from cerebro.state.tasks.verifications import Verification
from cerebro.worker.training.checkpoints import comparison
from controller.decisions import tasks
from model_hopper import handler as hopper
from model_hopper.handler import Handler
from tests.state.stories import Story, sub_epoch
from tests.worker.training.handlers import Linear, handler_of, learn_from, volumes_in, write_split

ARITHMETIC = f"{COMPUTES}here"
RECORD = ExperimentRecord(name="one", locators=Locators(train=Locator(metadata="train.csv")))


class Momentum(Linear):
    """A model with an optimizer, a counter and random noise, so that the full initial state matters."""

    def train(
        self,
        models: list[Any],
        checkpoint: MutableMapping[str, Any],
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        (model,) = models
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        checkpoint.track(optimizer=optimizer)  # type: ignore[attr-defined]
        total = dataloader.progress({"loss": 0.0})
        checkpoint["sub_epochs"] = checkpoint.get("sub_epochs", 0) + 1
        for inputs, labels in dataloader:
            noisy = inputs + 0.01 * torch.randn_like(inputs)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(model(noisy)[:, 0], labels.float())
            learn_from(loss, optimizer)
            dataloader.report(loss=loss)
            total["loss"] += loss.item()
        return {"loss": total["loss"]}


class Trained:
    """A model trained by a handler, and verifications of its sub-epochs."""

    def __init__(self, folder: Path, handler: Handler) -> None:
        self.volumes, self._handler = volumes_in(folder), handler
        sizes = write_split(self.volumes, "train", 2)
        self.story = Story(workers=3)
        self.story.fit(epochs=2, partitions=2, hyperparams={"m00": {"batch_size": 8}})
        assert isinstance(self.story.run.plan, FitPlan)
        self.story.run.plan = self.story.run.plan.model_copy(update={"partitions": sizes})
        self.model = self.story.model()
        self.keep: dict[str, bytes] = {}
        while not self.model.is_trained:
            key = sub_epoch(self.model.epoch, self.model.remaining[0])
            body = tasks.body(RECORD, self.story.state, self.story.run, key)
            assert isinstance(body, TrainTask)
            self.story.do(key, body.partition, handler.handle(body, 1))

    def task(self, number: int, *, arithmetic: str = ARITHMETIC) -> VerificationTask:
        """Return the verification of a sub-epoch on another worker."""
        completed, before = self.model.sub_epochs[number], self.model.sub_epochs[number - 1]
        verification = Verification(
            sub_epoch=completed.key("fit-1", "m00"),
            number=number,
            completed=completed,
            start_checkpoint=before.checkpoint.ref() if number else None,
            hyperparams=self.model.hyperparams_of(number),
            arithmetic=arithmetic,
            selected_after=number + 1,
        )
        worker = replace(
            self.story.state.workers["worker-2"],
            kinds=frozenset({"train", "verify", ARITHMETIC}),
            device=DeviceKind(kind="cpu", name="1 core"),
        )
        body = tasks.verification(RECORD, self.story.state, self.story.run, verification, worker)
        return VerificationTask.model_validate_json(body.model_dump_json())

    def reexecution(self, number: int, *, arithmetic: str = ARITHMETIC) -> TaskResult:
        return self._handler.handle(self.task(number, arithmetic=arithmetic), 1)


@pytest.fixture
def trained(tmp_path: Path) -> Iterator[Trained]:
    threads = torch.get_num_threads()
    with handler_of(Momentum(), volumes_in(tmp_path)) as handler:
        yield Trained(tmp_path, handler)
    torch.set_num_threads(threads)


def flips_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate faulty hardware: flip the last bit of a weight after each sub-epoch."""
    train_sub_epoch: Any = vars(hopper)["train_sub_epoch"]

    def train(spec: Any, trainee: Any, *given: Any, **named: Any) -> Any:
        measured = train_sub_epoch(spec, trainee, *given, **named)
        weight = trainee.modules[0].weight.data
        weight.view(torch.int32)[0, 1] ^= 1
        return measured

    monkeypatch.setattr(hopper, "train_sub_epoch", train)


def test_reexecutions_are_bit_identical_and_write_nothing(trained: Trained) -> None:
    """Covers the first sub-epoch and those with an optimizer state."""
    folder = trained.volumes.checkpoints
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    digests = set()
    for number, completed in enumerate(trained.model.sub_epochs):
        result = trained.reexecution(number)
        assert result.verification is not None
        assert (result.verification.is_exact, result.verification.differences) == (True, ())
        assert (result.metrics, result.rows, result.checkpoint) == (
            completed.returned.metrics,
            completed.rows,
            None,
        )
        digests.add(result.verification.digest)
    assert len(digests) == len(trained.model.sub_epochs)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_one_flipped_bit_is_found_and_named(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics are equal, but weights are not. Two faulty machines with equal results have equal digests."""
    right = trained.reexecution(1).verification
    flips_a_bit(monkeypatch)
    wrong, again = trained.reexecution(1).verification, trained.reexecution(1).verification
    assert right is not None
    assert wrong is not None
    assert again is not None
    assert wrong.differences == ("state['models'][0]['weight']",)
    assert wrong.digest == again.digest != right.digest


def test_metrics_are_compared_if_bits_may_differ(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """On another kind of processor, bits may differ, but a metric off by one percent may not."""
    flips_a_bit(monkeypatch)
    for wrong, found in ((1.0, False), (1.0 + 5e-4, False), (1.01, True)):
        train_sub_epoch: Any = vars(hopper)["train_sub_epoch"]

        def train(*given: Any, factor: float = wrong, train: Any = train_sub_epoch, **named: Any) -> Any:
            return {"loss": factor * train(*given, **named)["loss"]}

        with monkeypatch.context() as patched:
            patched.setattr(hopper, "train_sub_epoch", train)
            outcome = trained.reexecution(1, arithmetic="").verification
        assert outcome is not None
        assert (outcome.is_exact, bool(outcome.differences), outcome.digest) == (False, found, "")


def test_a_metric_that_is_not_finite_is_a_difference(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The committed metric was finite; the model does not fail for it."""

    def train(self: Any, *given: Any) -> dict[str, float]:
        return {"loss": float("nan")}

    spec = trained._handler._context.user_code.spec(trained.task(0).code, (), None)
    monkeypatch.setattr(type(spec), "train", train)
    outcome = trained.reexecution(1).verification
    assert outcome is not None
    assert outcome.differences[0].startswith("loss became nan")


def test_digests_are_equal_if_and_only_if_states_are() -> None:
    """The order of names does not matter; types, shapes, bits and the sign of zero do."""
    base = {"a": torch.tensor([0.0, 1.0]), "b": [1, {"x": 2.0}]}
    same = {"b": [1, {"x": 2.0}], "a": torch.tensor([0.0, 1.0])}
    others: list[Any] = [
        {**base, "a": torch.tensor([-0.0, 1.0])},
        {**base, "a": torch.tensor([[0.0, 1.0]])},
        {**base, "a": torch.tensor([0.0, 1.0]).double()},
        {**base, "b": [1, {"x": 2}]},
        {**base, "b": [1, {"y": 2.0}]},
        {"a": base["a"]},
    ]
    assert comparison.digest(base) == comparison.digest(same)
    assert list(comparison.differences(base, same)) == []
    for other in others:
        assert comparison.digest(other) != comparison.digest(base)
        assert list(comparison.differences(other, base)) != []
