"""Techniques by their names: the built-in ones, and a user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cerebro.contract.parallel_plans import ParallelPlan, TechniqueChoice
from cerebro.errors import SpecError
from cerebro.techniques.base import Technique
from cerebro.techniques.checkpointing import Checkpointing
from cerebro.techniques.ddp import Ddp
from cerebro.techniques.fsdp import Fsdp, Offload
from cerebro.techniques.pipeline import Pipeline
from cerebro.techniques.single import Single
from cerebro.techniques.tensor import Tensor

KINDS: Mapping[str, type[Technique]] = {
    kind.name: kind for kind in (Single, Checkpointing, Offload, Ddp, Fsdp, Tensor, Pipeline)
}


def resolve(
    named: str | ParallelPlan | TechniqueChoice, opened: Callable[[str], Any] | None = None
) -> Technique:
    """The technique that a name, a choice or a way stands for.

    Args:
        opened: gives what was encoded under this hash, where user code may be opened: in children only.

    Returns:
        An instance. Of a choice with the parameters that the user has fixed; those of a way are given to its methods.

    Raises:
        SpecError: there is none of this name, it has no such parameter, or what was opened is no technique.
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
            raise SpecError(f"there is no technique {name!r}: there are {', '.join(KINDS)}, or give your own")
        kind = KINDS[name]
    else:
        if opened is None:
            raise SpecError(f"technique {name!r} is user code, which is not opened here")
        given: object = opened(code)
        found: object = type(given) if isinstance(given, Technique) else given
        if not (isinstance(found, type) and issubclass(found, Technique) and found.name == name):
            raise SpecError(
                f"what was sent as technique {name!r} is {given!r}, expected a Technique of this name"
            )
        kind = found
    if isinstance(named, ParallelPlan):
        kind.checked(named.params)
    return kind(**fixed)
