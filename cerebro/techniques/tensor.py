"""Tensor parallelism: the matrices of a layer are split between ranks; every rank reads all rows.

It needs one module and a plan of the layers to split, from `Hints` or a Hugging Face model, and splits only `Linear`
and `Embedding`. Other parameters are equal on all ranks. Parameters become DTensors in place, under the same names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from cerebro.errors import NotApplicableError
from cerebro.spec import DataLoader, Hints
from cerebro.techniques.base import DeviceSet, Group, Memory, ModelFacts, Params, Technique
from cerebro.techniques.checkpointing import CHECKPOINTING, not_repeated, recompute_if_asked
from cerebro.techniques.single import not_one_module, too_large

if TYPE_CHECKING:
    from torch import nn

_NO_PLAN = "there is no tensor plan; state how to split which modules in Hints(tensor_plan=...)"


class Tensor(Technique):
    """Tensor parallelism by `parallelize_module`, with the plan of the user or of a Hugging Face model."""

    name = "tensor"
    least = 2
    parameters: ClassVar = MappingProxyType({CHECKPOINTING: (False, True)})

    def variants(self, facts: ModelFacts, devices: DeviceSet) -> tuple[Params, ...]:
        """Add recomputed activations (slower, less memory)."""
        return ({}, {CHECKPOINTING: True}) if facts.layers else ({},)

    def is_applicable(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> str:
        """Require a plan for one module, with sizes that the number of devices divides."""
        if devices.size < 2:
            return "it splits matrices between devices, and there is one device"
        if reason := not_one_module(facts.num_modules):
            return reason
        if not facts.splits:
            return _NO_PLAN
        for size in facts.splits:
            if size % devices.size:
                return f"{size} columns or rows of a matrix cannot be divided between {devices.size} devices"
        return not_repeated(facts, params) or too_large(self.memory(facts, devices, params), devices)

    def memory(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> Memory:
        """Return an equal part of the state, which is a lower bound."""
        state = facts.param_bytes + facts.trainable_bytes + (facts.optimizer_bytes or 0)
        return Memory(device=-(-state // devices.size) + facts.buffer_bytes)

    def made_on(self, group: Group, params: Params) -> str:
        """Return the host, because the full model may not fit a device."""
        return "cpu"

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        """Split the planned matrices; other parameters become replicated DTensors."""
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        from cerebro.techniques.facts import only_trained, planned

        module = only_trained(modules)
        try:
            plan = planned(module, hints)
        except ValueError as error:
            raise NotApplicableError(str(error)) from error
        if not plan:
            raise NotApplicableError(_NO_PLAN)
        for name, _, _, size in plan:
            if size % group.size:
                raise NotApplicableError(
                    f"{size} columns or rows of {name} cannot be divided between {group.size} devices"
                )
        recompute_if_asked(modules, params, hints)
        _require_untied(module, {id(part) for _, part, _, _ in plan})
        styles: dict[str, Any] = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
        parallelize_module(module, group.mesh, {name: styles[style]() for name, _, style, _ in plan})
        _replicate(module, group)
        for each in modules:
            each.to(group.device)

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        """Treat plain tensors in operations with DTensors as replicated."""
        from torch.distributed.tensor.experimental import implicit_replication

        with implicit_replication():
            yield


def _require_untied(module: nn.Module, split: set[int]) -> None:
    """Require that no split module shares a parameter with another module.

    Raises:
        NotApplicableError: a split module shares one.
    """
    holders: dict[int, list[tuple[str, bool]]] = {}
    for name, part in module.named_modules():
        for local_name, parameter in part.named_parameters(recurse=False):
            full = f"{name}.{local_name}" if name else local_name
            holders.setdefault(id(parameter), []).append((full, id(part) in split))
    for holding in holders.values():
        if len(holding) > 1 and any(is_split for _, is_split in holding):
            raise NotApplicableError(
                f"{' and '.join(name for name, _ in holding)} are one parameter, which cannot be split for one alone"
            )


def _replicate(module: nn.Module, group: Group) -> None:
    """Turn parameters that are not split into replicated DTensors, so that an optimizer can compute with all.

    Only modules without children are changed; other modules may use their parameters in custom code.
    """
    from torch import nn
    from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

    placements = [Replicate()]
    replicated: dict[int, nn.Parameter] = {}

    def enter(part: nn.Module, args: tuple[Any, ...]) -> Any:
        return tuple(_to_dtensor(one, group) for one in args)

    def leave(part: nn.Module, args: Any, result: Any) -> Any:
        from torch.utils import _pytree

        return _pytree.tree_map(lambda one: one.to_local() if isinstance(one, DTensor) else one, result)

    for part in module.modules():
        own_parameters = dict(part.named_parameters(recurse=False))
        if (
            not own_parameters
            or any(True for _ in part.children())
            or any(isinstance(one, DTensor) for one in own_parameters.values())
        ):
            continue
        for name, parameter in own_parameters.items():
            if id(parameter) not in replicated:
                distributed = distribute_tensor(parameter.data, group.mesh, placements)
                replicated[id(parameter)] = nn.Parameter(distributed, requires_grad=parameter.requires_grad)
            part.register_parameter(name, replicated[id(parameter)])
        part.register_forward_pre_hook(enter)
        part.register_forward_hook(leave)


def _to_dtensor(value: Any, group: Group) -> Any:
    import torch
    from torch.distributed.tensor import DTensor, Replicate

    if isinstance(value, torch.Tensor) and not isinstance(value, DTensor):
        return DTensor.from_local(value, group.mesh, [Replicate()], run_check=False)
    return value
