"""Run the checks of `cerebro.techniques.conformance` on one rank. All ranks run the same check at a time.

``python -m cerebro.worker.training.ranks.conformance FOLDER RANK RANKS`` is started by that module, once per rank. It
reads ``FOLDER/request``, a pickle, and appends a line to ``FOLDER/records-RANK`` for each check and problem. Workers
never run it.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cerebro.contract.tasks.checkpoints import CheckpointRef
from cerebro.data.loader import PartitionLoader
from cerebro.data.manifests import Source
from cerebro.data.shards import write_rows
from cerebro.errors import NotApplicableError
from cerebro.runtime.isolation.process_exit import end_after
from cerebro.spec import Checkpoint, DataLoader, Hints, SubEpochSpec
from cerebro.techniques.base import Group, Params, Technique
from cerebro.techniques.ranks import Alone, RankGroup
from cerebro.worker.training.checkpoints import checkpoint as checkpoints
from cerebro.worker.training.instrumented_loader import InstrumentedLoader
from cerebro.worker.training.ranks.grouped import prepare
from cerebro.worker.training.seeds import sub_epoch_seed
from cerebro.worker.training.sub_epoch import create, restore, train_sub_epoch
from cerebro.worker.training.trainee import Trainee

_SEED, _MODEL = 1, "m00"
_WAIT_S = 60.0
_CLOSE = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Largest relative difference by type; the limit of float32 applies to other types."""


class _FoundError(Exception):
    """A check failed. The message describes the difference."""


class _LastBatchError(Exception):
    """Ends training at the batch that a check needs."""


class SmallSpec(SubEpochSpec):
    """A sequence of equal layers with Adam and clipped gradients."""

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        """Create models in float64, so that rounding hides no error."""
        hidden = [layer for _ in range(3) for layer in (nn.Linear(6, 6), nn.Tanh())]
        return [nn.Sequential(*hidden, nn.Linear(6, 3)).double()]

    def hints(self, models: list[Any], hyperparams: Mapping[str, Any]) -> Hints:
        """Return a tensor-parallel plan for the linear layers."""
        return Hints(tensor_plan={"0": "colwise", "2": "rowwise", "4": "colwise", "6": "rowwise"})

    def train(
        self,
        models: list[Any],
        checkpoint: Checkpoint,
        dataloader: DataLoader,
        hyperparams: Mapping[str, Any],
    ) -> dict[str, float]:
        """Train one pass with Adam and clipped gradients."""
        (network,) = models
        optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
        checkpoint.track(optimizer=optimizer)
        total = 0.0
        for inputs, outputs in dataloader:
            loss = functional.cross_entropy(network(inputs), outputs)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            optimizer.step()
            total += loss.item() * len(outputs)
        return {"loss": total / dataloader.num_rows}


def _small_rows() -> list[tuple[Any, Any]]:
    random = torch.Generator().manual_seed(0)
    rows = torch.rand(23, 6, generator=random, dtype=torch.float64)
    return [(row.numpy(), number % 3) for number, row in enumerate(rows)]


