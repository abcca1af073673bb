"""Facts about a model without training: sizes, repeated blocks, and a signature shared by equal models.

`trial_runner.inspection` calls it for each model of a run. Models are created on torch's ``meta`` device, without
memory for weights. User code that reads values fails there and runs on the CPU. Time and memory are measured by trials,
not here.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn

from cerebro.errors import SpecError
from cerebro.spec import Hints, SubEpochSpec
from cerebro.techniques import ModelFacts
from cerebro.techniques.facts import blocks, coupled, distinct, num_bytes, planned, stages
from cerebro.worker.training.frameworks import only_single
from cerebro.worker.training.sub_epoch import create
from cerebro.worker.training.trainee import Trainee

log = logging.getLogger(__name__)

_OF_OPTIMIZERS = ("lr", "learning_rate", "weight_decay", "momentum", "betas", "warmup*", "seed")
"""Hyperparameters in which the models of a stack may differ, as patterns of `fnmatch`."""

HARMLESS = (*_OF_OPTIMIZERS, "dropout", "dropout_*", "*_dropout")
"""Hyperparameters that neither time nor memory depend on, as patterns of `fnmatch`."""


def create_on_meta(spec: SubEpochSpec, hyperparams: Mapping[str, Any], *, seed: int, model: str) -> Trainee:
    """Create a model's modules, without memory for weights if possible.

    Raises:
        SpecError: `create_models` did not return a list of modules. Other exceptions on the CPU are user code's.
    """
    device = torch.device("meta")
    try:
        with device:
            return create(spec, hyperparams, seed=seed, model=model, device=device)
    except Exception as error:  # noqa: BLE001 - user code may fail in any way on missing values
        log.info("%s cannot be made on meta (%s: %s): made on the CPU", model, type(error).__name__, error)
        return create(spec, hyperparams, seed=seed, model=model, device=torch.device("cpu"))


def hints_of(spec: SubEpochSpec, modules: list[nn.Module], hyperparams: Mapping[str, Any]) -> Hints:
    """Return the user's hints for a model.

    Raises:
        SpecError: the result is not `Hints`.
    """
    hints: object = spec.hints(modules, dict(hyperparams))
    if not isinstance(hints, Hints):
        raise SpecError(f"hints() returned a {type(hints).__name__}, expected cerebro.Hints(...)")
    return hints


def facts_of(
    modules: Sequence[nn.Module],
    hyperparams: Mapping[str, Any],
    *,
    hints: Hints | None = None,
    not_stackable: str = "",
    is_for_stacks: bool = False,
) -> ModelFacts:
    """Collect the facts about a model's modules.

    Args:
        hints: may name blocks; see `cerebro.techniques.facts.blocks`.
        not_stackable: see `ModelFacts`.
        is_for_stacks: see `signature_of`.
    """
    parameters = list(distinct(parameter for module in modules for parameter in module.parameters()))
    trained = [module for module in modules if any(True for _ in module.parameters())]
    repeated = blocks(modules, hints)
    batch_size = hyperparams.get("batch_size")
    return ModelFacts(
        signature=signature_of(modules, hyperparams, is_for_stacks=is_for_stacks),
        param_bytes=num_bytes(parameters),
        trainable_bytes=num_bytes(parameter for parameter in parameters if parameter.requires_grad),
        buffer_bytes=num_bytes(distinct(buffer for module in modules for buffer in module.buffers())),
        block_bytes=max((num_bytes(distinct(block.parameters())) for block in repeated), default=0),
        batch_size=batch_size if isinstance(batch_size, int) and batch_size > 0 else 1,
        layers=dict(Counter(type(block).__name__ for block in repeated)),
        num_modules=len(trained),
        coupled=next(filter(None, map(coupled, modules)), ""),
        stages=_stages(trained, hints or Hints()),
        splits=_splits(trained, hints or Hints()),
        only_single=only_single(modules),
        not_stackable=not_stackable,
    )


def _stages(modules: Sequence[nn.Module], hints: Hints) -> int:
    with suppress(AttributeError):  # a stage is no module; the technique reports that
        return len(stages(modules[0], hints)) if len(modules) == 1 else 0
    return 0


def _splits(modules: Sequence[nn.Module], hints: Hints) -> tuple[int, ...]:
    with suppress(ValueError):  # the plan is impossible; the technique reports that
        return tuple(size for _, _, _, size in planned(modules[0], hints)) if len(modules) == 1 else ()
    return ()


def signature_of(
    modules: Sequence[nn.Module], hyperparams: Mapping[str, Any], *, is_for_stacks: bool = False
) -> str:
    """Return a hash shared by models with the same time and memory needs.

    It covers modules, parameters and buffers with names, shapes, types, training and sharing, and all
    hyperparameters that matter.

    Args:
        is_for_stacks: True to share it only between models that can train as one stack, which need the same settings of
            modules, such as rates of dropout.
    """
    visited: dict[int, str] = {}
    facts: list[Any] = []
    for number, module in enumerate(modules):
        facts += [[number, *line] for line in _modules(module, is_for_stacks=is_for_stacks)]
        tensors = (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        )
        for name, tensor in tensors:
            is_same_as = visited.setdefault(id(tensor), f"{number}/{name}")
            facts.append(
                [number, name, list(tensor.shape), str(tensor.dtype), tensor.requires_grad, is_same_as]
            )
    content = json.dumps(
        [facts, relevant_hyperparams(hyperparams, is_for_stacks=is_for_stacks)], sort_keys=True, default=repr
    )
    return hashlib.sha256(content.encode()).hexdigest()


def relevant_hyperparams(hyperparams: Mapping[str, Any], *, is_for_stacks: bool = False) -> dict[str, Any]:
    """Return the hyperparameters that time or memory may depend on, or a stack; see `signature_of`."""
    harmless = _OF_OPTIMIZERS if is_for_stacks else HARMLESS
    return {
        name: value
        for name, value in hyperparams.items()
        if not any(fnmatch(name.lower(), pattern.lower()) for pattern in harmless)
    }


def _modules(module: nn.Module, *, is_for_stacks: bool) -> Iterator[list[str]]:
    for name, each in module.named_modules():
        # The dropout rate, the only extra of a Dropout, does not matter.
        is_dropout = isinstance(each, nn.modules.dropout._DropoutNd)
        detail = "" if is_dropout and not is_for_stacks else each.extra_repr()
        yield [name, type(each).__qualname__, detail]


def display_name(modules: Collection[nn.Module]) -> str:
    """Return a model's name for people: the classes of its modules."""
    return " + ".join(type(module).__name__ for module in modules)
