"""The loop of a `StepSpec`: one pass over a data loader for training, testing or predicting.

`StepSpec` calls it from `train`, `test` and `predict`. The order of a training step follows Lightning and Accelerate:
forward pass, loss divided by `accumulate`, backward pass; after `accumulate` batches unscaling, clipping, optimizer
step, `zero_grad`, scheduler step (`optimization`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from cerebro.errors import SpecError
from cerebro.spec import Checkpoint, DataLoader, Metrics
from cerebro.steps import averages
from cerebro.steps.optimization import Optimization, device_of
from cerebro.steps.options import Options, options_of
from cerebro.steps.spec import StepSpec

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def train(
    spec: StepSpec,
    models: list[Any],
    checkpoint: Checkpoint,
    dataloader: DataLoader,
    hyperparams: Mapping[str, Any],
) -> Metrics:
    """Train on each batch once.

    Raises:
        SpecError: an option, a loss or an optimizer is invalid.
        MetricError: a metric is invalid.
    """
    options = options_of(spec, hyperparams)
    spec.total_steps = total_steps(dataloader, options.accumulate)
    optimization = Optimization(spec, models, hyperparams, options)
    checkpoint.track(**optimization.tracked)
    if options.compile:
        _compile(models)
    # All state that changes is in tracked objects, in `total` and in `dataloader`, so savepoints contain it.
    total = dataloader.progress({"metrics": {}})
    first_step = dataloader.step
    for batch in dataloader:
        with autocast(models, options):
            returned = spec.training_step(models, batch, hyperparams)
        loss, metrics = checked_loss(returned)
        optimization.backward(loss, is_step=is_step(dataloader, first_step, options.accumulate))
        dataloader.report(
            **averages.add(total["metrics"], metrics, rows_of(batch, dataloader), "training_step")
        )
    return averages.result(total["metrics"])


def test(
    spec: StepSpec, models: list[Any], dataloader: DataLoader, hyperparams: Mapping[str, Any]
) -> Metrics:
    """Return the metrics of `validation_step` over all rows.

    Raises:
        SpecError, MetricError: it returned no dict of numbers.
    """
    options = options_of(spec, hyperparams)
    sums: averages.Sums = {}
    values: averages.RowValues = {}
    for batch in dataloader:
        with autocast(models, options):
            metrics: object = spec.validation_step(models, batch, hyperparams)
        if not isinstance(metrics, Mapping):
            raise SpecError(
                f"validation_step() returned {_described(metrics)}, expected a dict of metric names and numbers, such "
                "as {'accuracy': accuracy}"
            )
        averages.add(sums, metrics, rows_of(batch, dataloader), "validation_step", values=values)
    return averages.result(sums) | averages.per_row(values, dataloader.num_rows)


def predict(
    spec: StepSpec, models: list[Any], dataloader: DataLoader, hyperparams: Mapping[str, Any]
) -> Iterator[Any]:
    """Yield the predictions of each batch. Half-precision results become float32, which tables can store."""
    options = options_of(spec, hyperparams)
    for batch in dataloader:
        with autocast(models, options):
            outputs = spec.prediction_step(models, batch, hyperparams)
        if isinstance(outputs, Mapping):
            yield {name: _single_precision(column) for name, column in outputs.items()}
        else:
            yield _single_precision(outputs)


def total_steps(dataloader: DataLoader, accumulate: int) -> int:
    """Return the optimizer steps of the whole training, or an upper bound if partitions differ in size."""
    if accumulate == 1:
        return dataloader.total_steps
    batches = -(-dataloader.total_steps // dataloader.sub_epochs)
    return -(-batches // accumulate) * dataloader.sub_epochs


def autocast(models: Sequence[nn.Module], options: Options) -> AbstractContextManager[Any]:
    """Return the context of a step for its precision."""
    if options.precision == "float32":
        return nullcontext()
    return torch.autocast(device_of(models).type, dtype=_DTYPES[options.precision])


def checked_loss(returned: Any, *, is_stacked: bool = False) -> tuple[torch.Tensor, Mapping[str, Any]]:
    """Return the loss, and all metrics including the loss, of the result of `training_step`.

    Args:
        is_stacked: True under `torch.vmap`, where a tensor does not show whether it needs a gradient.

    Raises:
        SpecError: it has no loss that can be differentiated.
    """
    metrics: Mapping[str, Any] = returned if isinstance(returned, Mapping) else {"loss": returned}
    loss = metrics.get("loss")
    if not isinstance(loss, torch.Tensor):
        found = f"a dict without 'loss' ({', '.join(map(str, metrics)) or 'empty'})"
        raise SpecError(
            f"training_step() returned {found if 'loss' not in metrics else _described(loss)}, expected the loss, a "
            "tensor with one element, or a dict with the key 'loss'"
        )
    if loss.numel() != 1:
        raise SpecError(
            f"training_step() returned a loss of shape {tuple(loss.shape)}, expected one element: take its mean, "
            "loss.mean()"
        )
    if not is_stacked and not loss.requires_grad:
        raise SpecError(
            "training_step() returned a loss that needs no gradient: compute it from the outputs of the models, "
            "without detach(), item() or torch.no_grad(), and leave requires_grad of some parameters True"
        )
    return loss, metrics


def rows_of(batch: Any, dataloader: DataLoader) -> int:
    """Return the rows of a batch; 0 if they are counted by another rank."""
    if dataloader.is_lent:
        return 0
    while isinstance(batch, (tuple, list, dict)):
        batch = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return batch.shape[0] if isinstance(batch, torch.Tensor) else len(batch)


def is_step(dataloader: DataLoader, first_step: int, accumulate: int) -> bool:
    """Return True if the current batch completes an optimizer step."""
    batches = dataloader.step - first_step + 1
    return batches % accumulate == 0 or batches == len(dataloader)


def _compile(models: Sequence[nn.Module]) -> None:
    for model in models:
        if model._compiled_call_impl is None:
            model._compiled_call_impl = _compiled(model)


def _compiled(model: nn.Module) -> Any:
    """Return a compiled call of the module.

    `nn.Module.compile` ignores modules whose `forward` is torch's own, such as `nn.Sequential`.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return model._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]  # torch has no types here

    return torch.compile(call)


def _single_precision(value: Any) -> Any:
    is_half = isinstance(value, torch.Tensor) and value.dtype in _DTYPES.values()
    return value.float() if is_half else value


def _described(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
