"""Sub-epochs warn about training without effect and lost state, and never about correct code."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cerebro.spec import SubEpochSpec
from cerebro.worker.training.checkpoints.checkpoint import load, save
from cerebro.worker.training.sub_epoch import create, restore, train_sub_epoch
from tests.worker.training.test_sub_epoch import Rows

CPU = torch.device("cpu")
Train = Callable[["Spec", list[Any], Any, Any], None]


class Spec(SubEpochSpec):
    """A small network with a loop given by the test."""

    def __init__(self, train: Train, network: Callable[[], nn.Module]) -> None:
        self.inner, self.network = train, network
        self.kept: Any = None

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        return [self.network()]

    def train(
        self, models: list[Any], checkpoint: Any, dataloader: Any, hyperparams: Any
    ) -> dict[str, float]:
        self.inner(self, models, checkpoint, dataloader)
        return {}


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))


def warned(
    train: Train, folder: Path, network: Callable[[], nn.Module] = plain, sub_epochs: int = 2
) -> list[list[str]]:
    """Return the warnings of each sub-epoch; the model hops after each."""
    spec, state, found = Spec(train, network), None, []
    for sub_epoch in range(sub_epochs):
        trainee = create(spec, {}, seed=1, model="m00", device=CPU)
        if state is not None:
            restore(trainee, state)
        rows = Rows()
        rows.sub_epoch = sub_epoch
        train_sub_epoch(spec, trainee, rows, {}, seed=1, model="m00", epoch=sub_epoch + 1, partition=0)
        state = load(folder, save(folder, f"u{sub_epoch}.pt", trainee.state()), CPU)
        found.append(trainee.warnings)
    return found


def steps(network: nn.Module, optimizer: torch.optim.Optimizer, loader: Any) -> None:
    for inputs, outputs in loader:
        optimizer.zero_grad()
        torch.autograd.backward((network(inputs) - outputs).square().mean())
        optimizer.step()


def adam(network: nn.Module, **options: Any) -> torch.optim.Adam:
    return torch.optim.Adam(network.parameters(), **{"lr": 0.01, **options})


# --- correct training ----------------------------------------------------------------------------------


def tracked(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
    optimizer = adam(models[0])
    checkpoint.track(optimizer=optimizer)
    steps(models[0], optimizer, loader)


def saved_by_hand(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
    optimizer = adam(models[0])
    if "state" in checkpoint:
        optimizer.load_state_dict(checkpoint["state"]["adam"])
    steps(models[0], optimizer, loader)
    checkpoint["state"] = {"adam": copy.deepcopy(optimizer.state_dict())}


def without_state(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
    steps(models[0], torch.optim.SGD(models[0].parameters(), lr=0.01), loader)


def without_an_optimizer(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
    with torch.no_grad():
        models[0][0].weight.data[0, 0] += 1.0  # invisible to torch's version counters


def of_tracked_and_own_modules(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
    extra = nn.Linear(3, 1)
    optimizer = torch.optim.Adam([*models[0].parameters(), *extra.parameters()])
    checkpoint.track(optimizer=optimizer, extra=extra)
    steps(models[0], optimizer, loader)


@pytest.mark.parametrize(
    "train",
    [tracked, saved_by_hand, without_state, without_an_optimizer, of_tracked_and_own_modules],
    ids=lambda train: train.__name__,
)
def test_correct_training_causes_no_warning(train: Train, tmp_path: Path) -> None:
    """Covers optimizers that are tracked, saved by hand, stateless, or absent."""
    assert warned(train, tmp_path) == [[], []]


def test_weights_set_without_a_gradient_count_as_changed(tmp_path: Path) -> None:
    """Covers cluster centres in a buffer of a model without parameters, and a frozen parameter that is set."""

    class Centres(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("centres", torch.zeros(2, 3))

    def train(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
        next(iter(models[0].state_dict().values())).add_(1)

    assert warned(train, tmp_path, Centres) == [[], []]
    assert warned(train, tmp_path, lambda: nn.Linear(3, 1).requires_grad_(False)) == [[], []]


def test_a_lazy_module_is_initialized_in_its_first_sub_epoch(tmp_path: Path) -> None:
    """Its weights and sizes change, which is correct."""

    def lazy() -> nn.Module:
        return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(1))

    assert warned(tracked, tmp_path, lazy) == [[], []]


# --- training without effect ---------------------------------------------------------------------------


def kept_on_self(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
    if spec.kept is None:
        spec.kept = adam(models[0])
    steps(models[0], spec.kept, loader)


def at_rate_zero(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
    optimizer = adam(models[0], lr=0.0)
    checkpoint.track(optimizer=optimizer)
    steps(models[0], optimizer, loader)


def schedule_at_zero(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
    optimizer = torch.optim.SGD(models[0].parameters(), lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    steps(models[0], optimizer, loader)


def never_stepped(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
    for inputs, _ in loader:
        models[0](inputs)


def rate_of_its_own(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
    optimizer = adam(models[0])
    optimizer.param_groups[0]["lr"] = None
    for inputs, _ in loader:
        models[0](inputs)
        optimizer.step()


def without_gradient(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
    optimizer = adam(models[0])
    for inputs, _ in loader:
        models[0](inputs)
        optimizer.step()


@pytest.mark.parametrize(
    ("train", "why"),
    [
        (at_rate_zero, "the learning rate of Adam is 0"),
        (schedule_at_zero, "the learning rate of SGD is 0"),
        (never_stepped, "no optimizer of torch took a step"),
        (without_gradient, "Adam took steps, but they had no effect"),
        (rate_of_its_own, "Adam took steps, but they had no effect"),
    ],
    ids=lambda value: "" if isinstance(value, str) else value.__name__,
)
def test_training_without_effect_causes_a_warning_with_its_cause(
    train: Train, why: str, tmp_path: Path
) -> None:
    """Each sub-epoch warns; normalisation statistics change but are not weights."""
    for found in warned(train, tmp_path):
        (text,) = found
        assert text.startswith(f"no weight changed in this sub-epoch: {why}")


def test_an_optimizer_on_self_causes_warnings_from_the_first_sub_epoch(tmp_path: Path) -> None:
    """The first warning names the unsaved state, the others the stale parameters."""
    first, second, third = warned(kept_on_self, tmp_path, sub_epochs=3)
    assert len(first) == len(second) == len(third) == 1
    assert first[0].startswith("the state of Adam (such as momenta) is not saved")
    for (text,) in (second, third):
        assert text.startswith(
            "no weight changed in this sub-epoch: the optimizer that train() steps (Adam) has"
        )
        assert "kept on self" in text


# --- state that is lost --------------------------------------------------------------------------------


@pytest.mark.parametrize("keeps_other", [False, True])
def test_an_untracked_optimizer_causes_one_warning(keeps_other: bool, tmp_path: Path) -> None:
    """A second, tracked optimizer makes no difference."""

    def train(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
        if keeps_other:
            checkpoint.track(other=adam(models[0]))
        steps(models[0], adam(models[0]), loader)

    first, second = warned(train, tmp_path)
    assert [text[:44] for text in first] == ["the state of Adam (such as momenta) is not s"]
    assert second == []


class Counting(nn.Linear):
    """A module with state outside its state_dict."""

    def __init__(self) -> None:
        super().__init__(3, 1)
        self.calls = 0
        self.cache: torch.Tensor
        self.mean = torch.zeros(())
        self.register_buffer("cache", torch.zeros(3), persistent=False)
        self.register_buffer("fixed", torch.arange(3.0), persistent=False)
        self.last: Any = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean = self.mean + inputs.mean()
        self.cache += inputs.detach().mean(0)
        self.last = inputs
        return super().forward(inputs)


def test_unsaved_state_of_a_module_causes_a_warning(tmp_path: Path) -> None:
    """The warning names changed buffers, counts and tensors, and no cache of a single call."""
    for (text,) in warned(tracked, tmp_path, lambda: nn.Sequential(Counting())):
        assert text.startswith(
            "buffer 'cache' of module 0, 0, attribute 'calls' of module 0, 0, attribute 'mean' of module 0, 0 changed"
        ), text
        assert "'fixed'" not in text
        assert "'last'" not in text


def test_a_replaced_model_causes_a_warning(tmp_path: Path) -> None:
    """Covers a replaced list entry and an added one."""

    def swapped(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
        models[0] = plain()
        without_state(spec, models, checkpoint, loader)

    def longer(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
        without_state(spec, models, checkpoint, loader)
        models.append(plain())

    assert "train() replaced module 0 of its models" in warned(swapped, tmp_path, sub_epochs=1)[0][0]
    assert "changed the number of its models from 1 to 2" in warned(longer, tmp_path, sub_epochs=1)[0][0]


def test_a_replaced_layer_causes_a_warning(tmp_path: Path) -> None:
    """The warning names its parameters; weights loaded in place give none."""

    def head(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
        models[0][3] = nn.Linear(4, 1)
        tracked(spec, models, checkpoint, loader)

    def loaded(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
        models[0].load_state_dict(plain().state_dict())
        tracked(spec, models, checkpoint, loader)

    (text,) = warned(head, tmp_path, sub_epochs=1)[0]
    assert text.startswith(
        "train() added, removed or replaced parameter '3.weight' of module 0, parameter '3.bias' of module 0:"
    )
    assert warned(loaded, tmp_path) == [[], []]


def test_an_overwritten_name_of_a_tracked_object_causes_a_warning(tmp_path: Path) -> None:
    """The state of the tracked object is saved instead."""

    def train(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
        tracked(spec, models, checkpoint, loader)
        checkpoint["optimizer"] = 3

    for (text,) in warned(train, tmp_path):
        assert text.startswith(
            "checkpoint['optimizer'] was set, but checkpoint.track(optimizer=...) has this name"
        )


def test_a_seed_in_user_code_causes_a_warning(tmp_path: Path) -> None:
    """A constant seed repeats the dropout masks in each sub-epoch."""

    def train(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
        torch.manual_seed(42)
        tracked(spec, models, checkpoint, loader)

    for (text,) in warned(train, tmp_path):
        assert text.startswith("train() seeded torch with 42")


def test_the_checks_leave_no_hooks(tmp_path: Path) -> None:
    """All optimizer hooks are removed, even after an error in `train`."""

    def failing(spec: Spec, models: list[Any], checkpoint: Any, loader: Any) -> None:
        raise RuntimeError("boom")

    hooks = importlib.import_module("torch.optim.optimizer")._global_optimizer_post_hooks
    before = len(hooks)
    warned(tracked, tmp_path)
    with pytest.raises(RuntimeError, match="boom"):
        warned(failing, tmp_path)
    assert len(hooks) == before


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
