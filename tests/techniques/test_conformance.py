"""The conformance kit accepts Cerebro's techniques and reports errors in wrong ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import IO, Any

import numpy as np
import pytest
import torch
from torch import nn

from cerebro import Ragged, SubEpochSpec, ragged
from cerebro.errors import SpecError
from cerebro.spec import Checkpoint, DataLoader
from cerebro.techniques import Ddp, DeviceSet, Group, Hints, ModelFacts, Params, Share, Technique, conformance
from cerebro.techniques.conformance import check
from cerebro.techniques.named import KINDS
from tests.forking import Forked, Forks

pytestmark = [pytest.mark.slow, pytest.mark.processes]


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    """One forkserver with the ranks' imports for all tests."""
    with Forks("cerebro.worker.training.ranks.conformance") as forks:
        yield forks


@pytest.fixture
def forked_ranks(forks: Forks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the kit's ranks as forks."""

    def start(command: Sequence[str], *, stderr: IO[bytes]) -> Forked:
        return forks.start(command[3:], environment=os.environ, stderr=stderr)

    monkeypatch.setattr(conformance, "subprocess", SimpleNamespace(Popen=start))


class _UserTechnique(Technique):
    name = "own"
    least = 2

    def is_applicable(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> str:
        return ""

    def share(self, group: Group) -> Share:
        return Share(index=group.rank, of=group.size)

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None: ...


class Alike(_UserTechnique):
    """A right but useless technique: all ranks read all rows."""

    def share(self, group: Group) -> Share:
        return Share()


class Renaming(Alike):
    """Wraps a module in another one, which renames its parameters."""

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        modules[0] = nn.Sequential(modules[0])


class Forgetting(Alike):
    """Resets the weights."""

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        for parameter in modules[0].parameters():
            nn.init.zeros_(parameter)


class Summing(Ddp):
    """Doubles the gradients."""

    name = "own"

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        super().prepare(modules, group, params, hints)
        for parameter in modules[0].parameters():
            parameter.register_hook(lambda gradient: gradient * 2)  # type: ignore[no-untyped-call]


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize("name", list(KINDS))
def test_built_in_techniques_conform(name: str) -> None:
    """Uses the fewest devices that the technique accepts."""
    check(KINDS[name]())


class Entrywise(nn.Module):
    """Applies a layer to the values of ragged rows."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, rows: Ragged) -> Ragged:
        return rows.with_values(self.layer(rows.values))


class Ragging(SubEpochSpec):
    """Labels the tokens of variable-length sentences with modules over `Ragged`."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        layers = [nn.Embedding(7, 6), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)]
        return [nn.Sequential(*map(Entrywise, layers)).double()]

    def hints(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Hints:
        return Hints(blocks=(Entrywise,), terms=lambda sentences, labels: len(labels.values))

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        (network,) = models
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
        checkpoint.track(optimizer=optimizer)
        for sentences, labels in dataloader:
            found = network(sentences)
            assert found.lengths.tolist() == labels.lengths.tolist()
            loss = nn.functional.cross_entropy(found.values, labels.values)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return {}


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize("name", ["ddp", "fsdp", "pipeline"])
def test_ragged_rows_are_divided_like_other_rows(name: str) -> None:
    """Ranks and pipeline microbatches get shares with different numbers of values."""
    random = np.random.default_rng(0)
    sentences = [random.integers(0, 7, random.integers(1, 9)) for _ in range(21)]
    rows = [(ragged(words), ragged(words % 3)) for words in sentences]
    check(KINDS[name](), Ragging(), rows, {"batch_size": 6})


def test_a_users_technique_conforms() -> None:
    """Uses three ranks too."""
    check(Alike(), size=3)


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize(
    ("technique", "message"),
    [
        (_UserTechnique(), r"gradient: .*ranks 0 and 1 differ in"),
        (
            Renaming(),
            r"gradient: prepare\(\) of technique 'own' changed the names of tensors: 0/0.0.bias, 0/0.0.weight",
        ),
        (
            Forgetting(),
            r"files: restored and saved again, .* differs from the value on one device by 1.0e\+00",
        ),
        (Summing(), r"gradient: the gradient of .* differs from the value on one device by 1.0e\+00"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Technique) else "",
)
def test_the_conformance_kit_finds_wrong_techniques(technique: Technique, message: str) -> None:
    """The message names the check, the rank and the tensor."""
    with pytest.raises(SpecError, match=f"(?s)'own' does not conform on 2 devices.*{message}"):
        check(technique)
