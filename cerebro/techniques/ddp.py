"""Data parallelism: each rank has the whole model and reads its share of each batch; gradients are averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from cerebro.errors import NotApplicableError
from cerebro.spec import DataLoader, Hints
from cerebro.techniques.base import Group, Memory, ModelFacts, Params, Place, Share, Technique
from cerebro.techniques.checkpointing import CHECKPOINTING, not_repeated, recompute_if_asked
from cerebro.techniques.single import state_bytes, too_large

if TYPE_CHECKING:
    from torch import nn

_UNUSED = "unused_parameters"
_UNFINISHED = "Expected to have finished reduction in the prior iteration"
"""What DistributedDataParallel says where a parameter got no gradient."""


class Ddp(Technique):
    """`torch.nn.parallel.DistributedDataParallel` behind the user's modules, which stay what they are."""

    name = "ddp"
    least = 2
    parameters: ClassVar = MappingProxyType({_UNUSED: (False, True), CHECKPOINTING: (False, True)})

    def variants(self, facts: ModelFacts, place: Place) -> tuple[Params, ...]:
        """To look for parameters that a batch does not use takes time; to compute activations once more takes more, and
        spares memory."""
        return ({}, {_UNUSED: True}, *([{CHECKPOINTING: True}] if facts.layers else []))

    def is_applicable(self, facts: ModelFacts, place: Place, params: Params) -> str:
        """It needs several devices, a row for each, and the model's state to fit each."""
        return (
            not_shared(facts, place)
            or not_repeated(facts, params)
            or too_large(self.memory(facts, place, params), place)
        )

    def memory(self, facts: ModelFacts, place: Place, params: Params) -> Memory:
        """A replica on each device, and a copy of the gradients on their way."""
        return Memory(device=state_bytes(facts) + facts.trainable_bytes)

    def share(self, group: Group) -> Share:
        """A rank reads its part of the rows."""
        return Share(index=group.rank, of=group.size)

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        """Have gradients averaged while backward passes compute them."""
        recompute_if_asked(modules, params, hints)
        require_apart(modules)
        for module in modules:
            synchronize_norms(module, group)
            if any(parameter.requires_grad for parameter in module.parameters()):
                _put_behind(module, group, params, hints)

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        """Say what an unused parameter needs."""
        try:
            yield
        except RuntimeError as error:
            if params.get(_UNUSED) or _UNFINISHED not in str(error):
                raise
            reason = f"a batch left some parameters without a gradient: Ddp({_UNUSED}=True) looks for them"
            raise NotApplicableError(reason) from error


def not_shared(facts: ModelFacts, place: Place) -> str:
    """Why the rows of a batch cannot be shared between the devices; empty if they can."""
    if place.size < 2:
        return "it shares the rows of a batch between devices, and there is one device"
    if facts.batch_size < place.size:
        return f"batch_size is {facts.batch_size}, less than the {place.size} devices: each must have a row"
    if facts.coupled and place.kind == "cpu":
        return (
            f"{facts.coupled} computes over all rows of a batch, and torch cannot do that over several processes "
            "on a CPU"
        )
    return ""


def require_apart(modules: list[nn.Module]) -> None:
    """Raise NotApplicableError where two of the modules that a model is made of share a parameter."""
    seen: dict[int, int] = {}
    for number, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            if seen.setdefault(id(parameter), number) != number:
                raise NotApplicableError(
                    f"{name} of module {number} is also in module {seen[id(parameter)]} of those that create_models() "
                    "returned: return one module with both"
                )


def synchronize_norms(module: nn.Module, group: Group) -> None:
    """Have batch normalisation look at the rows of all ranks.

    Raises:
        NotApplicableError: on a CPU, where torch cannot.
    """
    from torch import nn

    from cerebro.techniques.facts import coupled

    name = coupled(module)
    if not name or group.size == 1:
        return
    if not group.device.startswith("cuda"):
        raise NotApplicableError(
            f"{name} computes over all rows of a batch, and torch cannot do that over several processes on a CPU"
        )
    converted: object = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    if converted is not module:
        raise NotApplicableError(f"the module itself is a {type(module).__name__}: put it into another one")


def _put_behind(module: nn.Module, group: Group, params: Params, hints: Hints) -> None:
    """Have calls of the module pass through a `DistributedDataParallel` of it.

    Its class becomes a subclass of what it was, so attributes, names and `state_dict` stay. Not a wrapper: user code
    asks a module for its attributes and its parameters' names.
    """
    import torch
    from torch.nn.parallel import DistributedDataParallel

    original = type(module)
    devices = [torch.device(group.device)] if group.device.startswith("cuda") else None
    replica = DistributedDataParallel(
        module,
        device_ids=devices,
        forward_sync_buffers=False,
        find_unused_parameters=params.get(_UNUSED, False),
    )
    passage = _Passage()

    def through(name: str) -> Callable[..., Any]:
        plain = getattr(original, name)

        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self is not module:  # a copy of it
                return plain(self, *args, **kwargs)
            if passage.is_entered:
                asked, passage.asked = passage.asked or name, ""
                return getattr(original, asked)(self, *args, **kwargs)
            passage.is_entered, passage.asked = True, name
            try:
                return replica(*args, **kwargs)
            finally:
                passage.is_entered, passage.asked = False, ""

        return call

    names = ("__call__", *(name for name in hints.methods if hasattr(original, name)))
    calls: dict[str, Any] = {name: through(name) for name in names}
    calls |= {"__module__": original.__module__, "__qualname__": original.__qualname__}
    module.__class__ = type(original.__name__, (original,), calls)


@dataclass
class _Passage:
    """Whether a call is on its way through the replica, and which method it asked for: the replica calls the module
    itself, whatever that was."""

    is_entered: bool = False
    asked: str = ""
