"""Correctness of trials: about gradients, and about parallel plans with too little memory.

- Trials of random wrong and right techniques and losses, drawn like in the tests.
- Models whose memory is measured during training by a plan, and devices of any memory: is a fitting plan dropped?
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.figure import Figure
from cerebro.contract.parallel_plans import ParallelPlan, TechniqueChoice
from cerebro.contract.trials import (
    AvailableDevices,
    DeviceKind,
    Inspection,
    KnownParallelPlan,
    ModelGroup,
    TrialOutcome,
)
from cerebro.data.manifests import Source
from cerebro.data.shards import write_rows
from cerebro.spec import SubEpochSpec
from cerebro.techniques import Group, resolve
from cerebro.techniques.ranks import Alone
from cerebro.worker.child.device_memory import DeviceMemory
from cerebro.worker.training.facts import create_on_meta, facts_of
from controller.sources.trials.memory import FULL, may_fit
from controller.sources.trials.situation import Situation
from tests.techniques.ranks import Ranks, nothing
from tests.trial_runner.draws import KINDS, is_ruled_out, right, wrong
from tests.trial_runner.sub_epochs import task_of, tried_by
from trial_runner.known_parallel_plans import Offer, known_parallel_plans

_WRONG, _RIGHT, _SIZED = 100, 100, 50
_LIMITS = 20
"""Number of device memories for each model."""
_DEVICE = DeviceKind(kind="cpu", name="1 core")
_SINGLE, _DDP, _FSDP = (
    ParallelPlan(technique="single"),
    ParallelPlan(technique="ddp", size=2),
    ParallelPlan(technique="fsdp", size=2),
)


def figures() -> list[Figure]:
    """Measure gradients, then memory."""
    return [*_of_gradients(_gradients()), _of_memory(*_pruning())]


# --- gradients -------------------------------------------------------------------------------------------


class Drawn(NamedTuple):
    """Results of the draws."""

    missed: list[str]
    accused: list[str]
    unverified: list[str]


def _gradients() -> Drawn:
    found = Drawn([], [], [])
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder, Ranks() as ranks:
        partition, root = Path(folder, "partition"), Path(folder, "root")
        root.mkdir()
        rows = [(np.full(3, n, np.float32), n) for n in range(46)]
        write_rows(partition, rows, Source(fingerprint="trials", metadata="xxh3_64:0"))
        ranks.run(3, nothing)
        for number in range(_WRONG):
            draw = wrong(KINDS[number % len(KINDS)], Random(1000 + number))
            is_caught, _ = is_ruled_out(draw, ranks, partition, root)
            found.missed.extend([] if is_caught else [draw.label])
        for number in range(_RIGHT):
            draw = right(Random(1000 + number))
            is_caught, outcome = is_ruled_out(draw, ranks, partition, root)
            found.accused.extend([draw.label] if is_caught else [])
            found.unverified.extend([] if is_caught or outcome.is_verified else [draw.label])
    return found


def _of_gradients(found: Drawn) -> list[Figure]:
    return [
        Figure(
            what=f"trials: wrong techniques and losses that the gradient check misses, of {_WRONG}",
            measured=f"{len(found.missed)} missed, of {len(KINDS)} kinds",
            ratio=len(found.missed),
            bar=0,
            sense="at most",
            notes=tuple(found.missed),
        ),
        Figure(
            what=f"trials: right techniques that it rules out, or does not verify, of {_RIGHT}",
            measured=f"{len(found.accused)} ruled out, {len(found.unverified)} not verified",
            ratio=len(found.accused) + len(found.unverified),
            bar=0,
            sense="at most",
            notes=(*found.accused, *found.unverified),
        ),
    ]


# --- memory ----------------------------------------------------------------------------------------------


class Stacked(SubEpochSpec):
    """Equal layers of some width, and an optimizer by name."""

    def __init__(self, width: int, depth: int, optimizer: str) -> None:
        self.width, self.depth, self.optimizer = width, depth, optimizer

    def create_models(self, hyperparams: Mapping[str, Any]) -> list[Any]:
        """See `SubEpochSpec`."""
        return [nn.Sequential(*(nn.Linear(self.width, self.width) for _ in range(self.depth)))]

    def train(
        self, models: Any, checkpoint: Any, dataloader: Any, hyperparams: Mapping[str, Any]
    ) -> dict[str, float]:
        """See `SubEpochSpec`."""
        (network,) = models
        optimizer = getattr(torch.optim, self.optimizer)(network.parameters(), lr=0.001)
        checkpoint.track(optimizer=optimizer)
        for _, outputs in dataloader:
            rows = outputs.reshape(-1, 1) * torch.linspace(0.0, 1.0, self.width)
            loss = network(rows.sin()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return {"loss": 0.0}


def _pruning() -> tuple[int, int]:
    """Return the number of dropped plans that fit, and of plans that fit, over models, plans and limits."""
    pruned = fitting = 0
    with tempfile.TemporaryDirectory(prefix="cerebro-bench-") as folder, Ranks() as ranks:
        partition, root = Path(folder, "partition"), Path(folder, "root")
        root.mkdir()
        rows = [(np.full(3, n, np.float32), n) for n in range(46)]
        write_rows(partition, rows, Source(fingerprint="trials", metadata="xxh3_64:0"))
        for number in range(_SIZED):
            random = Random(number)
            spec = Stacked(
                random.randint(300, 800), random.randint(2, 4), random.choice(["SGD", "Adam", "AdamW"])
            )
            batch_size = random.choice([4, 8, 16])
            outcomes = {
                parallel_plan.technique: ranks.run(
                    parallel_plan.ranks, _sized, parallel_plan, spec, batch_size, folder
                )[0]
                for parallel_plan in (_SINGLE, _DDP, _FSDP)
            }
            for limit in _limits(outcomes, random):
                left_out, fit = _left_out(spec, batch_size, outcomes, limit, random)
                pruned, fitting = pruned + left_out, fitting + fit
    return pruned, fitting


def _sized(
    group: Group | None, parallel_plan: ParallelPlan, spec: SubEpochSpec, batch_size: int, folder: str
) -> TrialOutcome:
    """Run a trial with counted memory, as on a device that is a share of cores."""
    body = task_of(parallel_plan, batch_size)
    ranks = Alone(("cpu",)) if parallel_plan.is_single else group
    assert ranks is not None
    partition, root = Path(folder, "partition"), Path(folder, "root")
    return tried_by(
        resolve(parallel_plan), ranks, spec, body, partition, root, device_memory=DeviceMemory(1 << 50)
    )


def _limits(outcomes: Mapping[str, TrialOutcome], random: Random) -> list[int]:
    """Return memories around the plans' peaks."""
    taken = [outcome.device_bytes for outcome in outcomes.values()]
    return [int(random.uniform(0.5 * min(taken), 1.5 * max(taken))) for _ in range(_LIMITS)]


