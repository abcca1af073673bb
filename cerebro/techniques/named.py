"""Techniques by name: the built-in ones (`KINDS`) and the user's own.

In a child, `model_hopper.rank_setup`, `trial_runner` and `cerebro.worker.training.ranks.repetition` call `resolve` for
a parallel plan. The client only looks up names in `KINDS`. This module decodes no user code: the caller's `opened`
does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cerebro.contract.parallel_plans import ParallelPlan, TechniqueChoice
from cerebro.errors import SpecError
from cerebro.techniques.base import Technique
from cerebro.techniques.checkpointing import Checkpointing
from cerebro.techniques.ddp import Ddp
from cerebro.techniques.fsdp import Fsdp, Offload
from cerebro.techniques.fused import Fused
from cerebro.techniques.pipeline import Pipeline
from cerebro.techniques.single import Single
from cerebro.techniques.tensor import Tensor

KINDS: Mapping[str, type[Technique]] = {
    kind.name: kind for kind in (Single, Checkpointing, Offload, Ddp, Fsdp, Tensor, Pipeline, Fused)
}


def resolve(
    named: str | ParallelPlan | TechniqueChoice, opened: Callable[[str], Any] | None = None
) -> Technique:
    """Return the technique for a name, a choice or a parallel plan.

    Args:
        named: a choice's parameters become the instance's fixed parameters; a plan's parameters are checked, and later
            passed to the methods.
        opened: returns the decoded object for a hash. Only child processes may decode user code.

    Raises:
        SpecError: the name or a parameter is unknown, or the decoded object is not a technique of this name.
    """
    name = (
        named
        if isinstance(named, str)
        else named.technique
        if isinstance(named, ParallelPlan)
        else named.name
    )
    code = None if isinstance(named, str) else named.code
    fixed = named.params if isinstance(named, TechniqueChoice) else {}
    if code is None:
        if name not in KINDS:
            raise SpecError(f"there is no technique {name!r}; use {', '.join(KINDS)} or your own class")
        kind = KINDS[name]
    else:
        if opened is None:
            raise SpecError(f"technique {name!r} is user code, which is not opened here")
        decoded: object = opened(code)
        candidate: object = type(decoded) if isinstance(decoded, Technique) else decoded
        if not (isinstance(candidate, type) and issubclass(candidate, Technique) and candidate.name == name):
            raise SpecError(
                f"technique {name!r} is {decoded!r}, expected a subclass of Technique with this name"
            )
        kind = candidate
    if isinstance(named, ParallelPlan):
        kind.checked(named.params)
    return kind(**fixed)
