"""Small random training configurations and their sub-epochs, to compare techniques."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.contract.records import Hyperparameters
from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.data.loader import PartitionLoader
from cerebro.spec import Checkpoint, DataLoader, Hints, SubEpochSpec
from cerebro.techniques import Group, resolve
from cerebro.techniques.ranks import Alone
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.checkpoints.checkpoint import State
from cerebro.worker.training.checkpoints.savepoints import Savepoints
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.metrics import numbers_of
from cerebro.worker.training.ranks.grouped import prepare
from cerebro.worker.training.seeds import sub_epoch_seed
from cerebro.worker.training.sub_epoch import create, restore, train_sub_epoch
from cerebro.worker.training.trainee import Trainee

CPU = torch.device("cpu")
ROWS = 46
TOKENS, LONG, WIDE = 11, 6, 8


class Mlp(nn.Sequential):
    """Two or more layers."""

    def __init__(self, depth: int) -> None:
        hidden = [layer for _ in range(depth) for layer in (nn.Linear(WIDE, WIDE), nn.Tanh())]
        super().__init__(nn.Linear(WIDE, WIDE), nn.Tanh(), *hidden, nn.Linear(WIDE, TOKENS))


class Wide(nn.Sequential):
    """Like `Mlp`, with some layer sizes divisible by 16."""

    def __init__(self, depth: int) -> None:
        hidden = [layer for _ in range(depth) for layer in (nn.Linear(32, 32), nn.Tanh())]
        super().__init__(nn.Linear(WIDE, 32), nn.Tanh(), *hidden, nn.Linear(32, TOKENS))


class Cnn(nn.Module):
    """Convolutions over a 4 x 2 image."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 2, padding=1)
        self.blocks = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(depth))
        self.head = nn.Linear(3 * 5 * 3, TOKENS)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        hidden = self.first(pixels.reshape(-1, 1, 4, 2)).tanh()
        for block in self.blocks:
            hidden = block(hidden).tanh()
        return cast(torch.Tensor, self.head(hidden.flatten(1)))