def _left_out(
    spec: SubEpochSpec, batch_size: int, outcomes: Mapping[str, TrialOutcome], limit: int, random: Random
) -> tuple[int, int]:
    """Return the number of dropped plans that fit, and of plans that fit, for a model at one memory.

    Some plans were tried before the others.
    """
    hyperparams = {"batch_size": batch_size}
    facts = facts_of(create_on_meta(spec, hyperparams, seed=0, model="m00").modules, hyperparams)
    place = AvailableDevices(device=_DEVICE.model_copy(update={"memory_bytes": limit}), max_devices=2)
    offers = [Offer(resolve(name), TechniqueChoice(name=name)) for name in outcomes]
    plain = [
        known for known in known_parallel_plans(facts, offers, [place]) if not known.parallel_plan.params
    ]
    fits = {known.id for known in plain if _taken(known, outcomes) <= FULL * limit}
    group = ModelGroup(
        id="g00",
        models=("m00",),
        param_bytes=facts.param_bytes,
        buffer_bytes=facts.buffer_bytes,
        parallel_plans=tuple(plain),
    )
    lacking = TrialOutcome(reason="out of memory", cause="device_memory")
    told = {
        ("g00", known.id): outcomes[known.parallel_plan.technique] if known.id in fits else lacking
        for known in plain
    }
    situation = Situation(
        inspection=Inspection(groups=(group,), device_kinds=(place,)),
        remaining_batches={"m00": 1.0},
        outcomes={key: outcome for key, outcome in told.items() if random.random() < 0.5},
        devices={0: [2]},
    )
    left_out = [
        known
        for known in plain
        if known.id in fits and (known.reason or not may_fit(situation, group, known))
    ]
    return len(left_out), len(fits)


def _taken(known: KnownParallelPlan, outcomes: Mapping[str, TrialOutcome]) -> int:
    return outcomes[known.parallel_plan.technique].device_bytes


def _of_memory(pruned: int, fitting: int) -> Figure:
    return Figure(
        what=f"trials: ways left out for their memory though they fit, of {_SIZED} models by 3 ways on devices of "
        f"{_LIMITS} sizes",
        measured=f"{pruned} of {fitting} that fit",
        ratio=pruned,
        bar=0,
        sense="at most",
        notes=(f"a way fits where what its training took is at most {FULL:.0%} of the device",),
    )
