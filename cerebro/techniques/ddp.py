"""Data parallelism: each rank has the full model and reads its share of each batch; gradients are averaged.

Torch's `DistributedDataParallel` does the work; this module makes it fit user code: modules keep their class, and batch
normalisation uses the rows of all ranks (GPUs only). `fsdp.py` shares the checks for divided batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from cerebro.errors import NotApplicableError
from cerebro.spec import DataLoader, Hints
from cerebro.techniques.base import DeviceSet, Group, Memory, ModelFacts, Params, Share, Technique
from cerebro.techniques.checkpointing import CHECKPOINTING, not_repeated, recompute_if_asked
from cerebro.techniques.single import state_bytes, too_large

if TYPE_CHECKING:
    from torch import nn

_UNUSED = "unused_parameters"
_UNFINISHED = "Expected to have finished reduction in the prior iteration"
"""Error text of DistributedDataParallel for a parameter without a gradient."""


class Ddp(Technique):
    """Data parallelism by `torch.nn.parallel.DistributedDataParallel`; modules keep their class interface."""

    name = "ddp"
    least = 2
    parameters: ClassVar = MappingProxyType({_UNUSED: (False, True), CHECKPOINTING: (False, True)})

    def variants(self, facts: ModelFacts, devices: DeviceSet) -> tuple[Params, ...]:
        """Add the search for unused parameters (slower), then recomputed activations (slower still, less memory)."""
        return ({}, {_UNUSED: True}, *([{CHECKPOINTING: True}] if facts.layers else []))

    def is_applicable(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> str:
        """Require several devices, a row for each and room for the state on each."""
        return (
            not_shared(facts, devices)
            or not_repeated(facts, params)
            or too_large(self.memory(facts, devices, params), devices)
        )

    def memory(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> Memory:
        """Return a replica per device, with a copy of the gradients for the reduction."""
        return Memory(device=state_bytes(facts) + facts.trainable_bytes)

    def share(self, group: Group) -> Share:
        """Return an equal part of the rows for each rank."""
        return Share(index=group.rank, of=group.size)

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        """Average gradients during backward passes."""
        recompute_if_asked(modules, params, hints)
        require_apart(modules)
        for module in modules:
            synchronize_norms(module, group)
            if any(parameter.requires_grad for parameter in module.parameters()):
                _route_through_ddp(module, group, params, hints)

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        """Explain the error that an unused parameter causes."""
        try:
            yield
        except RuntimeError as error:
            if params.get(_UNUSED) or _UNFINISHED not in str(error):
                raise
            reason = f"a batch left some parameters without a gradient; use Ddp({_UNUSED}=True)"
            raise NotApplicableError(reason) from error


def not_shared(facts: ModelFacts, devices: DeviceSet) -> str:
    """Return why devices cannot share the rows of a batch, or ""."""
    if devices.size < 2:
        return "it shares the rows of a batch between devices, and there is one device"
    if facts.batch_size < devices.size:
        return f"batch_size is {facts.batch_size}, less than the {devices.size} devices: each must have a row"
    if facts.coupled and devices.kind == "cpu":
        return (
            f"{facts.coupled} computes over all rows of a batch, and torch cannot do that over several processes "
            "on a CPU"
        )
    return ""


def require_apart(modules: list[nn.Module]) -> None:
    """Require that no two modules of a model share a parameter.

    Raises:
        NotApplicableError: two modules share one.
    """
    holders: dict[int, int] = {}
    for number, module in enumerate(modules):
        for name, parameter in module.named_parameters():
            if holders.setdefault(id(parameter), number) != number:
                raise NotApplicableError(
                    f"{name} of module {number} is also in module {holders[id(parameter)]}; return one module "
                    "with both from create_models()"
                )


def synchronize_norms(module: nn.Module, group: Group) -> None:
    """Convert batch normalisation so that it uses the rows of all ranks.

    Raises:
        NotApplicableError: on a CPU, because torch supports it on GPUs only.
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


def _route_through_ddp(module: nn.Module, group: Group, params: Params, hints: Hints) -> None:
    """Route calls of the module through a `DistributedDataParallel`.

    The module gets a subclass of its class, so attributes, names and `state_dict` stay. A wrapper would
    not work: user code reads attributes and parameter names of its modules.
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
    current_call = _Call()

    def routed(name: str) -> Callable[..., Any]:
        original_method = getattr(original, name)

        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self is not module:  # a copy of the module
                return original_method(self, *args, **kwargs)
            if current_call.is_entered:
                method, current_call.method = current_call.method or name, ""
                return getattr(original, method)(self, *args, **kwargs)
            current_call.is_entered, current_call.method = True, name
            try:
                return replica(*args, **kwargs)
            finally:
                current_call.is_entered, current_call.method = False, ""

        return call

    names = ("__call__", *(name for name in hints.methods if hasattr(original, name)))
    calls: dict[str, Any] = {name: routed(name) for name in names}
    calls |= {"__module__": original.__module__, "__qualname__": original.__qualname__}
    module.__class__ = type(original.__name__, (original,), calls)


@dataclass
class _Call:
    """State of a call: whether it has entered the replica, and the method that the user called.

    The replica always calls the module itself, so this records the method.
    """

    is_entered: bool = False
    method: str = ""