class Block(nn.Module):
    """Attention and a small MLP; the head count follows the tensor's shape, so heads may be split."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(WIDE), nn.LayerNorm(WIDE)
        # The key bias does not change attention, so its gradient is only rounding, which Adam scales up to
        # full steps.
        self.query, self.key, self.value, self.out = (nn.Linear(WIDE, WIDE, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDE, 2 * WIDE), nn.Linear(2 * WIDE, WIDE)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows, length, _ = hidden.shape
        normed = self.norm(hidden)
        query, key, value = (
            part(normed).reshape(rows, length, -1, 2).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).reshape(rows, length, -1))
        return cast(torch.Tensor, hidden + self.down(self.up(self.norm2(hidden)).tanh()))


class Gpt(nn.Module):
    """A language model with tied embedding and head weights."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDE)
        self.blocks = nn.ModuleList(Block() for _ in range(depth))
        self.norm = nn.LayerNorm(WIDE)
        self.head = nn.Linear(WIDE, TOKENS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return cast(torch.Tensor, self.head(self.norm(hidden)))


@dataclass(frozen=True, kw_only=True)
class Case:
    """A user's model and training loop.

    Attributes:
        depth: number of repeated blocks.
        accumulate: batches per optimizer step.
        clip: maximum gradient norm; 0 disables clipping.
        schedule: True if the learning rate decays.
        two: True if the head has a second optimizer.
        tracked: True if Cerebro tracks the optimizers; otherwise user code saves and loads them.
        average: True if the loop keeps a moving average of the weights.
        dropout: dropout rate; above 0, plans agree only in distribution.
    """

    model: str = "mlp"
    depth: int = 2
    optimizer: str = "Adam"
    dtype: str = "float64"
    batch_size: int = 8
    accumulate: int = 1
    clip: float = 0.0
    schedule: bool = False
    two: bool = False
    tracked: bool = True
    average: bool = False
    dropout: float = 0.0
    hyperparams: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> Hyperparameters:
        return {"batch_size": self.batch_size, **self.hyperparams}


class CaseSpec(SubEpochSpec):
    """A user's spec for a case."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        case = self.case
        kind = {"mlp": Mlp, "wide": Wide, "cnn": Cnn, "gpt": Gpt}[case.model]
        return [kind(case.depth).to(getattr(torch, case.dtype))]

    def hints(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Hints:
        if self.case.model != "gpt":
            return Hints()
        return Hints(
            blocks=(Block,),
            terms=lambda inputs, outputs: (self._examples(inputs, outputs)[1] != -100).sum(),
            tensor_plan={
                "blocks.*.query": "colwise",
                "blocks.*.key": "colwise",
                "blocks.*.value": "colwise",
                "blocks.*.out": "rowwise",
                "blocks.*.up": "colwise",
                "blocks.*.down": "rowwise",
            },
        )

    def _examples(self, inputs: Any, outputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        rows = outputs.reshape(-1, 1)
        if self.case.model == "gpt":
            tokens = (rows * 7 + torch.arange(LONG) * (rows % 5 + 1)) % TOKENS
            labels = tokens.roll(-1, 1).masked_fill(torch.arange(LONG) > rows % LONG, -100)
            labels[:, 0] = tokens[:, 1]
            return tokens, labels
        features = torch.sin(rows * torch.arange(1, WIDE + 1) * 0.37)
        return features.to(getattr(torch, self.case.dtype)), rows[:, 0] % TOKENS

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        case, (network,) = self.case, models
        optimizer_class = getattr(torch.optim, case.optimizer)
        options: dict[str, Any] = {"lr": 0.01} | ({"momentum": 0.9} if case.optimizer == "SGD" else {})
        groups = [list(network.parameters())]
        if case.two:
            groups = [groups[0][:-1], groups[0][-1:]]
        optimizers = {
            f"optimizer{number}": optimizer_class(group, **options) for number, group in enumerate(groups)
        }
        if case.tracked:
            checkpoint.track(**optimizers)
        else:
            for name, optimizer in optimizers.items():
                if name in checkpoint:
                    optimizer.load_state_dict(checkpoint[name])
        if case.average:
            dataloader.savepoint(every=case.accumulate)
            start = {name: tensor.detach().clone() for name, tensor in network.named_parameters()}
            checkpoint.setdefault("average", start)
        total = dataloader.progress({"loss": 0.0})
        for inputs, outputs in dataloader:
            examples, labels = self._examples(inputs, outputs)
            if case.dropout:
                examples = functional.dropout(examples, case.dropout)
            loss = functional.cross_entropy(network(examples).reshape(-1, TOKENS), labels.reshape(-1))
            (loss / case.accumulate).backward()  # type: ignore[no-untyped-call]
            total["loss"] += loss.item() * len(outputs)
            if (dataloader.step + 1) % case.accumulate == 0 or dataloader.step + 1 == len(dataloader):
                if case.clip:
                    torch.nn.utils.clip_grad_norm_(network.parameters(), case.clip)
                for optimizer in optimizers.values():
                    if case.schedule:
                        for group in optimizer.param_groups:
                            group["lr"] = 0.01 * (1 - dataloader.step / dataloader.total_steps)
                    optimizer.step()
                    optimizer.zero_grad()
                if case.average:
                    with torch.no_grad():
                        for name, tensor in network.named_parameters():
                            checkpoint["average"][name].lerp_(tensor, 0.1)
        if not case.tracked:
            checkpoint.update({name: optimizer.state_dict() for name, optimizer in optimizers.items()})
        return {"loss": total["loss"] / dataloader.num_rows}


@dataclass(frozen=True, kw_only=True)
class SubEpoch:
    """One sub-epoch of a case, which reads a checkpoint or starts new, and writes one.

    Attributes:
        partition: folder with its rows.
        root: folder of checkpoints; the new file is called `written`.
    """

    case: Case
    parallel_plan: ParallelPlan | None
    number: int
    partition: Path
    root: Path
    read: CheckpointRef | None
    written: str


class StoppedError(Exception):
    """Ends a sub-epoch after a savepoint."""


def trained(
    group: Group | None, sub_epoch: SubEpoch, stop: int = 0, savepoint: CheckpointRef | None = None
) -> tuple[CheckpointRef | None, dict[str, float]]:
    """Train a sub-epoch like a handler, on every rank or on one device without a plan.

    Args:
        stop: batch before which to take a savepoint and end the sub-epoch; 0 to finish it.
        savepoint: savepoint to resume from.

    Returns:
        The reference of the checkpoint or savepoint on rank 0, and the sub-epoch's metrics.
    """
    group = group or Alone(("cpu",) * (sub_epoch.parallel_plan.size if sub_epoch.parallel_plan else 1))
    try:
        return _trained(group, sub_epoch, stop, savepoint)
    finally:
        if isinstance(group, Alone):
            group.leave()


def _trained(
    group: Group, sub_epoch: SubEpoch, stop: int, savepoint: CheckpointRef | None
) -> tuple[CheckpointRef | None, dict[str, float]]:
    spec, case, parallel_plan = CaseSpec(sub_epoch.case), sub_epoch.case, sub_epoch.parallel_plan
    technique = None if parallel_plan is None else resolve(parallel_plan)
    device = (
        CPU
        if technique is None or parallel_plan is None
        else torch.device(technique.made_on(group, parallel_plan.params))
    )
    trainee: Trainee = create(spec, case.given, seed=1, model="m00", device=device)
    reference, resumed = savepoint or sub_epoch.read, None
    if reference is not None:
        state = checkpoints.load(sub_epoch.root, reference, device)
        restore(trainee, state)
        resumed = state.get("savepoint")
    share = (0, 1)
    if technique is not None and parallel_plan is not None:
        trainee = prepare(spec, trainee, technique, parallel_plan.params, group)
        share = trainee.share
    taken: list[CheckpointRef] = []

    def write(state: State, batch: int, rows: int) -> None:
        reference = trainee.save(sub_epoch.root, f"{sub_epoch.written}-{batch}", state)
        if reference is not None:
            taken.append(reference)

    def on_batch(rows: int, batch: int, values: Mapping[str, float]) -> None:
        if stop and batch == stop:
            assert savepoints.take(batch, rows)
            raise StoppedError

    savepoints = Savepoints(trainee, write=write, resumed=resumed)
    loader = PartitionLoader(
        [sub_epoch.partition],
        batch_size=case.batch_size,
        seed=sub_epoch_seed(1, "m00", 1, sub_epoch.number),
        share=share,
        first=resumed["batch"] if resumed else 0,
    )
    feed = InstrumentedLoader(loader, on_batch, savepoints=savepoints)
    with suppress(StoppedError):
        metrics = train_sub_epoch(
            spec, trainee, feed, case.given, seed=1, model="m00", epoch=1, partition=sub_epoch.number
        )
        return trainee.save(sub_epoch.root, sub_epoch.written), numbers_of(metrics)
    return (taken[0] if group.rank == 0 else None), {}


def content(root: Path, reference: CheckpointRef) -> State:
    """Load a checkpoint's state."""
    return checkpoints.load(root, reference, CPU)


def distance(one: State, other: State) -> float:
    """Return the largest relative difference of two states' tensors; infinite if anything else differs."""
    return max((_distance(*pair) for pair in _pairs(one, other)), default=0.0)


def _distance(one: Any, other: Any) -> float:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.shape == other.shape:
        first, second = one.double(), other.double()
        return float((first - second).norm() / max(float(second.norm()), 1e-30)) if one.numel() else 0.0
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) / max(abs(other), 1e-30)
    return 0.0 if type(one) is type(other) and one == other else float("inf")