class _Rank:
    """One rank, with the checks as methods."""

    def __init__(self, folder: Path, group: Group, request: Mapping[str, Any]) -> None:
        self.folder, self.group = folder, group
        self.technique: Technique = request["technique"]
        self.params: Params = self.technique.checked(request["params"])
        self.spec: SubEpochSpec = request["spec"] or SmallSpec()
        self.hyperparams: dict[str, Any] = request["hyperparams"]
        self._rows: Sequence[tuple[Any, Any]] = request["rows"] or _small_rows()
        self._partition = folder / "partition"
        if group.rank == 0:
            source = Source(fingerprint="conformance", metadata="xxh3_64:0")
            write_rows(self._partition, self._rows, source)
        group.barrier()

    # --- sub-epochs ---------------------------------------------------------------------------------------

    def trainee(self, start: CheckpointRef | None, *, is_single: bool) -> Trainee:
        """Create the model, or load it from a checkpoint.

        Args:
            is_single: True for one device, False for the technique.
        """
        device = self.group.device if is_single else self.technique.made_on(self.group, self.params)
        trainee = create(self.spec, self.hyperparams, seed=_SEED, model=_MODEL, device=torch.device(device))
        if start is not None:
            restore(trainee, checkpoints.load(self.folder, start, device))
        if is_single:
            return trainee
        return prepare(self.spec, trainee, self.technique, self.params, self.group)

    def train(self, trainee: Trainee, number: int, on_batch: Callable[..., None] = lambda *_: None) -> None:
        """Train one sub-epoch of the model."""
        loader = PartitionLoader(
            [self._partition],
            batch_size=self.hyperparams["batch_size"],
            seed=sub_epoch_seed(_SEED, _MODEL, 1, number),
            device=self.group.device,
            share=getattr(trainee, "share", (0, 1)),
        )
        feed = InstrumentedLoader(loader, on_batch)
        train_sub_epoch(
            self.spec, trainee, feed, self.hyperparams, seed=_SEED, model=_MODEL, epoch=1, partition=number
        )

    def sub_epoch(self, start: CheckpointRef | None, number: int, *, is_single: bool) -> CheckpointRef:
        """Train one sub-epoch, and return its checkpoint on all ranks.

        On one device only rank 0 trains; the others wait.
        """
        reference = None
        if not is_single or self.group.rank == 0:
            trainee = self.trainee(start, is_single=is_single)
            self.train(trainee, number)
            reference = self.saved(
                trainee, f"{number}-{'single' if is_single else 'parallel_plan'}-{self._count()}"
            )
        found: CheckpointRef = self.group.gathered(reference)[0]
        return found

    def saved(self, trainee: Trainee, name: str) -> CheckpointRef | None:
        """Save the model; return the checkpoint on the rank that wrote it."""
        return trainee.save(self.folder, name)

    def _count(self) -> int:
        return len(list(self.folder.glob("*-*-*")))

    # --- checks --------------------------------------------------------------------------------------

    def gradient(self) -> None:
        """Compare the gradients at the first optimizer step with the gradients on one device."""
        found = self._first_gradient(is_single=False)
        if self.group.rank == 0:
            _compare(self._first_gradient(is_single=True), found, "the gradient of ")

    def _first_gradient(self, *, is_single: bool) -> dict[str, Any]:
        trainee = self.trainee(None, is_single=is_single)
        gradients: dict[str, Any] = {}

        def record(*_: object) -> None:
            for number, module in enumerate(trainee.modules):
                for name, parameter in module.named_parameters():
                    gradients[f"{number}/{name}"] = parameter.grad
            gradients.update({"whole": trainee.full_state({"gradients": dict(gradients)})})
            raise _LastBatchError

        hook = register_optimizer_step_pre_hook(record)
        try:
            self.train(trainee, 0)
        except _LastBatchError:
            full_gradients: dict[str, Any] = gradients["whole"].get("gradients", {})
            return full_gradients
        finally:
            hook.remove()
        raise _FoundError("train() takes no optimizer step, so there is no gradient to compare")

    def hops(self) -> None:
        """Compare chains of three sub-epochs, some by the technique, with a chain on one device."""
        stories = {
            "after sub-epochs on one device, by the technique and on one device, ": (True, False, True)
        }
        stories["after a sub-epoch on one device and two by the technique, "] = (True, False, False)
        expected = self._chain((True,) * 3)
        # Collect all first: no rank may leave while another continues.
        found = {what: self._chain(are_single) for what, are_single in stories.items()}
        if self.group.rank == 0:
            one = checkpoints.load(self.folder, expected, "cpu")
            for what, each in found.items():
                _compare(one, checkpoints.load(self.folder, each, "cpu"), what)

    def _chain(self, are_single: Sequence[bool]) -> CheckpointRef:
        reference = None
        for number, is_single in enumerate(are_single):
            reference = self.sub_epoch(reference, number, is_single=is_single)
        assert reference is not None
        return reference

    def files(self) -> None:
        """Restore a checkpoint and save it again: both files must be equal to the bit."""
        start = self.sub_epoch(None, 0, is_single=True)
        again = self.saved(self.trainee(start, is_single=False), "again")
        if again is not None:
            one, other = (checkpoints.load(self.folder, each, "cpu") for each in (start, again))
            _compare(one, other, "restored and saved again, ", is_exact=True)

    def failing_rank(self) -> None:
        """End the last rank at its second batch: no other rank may report success."""
        if self.group.size == 1:
            return
        trainee = self.trainee(None, is_single=False)
        is_last = self.group.rank == self.group.size - 1

        def on_batch(rows: int, batch: int, values: Mapping[str, float]) -> None:
            if is_last and batch == 1:
                raise _LastBatchError

        try:
            self.train(trainee, 0, on_batch)
            trainee.state()
        except _LastBatchError:
            os._exit(0)  # without cleanup, like a killed rank
        except Exception:  # noqa: BLE001 - any exception that a missing rank causes in a collective call
            return
        raise _FoundError("the sub-epoch ended without an error although another rank was gone")


