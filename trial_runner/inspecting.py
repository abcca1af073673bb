"""Which models of a run are alike, and which ways each group of them could be trained by. Trains nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from cerebro.contract.parallel_plans import TechniqueChoice
from cerebro.contract.records import Hyperparameters
from cerebro.contract.tasks import InspectTask
from cerebro.contract.trials import Inspection, KnownParallelPlan, ModelGroup
from cerebro.runtime.tracebacks import line_of
from cerebro.spec import SubEpochSpec
from cerebro.techniques import ModelFacts
from cerebro.techniques.named import KINDS, resolve
from cerebro.worker.training.facts import facts_of, hints_of, made_on_meta, mattering, named
from trial_runner.known_parallel_plans import Offer, known_parallel_plans

log = logging.getLogger(__name__)

_PATIENCE_S = 20.0
"""Making models may take so long; from then on those whose hyper-parameters differ in nothing that matters are taken to
be alike without a look."""


@dataclass(kw_only=True)
class _Found:
    """Models that are alike, as they are found."""

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
    """Group the models of a run, and tell of each group and way whether a trial of it is worth its time.

    A model that cannot be made is in a group of its own kind, with the reason: sub-epochs will show it, too.

    Args:
        opened: gives a user's own technique by its hash.
        keyed_by: what outcomes of trials depend on, beside what is found here; `None`: they are not to be kept.
    """
    groups = grouped(spec, body.models, seed=body.seed)
    offers = offered(body.techniques, opened)
    return Inspection(
        groups=tuple(
            _group(
                f"g{number:02}",
                each,
                known_parallel_plans(each.facts, offers, body.places, gpus=body.gpus, keyed_by=keyed_by)
                if each.facts
                else (),
            )
            for number, each in enumerate(groups)
        ),
        places=body.places,
        torch=torch.__version__,
    )


def offered(
    techniques: Sequence[TechniqueChoice] | None, opened: Callable[[str], object] | None = None
) -> list[Offer]:
    """The techniques that a run may use; all that are built in if none are named."""
    built_in = (TechniqueChoice(name=kind.name, version=kind.version) for kind in KINDS.values())
    choices = built_in if techniques is None else techniques
    return [Offer(resolve(choice, opened), choice) for choice in choices]


def grouped(spec: SubEpochSpec, models: Mapping[str, Hyperparameters], *, seed: int) -> list[_Found]:
    """Models that are alike, in the order of their first ones."""
    found: dict[str, _Found] = {}
    by_hyperparams: dict[str, _Found] = {}
    began = time.monotonic()
    for model, hyperparams in models.items():
        alike = repr(sorted(mattering(hyperparams).items()))
        if alike in by_hyperparams and time.monotonic() - began > _PATIENCE_S:
            by_hyperparams[alike].models.append(model)
            continue
        one = _look(spec, hyperparams, seed=seed, model=model)
        group = found.setdefault(one.facts.signature if one.facts else one.problem, one)
        group.models.append(model)
        by_hyperparams.setdefault(alike, group)
    return list(found.values())


def _look(spec: SubEpochSpec, hyperparams: Hyperparameters, *, seed: int, model: str) -> _Found:
    try:
        trainee = made_on_meta(spec, hyperparams, seed=seed, model=model)
        hints = hints_of(spec, trainee.modules, hyperparams)
        facts = facts_of(trainee.modules, hyperparams, hints=hints)
    except Exception as error:  # noqa: BLE001 - user code: what it raises is told with its models
        log.info("%s cannot be made: %s", model, line_of(error))
        return _Found(problem=line_of(error))
    return _Found(name=named(trainee.modules), facts=facts)


def _group(identity: str, found: _Found, parallel_plans: tuple[KnownParallelPlan, ...]) -> ModelGroup:
    if found.facts is None:
        return ModelGroup(id=identity, models=tuple(found.models), problem=found.problem)
    facts = found.facts
    return ModelGroup(
        id=identity,
        name=found.name,
        models=tuple(found.models),
        signature=facts.signature,
        param_bytes=facts.param_bytes,
        trainable_bytes=facts.trainable_bytes,
        buffer_bytes=facts.buffer_bytes,
        block_bytes=facts.block_bytes,
        batch_size=facts.batch_size,
        layers=dict(facts.layers),
        parallel_plans=parallel_plans,
    )