def _pairs(one: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict) and list(one) == list(other):
        for key in one:
            yield from _pairs(one[key], other[key])
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for pair in zip(one, other, strict=True):
            yield from _pairs(*pair)
    else:
        yield one, other


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Use as many threads as a rank has."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    yield
    torch.set_num_threads(before)


def chain(
    parallel_plans: Sequence[ParallelPlan | None], case: Case, partition: Path, root: Path, ranks: Any
) -> tuple[CheckpointRef, list[dict[str, float]]]:
    """Train sub-epochs one after another, one for each parallel plan.

    Args:
        ranks: a `tests.techniques.ranks.Ranks`.

    Returns:
        The last checkpoint's reference, and the metrics of each sub-epoch.
    """
    reference, found = None, []
    for number, parallel_plan in enumerate(parallel_plans):
        names = "-".join("none" if each is None else each.label for each in parallel_plans[: number + 1])
        sub_epoch = SubEpoch(
            case=case,
            parallel_plan=parallel_plan,
            number=number,
            partition=partition,
            root=root,
            read=reference,
            written=f"{hashlib.sha256(names.encode()).hexdigest()[:16]}.pt",  # labels may be too long for a file
        )
        reference, metrics = attempt(sub_epoch, ranks)
        found.append(metrics)
    assert reference is not None
    return reference, found


def attempt(
    sub_epoch: SubEpoch, ranks: Any, stop: int = 0, savepoint: CheckpointRef | None = None
) -> tuple[CheckpointRef | None, dict[str, float]]:
    """Train one sub-epoch in as many processes as its plan needs; see `trained`."""
    parallel_plan = sub_epoch.parallel_plan
    if parallel_plan is None or resolve(parallel_plan).processes == "one":
        return trained(None, sub_epoch, stop, savepoint)
    answers = ranks.run(parallel_plan.size, trained, sub_epoch, stop, savepoint)
    assert all(metrics == answers[0][1] for _, metrics in answers)
    found: tuple[CheckpointRef | None, dict[str, float]] = answers[0]
    return found
