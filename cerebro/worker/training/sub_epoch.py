"""One sub-epoch, one evaluation, one prediction: user code called as `SubEpochSpec` promises.

`model_hopper`, trials, replays, dry runs and the client's results call it: `create`, `restore`, then `train_sub_epoch`,
`evaluate` or `predicting`, then `Trainee.save`. Only here and in trials do models meet user code, so hopping and replay
agree to the bit. It reads no rows and chooses no paths: callers pass a data loader and a file name.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from cerebro.errors import DeviceError, SpecError
from cerebro.runtime.usage.memory import trim_heap
from cerebro.spec import DataLoader, SubEpochSpec
from cerebro.steps.ema import averaged
from cerebro.worker.training.checkpoints.checkpoint import LAYOUT, State
from cerebro.worker.training.checkpoints.mapped_base import MAPPED, use_mapped
from cerebro.worker.training.frameworks import as_torch_spec
from cerebro.worker.training.metrics import (
    Measured,
    PerRowValues,
    checked_metrics,
    described,
    split_per_row,
)
from cerebro.worker.training.seeds import model_seed, seed_everything, sub_epoch_seed
from cerebro.worker.training.sub_epoch_checks import SubEpochChecks
from cerebro.worker.training.tracked_checkpoint import Checkpoint, changes
from cerebro.worker.training.trainee import Trainee

log = logging.getLogger(__name__)


def default_device() -> torch.device:
    """Return the GPU of this process, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def rounds_at_random() -> bool:
    """True if equal training may round differently: on a GPU without torch's deterministic algorithms."""
    return default_device().type == "cuda" and not torch.are_deterministic_algorithms_enabled()


def require_gpu(device: torch.device) -> None:
    """Refuse to train on the processor in a process with a GPU: slow, and not bit-identical.

    Raises:
        DeviceError: torch can use GPUs, but sees none: it vanished, or its driver does not respond.
    """
    if device.type == "cuda":
        return
    if torch.version.cuda is None:
        log.warning("torch was built without CUDA: the GPU that this task was given is not used")
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    raise DeviceError(
        f"this worker registered a GPU ({visible}), but torch finds none any more (torch.cuda.is_available() is "
        "false): it has fallen off the bus, or its driver does not answer. See nvidia-smi and the kernel's log there"
    )


def device_named(name: str) -> torch.device:
    """Return a device by its name, such as ``cuda:1``."""
    return torch.device(name)


def count_parameters(modules: Sequence[torch.nn.Module]) -> tuple[int, int]:
    """Count numbers that modules learn, and parameters of lazy modules, which have no size yet."""
    learned = [each for module in modules for each in module.parameters() if each.requires_grad]
    num_lazy = sum(map(bool, map(is_lazy, learned)))
    return sum(0 if bool(is_lazy(each)) else each.numel() for each in learned), num_lazy


def require_trainable(modules: Sequence[torch.nn.Module]) -> None:
    """Refuse modules whose parameters all are frozen.

    Raises:
        SpecError: training them has no effect.
    """
    parameters = [each for module in modules for each in module.parameters()]
    if parameters and not any(each.requires_grad for each in parameters):
        raise SpecError(
            "create_models() returned modules without a trainable parameter: requires_grad is False for all "
            f"{len(parameters)}. Set it to True for the layers to train; a PEFT adapter needs inference_mode=False in "
            "its configuration, or is_trainable=True in PeftModel.from_pretrained()"
        )


def has_batch_norm(modules: Sequence[torch.nn.Module]) -> bool:
    """True if a module normalizes over batches, so a batch of one row may fail."""
    return any(isinstance(part, _BatchNorm) for module in modules for part in module.modules())


def create(
    spec: SubEpochSpec, hyperparams: Mapping[str, Any], *, seed: int, model: str, device: torch.device
) -> Trainee:
    """Create a model, initialised from the seed, on `device`.

    Raises:
        SpecError: `create_models` did not return a list of modules.
    """
    seed_everything(model_seed(seed, model))
    returned: object = as_torch_spec(spec).create_models(dict(hyperparams))
    modules = list(returned) if isinstance(returned, list | tuple) else []
    if not modules or not all(isinstance(module, torch.nn.Module) for module in modules):
        raise SpecError(
            f"create_models() returned {described(returned)}, expected a list of torch.nn.Module with "
            "at least one in it"
        )
    return Trainee(modules=[module.to(device) for module in modules], hyperparams=dict(hyperparams))


def restore(trainee: Trainee, state: State) -> None:
    """Load a state into a newly created model, and use the state's `checkpoint`."""
    if len(state["models"]) != len(trainee.modules):
        raise SpecError(
            f"create_models() returned {len(trainee.modules)} modules, but {len(state['models'])} were saved: it must "
            "return the same modules each time"
        )
    changed = state.get("changes") or changes(state.get("hyperparams"), trainee.hyperparams)
    for module, saved in zip(trainee.modules, use_mapped(trainee.modules, state), strict=True):
        try:
            module.load_state_dict(saved)
        except RuntimeError as error:
            if not changed:
                raise
            changed_values = (f"{name} from {old!r} to {new!r}" for name, (old, new) in changed.items())
            description = ", ".join(changed_values)
            raise SpecError(
                f"the saved weights do not fit the model that create_models() makes now, after a change of "
                f"{description}: "
                f"clone the model with such values cold (warm=False). {error}"
            ) from error
    if state.get(MAPPED):
        trim_heap()  # the frozen weights of create_models() were freed
    trainee.is_new = False
    trainee.frozen.layout = state.get(LAYOUT)
    # The content is not copied: an optimizer's state may be most of a model's memory.
    trainee.checkpoint = Checkpoint(state["checkpoint"], initial_values=state.get("made"), changes=changed)


