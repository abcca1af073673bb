"""One unit, one evaluation, one prediction: user code called as the templates promise.

The only place where models meet user code; hopping and replay both come here, which is why they agree to the bit.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from cerebro.contract.records import Hyperparameters
from cerebro.contract.tasks import CheckpointRef
from cerebro.contract.texts import cleaned
from cerebro.errors import MetricError, NonFiniteMetricError, SpecError
from cerebro.spec import DataLoader, SubEpochSpec
from cerebro.worker.training.base_tensors import BaseTensors, is_plain
from cerebro.worker.training.checkpoint import LAYOUT, State, needs_named, save
from cerebro.worker.training.frozen import Frozen, move_to_base
from cerebro.worker.training.seeds import model_seed, seed_everything, unit_seed
from cerebro.worker.training.tracking import Checkpoint, changes

_MAX_METRICS, _MAX_NAME = 1_000, 200
"""Metrics that a function may return, and characters of a name: the log keeps them of every unit."""


@dataclass(kw_only=True)
class Trainee:
    """A model in memory: its modules on their device, and the user's checkpoint mapping."""

    modules: list[torch.nn.Module]
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    hyperparams: Hyperparameters = field(default_factory=dict)
    is_new: bool = True
    """Whether its weights are those that `create_models` drew."""
    frozen: Frozen = field(default_factory=Frozen)

    def state(self) -> State:
        """What is saved of it."""
        return self.whole(self.local_state())

    def save(self, root: Path, name: str, part: State | None = None) -> CheckpointRef | None:
        """Write it as `checkpoint.save` does; what identifies the file, where it was written.

        Args:
            part: what of it this process gives, or more than that; left out: `local_state`. Then frozen weights may be
                written apart, into a base; else only one that is there is used.
        """
        state = self.local_state() if part is None else part
        with needs_named(state):
            in_base = move_to_base(self, root / name, state, makes_base=part is None)
        try:
            return self.write(root, name, state, in_base)
        except BaseException:
            if in_base is not None:
                in_base.discard()
            raise

    def write(self, root: Path, name: str, state: State, in_base: BaseTensors | None) -> CheckpointRef | None:
        """Write a state but for what is in a base."""
        return save(root, name, state, in_base)

    def local_state(self) -> State:
        """What this process has of it."""
        return {
            "models": [module.state_dict() for module in self.modules],
            "checkpoint": self.checkpoint.newest(),
            "hyperparams": self.hyperparams,
            "made": self.checkpoint.made,
        }

    # --- what is otherwise where several processes train it together (`grouped`) ---------------------

    rank = 0
    """Number of this process among them."""

    @property
    def share(self) -> tuple[int, int]:
        """(which, of so many) of the rows of each batch it is trained on here; what `PartitionLoader` takes."""
        return 0, 1

    @property
    def device(self) -> str:
        """Where it takes its batches; empty: where it was created."""
        return ""

    def whole(self, state: State) -> State:
        """What is saved of a state of this process."""
        return state

    def of_ranks(self, value: Any) -> list[Any]:
        """What each of these processes gave."""
        return [value]

    def rows_here(self, tensor: torch.Tensor) -> tuple[torch.Tensor, int] | None:
        """What this process has of a tensor, and which row that begins with; `None`: it is nothing that can be read as
        rows."""
        return (tensor, 0) if is_plain(tensor) else None

    def part(self, tensor: Any, parameter: torch.nn.Parameter) -> Any:
        """What this process has of a saved tensor that belongs to a parameter."""
        return tensor

    def cut_kept(self) -> None:
        """Have what was put into `checkpoint` fit the parameters of this process."""

    @contextmanager
    def running(self, feed: DataLoader, seed: int) -> Iterator[None]:
        """Around the user's `train`: nothing, unless ranks train it together."""
        yield

    def agreed(self, metrics: Mapping[str, float], feed: DataLoader) -> dict[str, float]:
        """Metrics of the unit from what `train` returned here."""
        return dict(metrics)


