"""Groups of similar models in a run, and the possible parallel plans of each group.

`trial_runner.handler` calls `inspect` for an `inspect` task. Models are built on torch's meta device, so they take no
memory for weights, and nothing is trained or measured. Trials then measure plans once per group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from cerebro.contract.parallel_plans import TechniqueChoice
from cerebro.contract.records import Hyperparameters
from cerebro.contract.tasks.bodies import InspectTask
from cerebro.contract.trials import Inspection, KnownParallelPlan, ModelGroup
from cerebro.runtime.tracebacks import line_of
from cerebro.spec import SubEpochSpec
from cerebro.techniques import Fused, ModelFacts
from cerebro.techniques.named import KINDS, resolve
from cerebro.worker.training.facts import (
    create_on_meta,
    display_name,
    facts_of,
    hints_of,
    relevant_hyperparams,
)
from cerebro.worker.training.fused.structure import not_stackable
from trial_runner.known_parallel_plans import Offer, known_parallel_plans

log = logging.getLogger(__name__)

_PATIENCE_S = 20.0
"""Seconds for building models; after them, models with equal relevant hyperparameters count as similar unseen."""


@dataclass(kw_only=True)
class _Group:
    name: str = ""
    facts: ModelFacts | None = None
    problem: str = ""
    models: list[str] = field(default_factory=list)


def inspect(
    spec: SubEpochSpec,
    body: InspectTask,
    *,
    opened: Callable[[str], object] | None = None,
    keyed_by: Mapping[str, str] | None = None,
) -> Inspection:
    """Group the models of a run and list the parallel plans of each group.

    A model that cannot be built goes into a group with the reason. Its sub-epochs will report the same error.

    Args:
        spec: the user's spec.
        body: the task.
        opened: returns a user's technique by its hash.
        keyed_by: facts that decide the outcome of a trial, other than the model's; `None` disables the cache.
    """
    offers = offered(body.techniques, opened)
    # Groups for stacks are smaller, so other techniques would need more trials.
    is_for_stacks = body.techniques is not None and any(each.technique.name == Fused.name for each in offers)
    groups = grouped(spec, body.models, seed=body.seed, is_for_stacks=is_for_stacks)
    return Inspection(
        groups=tuple(
            _model_group(
                f"g{number:02}",
                each,
                known_parallel_plans(each.facts, offers, body.device_kinds, gpus=body.gpus, keyed_by=keyed_by)
                if each.facts
                else (),
            )
            for number, each in enumerate(groups)
        ),
        device_kinds=body.device_kinds,
        torch=torch.__version__,
    )


def offered(
    techniques: Sequence[TechniqueChoice] | None, opened: Callable[[str], object] | None = None
) -> list[Offer]:
    """Return the techniques that a run may use; `None` selects all built-in ones."""
    built_in = (TechniqueChoice(name=kind.name, version=kind.version) for kind in KINDS.values())
    choices = built_in if techniques is None else techniques
    return [Offer(resolve(choice, opened), choice) for choice in choices]


def grouped(
    spec: SubEpochSpec,
    models: Mapping[str, Hyperparameters],
    *,
    seed: int,
    is_for_stacks: bool = False,
) -> list[_Group]:
    """Group similar models, in the order of their first members.

    Args:
        is_for_stacks: see `cerebro.worker.training.facts.signature_of`.
    """
    groups: dict[str, _Group] = {}
    by_hyperparams: dict[str, _Group] = {}
    began = time.monotonic()
    for model, hyperparams in models.items():
        alike = repr(sorted(relevant_hyperparams(hyperparams, is_for_stacks=is_for_stacks).items()))
        if alike in by_hyperparams and time.monotonic() - began > _PATIENCE_S:
            by_hyperparams[alike].models.append(model)
            continue
        one = _inspect_model(spec, hyperparams, seed=seed, model=model, is_for_stacks=is_for_stacks)
        group = groups.setdefault(one.facts.signature if one.facts else one.problem, one)
        group.models.append(model)
        by_hyperparams.setdefault(alike, group)
    for group in groups.values():
        if group.facts is not None:
            group.facts = replace(group.facts, alike_models=len(group.models))
    return list(groups.values())


def _inspect_model(
    spec: SubEpochSpec, hyperparams: Hyperparameters, *, seed: int, model: str, is_for_stacks: bool
) -> _Group:
    try:
        trainee = create_on_meta(spec, hyperparams, seed=seed, model=model)
        hints = hints_of(spec, trainee.modules, hyperparams)
        facts = facts_of(
            trainee.modules,
            hyperparams,
            hints=hints,
            not_stackable=not_stackable(spec),
            is_for_stacks=is_for_stacks,
        )
    except Exception as error:  # noqa: BLE001 - user code may raise anything; the group has the reason
        log.info("model %s cannot be built: %s", model, line_of(error))
        return _Group(problem=line_of(error))
    return _Group(name=display_name(trainee.modules), facts=facts)


def _model_group(identity: str, group: _Group, parallel_plans: tuple[KnownParallelPlan, ...]) -> ModelGroup:
    if group.facts is None:
        return ModelGroup(id=identity, models=tuple(group.models), problem=group.problem)
    facts = group.facts
    return ModelGroup(
        id=identity,
        name=group.name,
        models=tuple(group.models),
        signature=facts.signature,
        param_bytes=facts.param_bytes,
        trainable_bytes=facts.trainable_bytes,
        buffer_bytes=facts.buffer_bytes,
        block_bytes=facts.block_bytes,
        batch_size=facts.batch_size,
        layers=dict(facts.layers),
        parallel_plans=parallel_plans,
    )
