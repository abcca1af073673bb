"""Random trials of wrong techniques, wrong losses, and right techniques."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from cerebro.contract.parallel_plans import ParallelPlan
from cerebro.errors import NotApplicableError
from cerebro.spec import SubEpochSpec
from cerebro.techniques import Technique
from tests.techniques.cases import ROWS, Case
from tests.techniques.ranks import Ranks
from tests.trial_runner.sub_epochs import TrialRequest, Wrong, spec_of, tried
from tests.trial_runner.wrong import WRONG, Blind, OtherDropout, OtherDropoutOfParts

LOSSES = {
    "batch normalisation over a share": ("norm", Blind),
    "a sum that is said to be a mean": ("sum", None),
    "a loss of pairs of rows": ("contrastive", None),
    "a mean over tokens without terms": ("tokens", None),
    "a schedule by the rows of a rank": ("schedule", None),
}
"""Losses whose declared reduction is wrong, or that no technique can compute on shares of the rows."""

KINDS = (*WRONG, *LOSSES)


class Draw(NamedTuple):
    """A random trial.

    Attributes:
        technique: replaces the parallel plan's technique.
        told: description for error messages.
    """

    spec: SubEpochSpec
    parallel_plan: ParallelPlan
    batch_size: int
    technique: type[Technique] | None
    label: str


def wrong(kind: str, random: Random) -> Draw:
    """Draw a trial that must rule its parallel plan out."""
    size = random.choice([2, 3])
    # With equal shares the plain mean of the ranks' gradients would be right.
    batch_size = random.choice([n for n in range(size, 13) if n % size or ROWS % n])
    if kind in LOSSES:
        loss, technique = LOSSES[kind]
        name = "ddp" if technique is not None else random.choice(["ddp", "fsdp"])
        batch_size = max(batch_size, 3 * size)  # batch normalisation needs two rows on each rank
        return Draw(
            Wrong(loss), _parallel_plan(name, size), batch_size, technique, f"{kind} by {name}-{size}"
        )
    found = random.choice(WRONG[kind])
    case = _case(random, found.name, batch_size)
    return Draw(
        spec_of(case),
        _parallel_plan(found.name, size),
        batch_size,
        found,
        f"{kind} by {found.__name__}-{size}: {case}",
    )


def right(random: Random) -> Draw:
    """Draw a trial that must not rule its parallel plan out."""
    name = random.choice(["ddp", "fsdp", "checkpointing"])
    size = 1 if name == "checkpointing" else random.choice([2, 3])
    batch_size = random.randint(max(size, 2), 12)
    other = {"ddp": OtherDropout, "fsdp": OtherDropoutOfParts}.get(name)
    technique = random.choice([None, other])
    if name != "checkpointing" and random.random() < 0.2:
        return Draw(
            Wrong("shift"), _parallel_plan(name, size), batch_size, technique, f"{name}-{size}: shift"
        )
    case = _case(random, name, batch_size)
    return Draw(spec_of(case), _parallel_plan(name, size), batch_size, technique, f"{name}-{size}: {case}")


def is_ruled_out(draw: Draw, ranks: Ranks, partition: Path, root: Path) -> tuple[bool, Any]:
    """Run the trial; return True if it rules the plan out, with its outcome or error."""
    trial_request = TrialRequest(
        spec=draw.spec,
        parallel_plan=draw.parallel_plan,
        partition=partition,
        root=root,
        batch_size=draw.batch_size,
        technique=draw.technique,
    )
    try:
        outcome = (
            ranks.run(draw.parallel_plan.size, tried, trial_request)[0]
            if draw.parallel_plan.ranks > 1
            else tried(None, trial_request)
        )
    except NotApplicableError as error:
        return True, error
    return outcome.cause == "gradient", outcome


def _case(random: Random, technique: str, batch_size: int) -> Case:
    """Draw a small training configuration."""
    model = random.choice(["mlp", "cnn", "gpt"])
    return Case(
        model=model,
        depth=random.choice([1, 2, 3]) if technique == "ddp" else 2,
        optimizer=random.choice(["SGD", "Adam", "AdamW"]),
        dtype=random.choice(["float32", "float64"]),
        batch_size=batch_size,
        accumulate=random.choice([1, 2]),
        clip=random.choice([0.0, 0.5]),
        schedule=random.choice([False, True]),
        two=random.choice([False, True]) if model != "gpt" else False,
        average=random.choice([False, True]),
        dropout=random.choice([0.0, 0.2]) if model != "gpt" else 0.0,
    )


def _parallel_plan(technique: str, size: int) -> ParallelPlan:
    processes = "one" if technique == "checkpointing" else "ranks"
    return ParallelPlan.model_validate({"technique": technique, "size": size, "processes": processes})