def tensor_shapes(trainee: Trainee) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor in the state of the modules, by name."""
    return {
        f"module {number}: {name}" if len(trainee.modules) > 1 else name: tuple(tensor.shape)
        for number, module in enumerate(trainee.modules)
        for name, tensor in module.state_dict().items()
        if isinstance(tensor, torch.Tensor)
    }


def train_sub_epoch(
    spec: SubEpochSpec,
    trainee: Trainee,
    loader: DataLoader,
    hyperparams: Mapping[str, Any],
    *,
    seed: int,
    model: str,
    epoch: int,
    partition: int,
) -> Measured:
    """Train on one partition; changes `trainee` in place.

    Raises:
        MetricError, NonFiniteMetricError: invalid result of `train`.
        SpecError: a hyperparameter was changed without effect; see `tracked_checkpoint`.
    """
    drawn = sub_epoch_seed(seed, model, epoch, partition)
    seed_everything(drawn)
    for module in trainee.modules:
        module.train()
    with trainee.running(loader, drawn):
        checks = SubEpochChecks(trainee)
        with checks, _one_row_named(loader, hyperparams, partition), using_outputs(trainee.modules, loader):
            returned = as_torch_spec(spec).train(
                trainee.modules, trainee.checkpoint, loader, dict(hyperparams)
            )
        metrics = checked_metrics(returned, "train", f"epoch {epoch}, partition {partition}")
        trainee.warnings = [*checks.warnings(loader), *output_warnings(loader)]
    trainee.checkpoint.settle()
    return trainee.agreed(metrics, loader)


@contextmanager
def _one_row_named(loader: DataLoader, hyperparams: Mapping[str, Any], partition: int) -> Iterator[None]:
    """Explain torch's error for a batch of one row, which batch normalization cannot train on.

    Raises:
        SpecError: the batch has one row; the message names the partition and a remedy.
    """
    try:
        yield
    except ValueError as error:
        size = hyperparams.get("batch_size")
        if "more than 1 value per channel" not in str(error) or not isinstance(size, int):
            raise
        rows = loader.num_rows
        if rows % size != 1 and size != 1:
            raise
        raise SpecError(
            f"batch normalization cannot train on one row: the last batch of partition {partition} has one, because it "
            f"has {rows} rows and batch_size is {size}. Leave such a batch out with the hyperparameter "
            f"'drop_last': [True], or choose another batch_size. ({error})"
        ) from error


def evaluate(
    spec: SubEpochSpec,
    trainee: Trainee,
    loader: DataLoader,
    hyperparams: Mapping[str, Any],
    *,
    seed: int,
    per_row: PerRowValues | None = None,
) -> Measured:
    """Return the result of the user's `test`, in evaluation mode without gradients.

    Args:
        per_row: the values per row are added here, by metric.

    Raises:
        MetricError, NonFiniteMetricError: invalid result of `test`.
    """
    with (
        evaluating(spec, trainee, hyperparams, "test", seed=seed),
        using_outputs(trainee.modules, loader),
    ):
        returned = as_torch_spec(spec).test(trainee.modules, trainee.checkpoint, loader, dict(hyperparams))
    metrics, values = split_per_row(returned, loader.num_rows)
    if per_row is not None:
        per_row.update(values)
    return checked_metrics(metrics, "test", "evaluation")


@contextmanager
def predicting(
    spec: SubEpochSpec, trainee: Trainee, loader: DataLoader, hyperparams: Mapping[str, Any], *, seed: int
) -> Iterator[object]:
    """Yield the result of the user's `predict` in evaluation mode; it may be a generator of batches."""
    with (
        evaluating(spec, trainee, hyperparams, "predict", seed=seed),
        using_outputs(trainee.modules, loader),
    ):
        yield as_torch_spec(spec).predict(trainee.modules, trainee.checkpoint, loader, dict(hyperparams))


@contextmanager
def using_outputs(modules: Sequence[torch.nn.Module], loader: DataLoader) -> Iterator[None]:
    """Let frozen layers use stored outputs for the loader's batches in the block."""
    frozen_layers = getattr(loader, "frozen_layers", None)
    if frozen_layers is None:
        yield
        return
    with frozen_layers.bound(modules):
        yield


def output_warnings(loader: DataLoader) -> list[str]:
    """Return the warnings about outputs of frozen layers."""
    return list(getattr(getattr(loader, "frozen_layers", None), "warnings", ()))


@contextmanager
def evaluating(
    spec: SubEpochSpec, trainee: Trainee, hyperparams: Mapping[str, Any], method: str, *, seed: int
) -> Iterator[None]:
    """Evaluate the modules in the block: evaluation mode, no gradients, seeded, `checkpoint` read-only.

    A `StepSpec` with averaged weights is evaluated with these.

    Raises:
        SpecError: the user's method has written into `checkpoint`.
    """
    seed_everything(seed)
    for module in trainee.modules:
        module.eval()
    with (
        torch.no_grad(),
        averaged(spec, trainee.modules, trainee.checkpoint, hyperparams),
        trainee.checkpoint.only_read(method),
    ):
        yield