def _compare(expected: Any, found: Any, what: str, *, is_exact: bool = False) -> None:
    for path, one, other in _pairs(expected, found, ""):
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.shape == other.shape:
            largest = 0.0 if is_exact else _CLOSE.get(one.dtype, _CLOSE[torch.float32])
            first, second = one.detach().double().cpu(), other.detach().double().cpu()
            difference = (
                float((first - second).norm() / max(float(first.norm()), 1e-30)) if one.numel() else 0.0
            )
            if not difference <= largest:
                raise _FoundError(
                    f"{what}{path} differs from the value on one device by {difference:.1e} of its norm"
                )
        elif type(one) is not type(other) or (not isinstance(one, float) and repr(one) != repr(other)):
            raise _FoundError(f"{what}{path} is {_short(other)}, and on one device {_short(one)}")


def _pairs(one: Any, other: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from _pairs(one.get(key, "missing"), other.get(key, "missing"), f"{path}[{key!r}]")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from _pairs(*pair, f"{path}[{number}]")
    else:
        yield path, one, other


def _short(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)[:80]


@contextmanager
def _joined(folder: Path, rank: int, ranks: int, request: Mapping[str, Any]) -> Iterator[Group]:
    kind, size = request["device"], request["size"]
    names = tuple(f"cuda:{number}" for number in range(size)) if kind == "cuda" else ("cpu",) * size
    if request["technique"].processes == "one":
        group: Group = Alone(names)
    else:
        meeting = folder / "meeting"
        meeting.mkdir(exist_ok=True)
        group = RankGroup.join(meeting, rank=rank, size=ranks, device=names[rank], timeout_s=_WAIT_S)
    try:
        yield group
    finally:
        group.leave()


def main() -> None:
    """Run the checks and append a record for each start and problem to a file."""
    folder, (rank, ranks) = Path(sys.argv[1]), map(int, sys.argv[2:4])
    request = cloudpickle.loads((folder / "request").read_bytes())
    torch.set_num_threads(1)
    with (folder / f"records-{rank}").open("a") as file, _joined(folder, rank, ranks, request) as group:

        def report(name: str, text: str) -> None:
            file.write(json.dumps((name, text)) + "\n")
            file.flush()

        one = _Rank(folder, group, request)
        checks = {
            "gradient": one.gradient,
            "hops": one.hops,
            "files": one.files,
            "failing rank": one.failing_rank,
        }
        for name, do in checks.items():
            report(name, "")
            try:
                do()
            except (_FoundError, NotApplicableError) as error:
                report(name, str(error))
            except Exception:  # noqa: BLE001 - any exception of a user's technique
                report(name, traceback.format_exc(limit=-6).strip())
                return
            if name != "failing rank":
                group.barrier()


if __name__ == "__main__":
    end_after(main)