def default_device() -> torch.device:
    """The GPU of this process, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_named(name: str) -> torch.device:
    """A device by its name, such as ``cuda:1``."""
    return torch.device(name)


def create(
    spec: SubEpochSpec, hyperparams: Mapping[str, Any], *, seed: int, model: str, device: torch.device
) -> Trainee:
    """A new model, initialised from the seed, on `device`.

    Raises:
        SpecError: `create_models` did not return a list of modules.
    """
    seed_everything(model_seed(seed, model))
    # User code keeps its promises or does not.
    returned: object = spec.create_models(dict(hyperparams))
    modules = list(returned) if isinstance(returned, list | tuple) else []
    if not modules or not all(isinstance(module, torch.nn.Module) for module in modules):
        raise SpecError(
            f"create_models() returned {_described(returned)}, expected a list of torch.nn.Module with "
            "at least one in it"
        )
    return Trainee(modules=[module.to(device) for module in modules], hyperparams=dict(hyperparams))


def restore(trainee: Trainee, state: State) -> None:
    """Put a loaded state into a freshly created model, which takes over what the user keeps in it."""
    if len(state["models"]) != len(trainee.modules):
        raise SpecError(
            f"create_models() returned {len(trainee.modules)} modules, but {len(state['models'])} were saved: it must "
            "return the same modules each time"
        )
    changed = state.get("changes") or changes(state.get("hyperparams"), trainee.hyperparams)
    for module, saved in zip(trainee.modules, state["models"], strict=True):
        try:
            module.load_state_dict(saved)
        except RuntimeError as error:
            if not changed:
                raise
            told = ", ".join(f"{name} from {before!r} to {now!r}" for name, (before, now) in changed.items())
            raise SpecError(
                f"the saved weights do not fit the model that create_models() makes now, after a change of {told}: "
                f"clone the model with such values cold (warm=False). {error}"
            ) from error
    trainee.is_new = False
    trainee.frozen.layout = state.get(LAYOUT)
    # What is in it is not copied: where an optimizer's state is most of a model's, that would be most of its memory
    # once more.
    trainee.checkpoint = Checkpoint(state["checkpoint"], made=state.get("made"), changes=changed)


def train_unit(
    spec: SubEpochSpec,
    trainee: Trainee,
    loader: DataLoader,
    hyperparams: Mapping[str, Any],
    *,
    seed: int,
    model: str,
    epoch: int,
    partition: int,
) -> dict[str, float]:
    """Train on one partition; changes `trainee` in place.

    Raises:
        MetricError, NonFiniteMetricError: of what `train` returned.
        SpecError: a hyper-parameter was changed without effect: see `tracking`.
    """
    drawn = unit_seed(seed, model, epoch, partition)
    seed_everything(drawn)
    for module in trainee.modules:
        module.train()
    with trainee.running(loader, drawn):
        returned = spec.train(trainee.modules, trainee.checkpoint, loader, dict(hyperparams))
    metrics = checked_metrics(returned, "train", f"epoch {epoch}, partition {partition}")
    trainee.checkpoint.settle()
    return trainee.agreed(metrics, loader)


def evaluate(
    spec: SubEpochSpec, trainee: Trainee, loader: DataLoader, hyperparams: Mapping[str, Any], *, seed: int
) -> dict[str, float]:
    """What the user's `test` returns, in evaluation mode without gradients."""
    with evaluating(trainee, seed=seed):
        returned = spec.test(trainee.modules, trainee.checkpoint, loader, dict(hyperparams))
    return checked_metrics(returned, "test", "evaluation")


@contextmanager
def evaluating(trainee: Trainee, *, seed: int) -> Iterator[None]:
    """Evaluation mode, no gradients, seeded."""
    seed_everything(seed)
    for module in trainee.modules:
        module.eval()
    with torch.no_grad():
        yield


def checked_metrics(returned: object, function: str, where: str) -> dict[str, float]:
    """What user code returned, as finite numbers by name.

    Raises:
        MetricError: it is no dict of names and numbers.
        NonFiniteMetricError: one of them is NaN or infinite.
    """
    if not isinstance(returned, Mapping):
        raise MetricError(
            f"{function}() returned {_described(returned)}, expected a dict of metric names and numbers"
        )
    if len(returned) > _MAX_METRICS:
        raise MetricError(f"{function}() returned {len(returned)} metrics, expected at most {_MAX_METRICS}")
    metrics = {
        (named := checked_name(name, function)): _number(value, function, named)
        for name, value in returned.items()
    }
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NonFiniteMetricError(f"{name} became {value} in {where}: the model is given up")
    return metrics


def checked_name(name: object, function: str) -> str:
    """A metric's name as text that can be stored and shown.

    Raises:
        MetricError: it cannot.
    """
    text = str(name)
    if not 0 < len(text) <= _MAX_NAME or not text.isprintable():
        raise MetricError(
            f"{function}() names a metric {cleaned(text, _MAX_NAME)!r}, expected 1 to {_MAX_NAME} characters that can "
            "be shown"
        )
    return text


def _number(value: object, function: str, name: str) -> float:
    if isinstance(value, numbers.Real):
        return float(value)
    if hasattr(value, "item") and getattr(value, "numel", lambda: getattr(value, "size", 0))() == 1:
        return float(cast(Any, value).item())
    raise MetricError(f"{function}() returned {_described(value)} for {name!r}, expected one number")


def _described(value: object) -> str:
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + (f" of shape {tuple(shape)}" if shape is not None else "")
