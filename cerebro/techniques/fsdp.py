"""Sharded data parallelism (`fsdp`) and offloading to the host (`offload`), both by torch's FSDP2.

Parameters, gradients and optimizer state are sharded over the ranks, or kept on the host. Parameters become DTensors in
devices, under the same names. Each block's parameters are gathered while it computes. `cerebro.worker.training.ranks`
converts between shards and the full tensors of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from cerebro.errors import NotApplicableError
from cerebro.spec import DataLoader, Hints
from cerebro.techniques.base import DeviceSet, Group, Memory, ModelFacts, Params, Share, Technique
from cerebro.techniques.checkpointing import CHECKPOINTING, not_repeated, recompute_if_asked
from cerebro.techniques.ddp import not_shared, require_apart, synchronize_norms
from cerebro.techniques.float8 import EMULATED, FLOAT8, not_computed, to_float8
from cerebro.techniques.single import not_one, too_large

if TYPE_CHECKING:
    from torch import nn

_PRECISIONS = ("bf16", FLOAT8, EMULATED)
"""Allowed precisions. With float8, matrix products are in float8 and everything else in bfloat16."""
_PRECISION, _RESHARD, _ACTIVATIONS = "precision", "reshard", "activations"

_REFUSED = {
    "got mixed torch.Tensor and DTensor": "train() computes with parameters themselves and plain tensors together",
    "FSDP does not support deepcopy": "train() copies a module by copy.deepcopy()",
    "Cannot access data pointer": "train() looks at the memory of a parameter",
}
"""Error text of torch for a forbidden use of a sharded parameter -> reason for the user."""


class _Sharding(Technique):
    """Common parts of `Fsdp` and `Offload`."""

    def is_exact(self, params: Params) -> bool:
        """Return False for another precision."""
        return _PRECISION not in params

    def made_on(self, group: Group, params: Params) -> str:
        """Return the host, because the full model may not fit a device."""
        return "cpu"

    def prepare(self, modules: list[nn.Module], group: Group, params: Params, hints: Hints) -> None:
        from torch.distributed.fsdp import register_fsdp_forward_method

        precision = params.get(_PRECISION)
        if precision in (FLOAT8, EMULATED):
            to_float8(modules, group, is_emulated=precision == EMULATED)
        recompute_if_asked(modules, params, hints)
        require_apart(modules)
        for module in modules:
            synchronize_norms(module, group)
            if not any(True for _ in module.parameters()):
                module.to(group.device)
                continue
            self._shard(module, group, params, hints)
            for name in hints.methods:
                if hasattr(module, name):
                    register_fsdp_forward_method(module, name)

    def _shard(self, module: nn.Module, group: Group, params: Params, hints: Hints) -> None:
        from torch.distributed.fsdp import fully_shard

        options = {"mesh": group.mesh, **self._options(group, params)}
        try:
            for block in _separable(module, hints):
                fully_shard(block, **options)
            fully_shard(module, **options)
        except (ValueError, NotImplementedError, AssertionError) as error:
            raise NotApplicableError(f"torch cannot shard {type(module).__name__}: {error}") from error

    def _options(self, group: Group, params: Params) -> dict[str, Any]:
        import torch
        from torch.distributed.fsdp import MixedPrecisionPolicy

        if _PRECISION not in params:
            return {}
        # Gradients are summed in full precision, and the optimizer keeps full-precision weights.
        return {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        """Explain errors from a forbidden use of a sharded parameter."""
        try:
            yield
        except Exception as error:
            for error_text, reason in _REFUSED.items():
                if error_text in str(error):
                    raise NotApplicableError(f"{reason}, which sharded parameters do not allow") from error
            raise


class Fsdp(_Sharding):
    """`fully_shard` of each block and of the module, over all ranks; each reads its share of each batch."""

    name = "fsdp"
    least = 2
    parameters: ClassVar = MappingProxyType(
        {_RESHARD: (True, False), CHECKPOINTING: (False, True), _PRECISION: _PRECISIONS}
    )

    def variants(self, facts: ModelFacts, devices: DeviceSet) -> tuple[Params, ...]:
        """Add recomputed activations (slower, less memory)."""
        return ({}, {CHECKPOINTING: True}) if facts.layers else ({},)

    def is_applicable(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> str:
        """Require several devices, a row for each and room for a shard of the state on each."""
        return (
            not_shared(facts, devices)
            or not_computed(params.get(_PRECISION), devices)
            or not_repeated(facts, params)
            or too_large(self.memory(facts, devices, params), devices)
        )

    def memory(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> Memory:
        """Return a shard of the state, and the parameters and gradients of one gathered block.

        Without blocks, all parameters are gathered at once.
        """
        state = facts.param_bytes + facts.trainable_bytes + (facts.optimizer_bytes or 0)
        gathered = 2 * (facts.block_bytes or facts.param_bytes)
        return Memory(
            device=-(-state // devices.size) + gathered + facts.buffer_bytes, host=facts.param_bytes
        )

    def share(self, group: Group) -> Share:
        """Return an equal part of the rows for each rank."""
        return Share(index=group.rank, of=group.size)

    def _options(self, group: Group, params: Params) -> dict[str, Any]:
        return {"reshard_after_forward": params.get(_RESHARD, True), **super()._options(group, params)}


class Offload(_Sharding):
    """Parameters, gradients and optimizer state on the host; a block's parameters are on the device while it computes.

    The user's optimizer steps on the CPU.
    """

    name = "offload"
    most = 1
    parameters: ClassVar = MappingProxyType(
        {CHECKPOINTING: (False, True), _ACTIVATIONS: (False, True), _PRECISION: _PRECISIONS}
    )
    processes = "one"

    def variants(self, facts: ModelFacts, devices: DeviceSet) -> tuple[Params, ...]:
        """Return variants with decreasing device memory and increasing time."""
        more = ({CHECKPOINTING: True}, {CHECKPOINTING: True, _ACTIVATIONS: True})
        return ({}, *more) if facts.layers else ({}, {_ACTIVATIONS: True})

    def is_applicable(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> str:
        """Require room for the model's state on the host."""
        return (
            not_one(devices)
            or not_computed(params.get(_PRECISION), devices)
            or not_repeated(facts, params)
            or too_large(self.memory(facts, devices, params), devices)
        )

    def helps(self, devices: DeviceSet) -> bool:
        """Return True for GPUs only, because a CPU's memory is the host's."""
        return devices.kind == "gpu"

    def memory(self, facts: ModelFacts, devices: DeviceSet, params: Params) -> Memory:
        """Return the state on the host and two blocks on the device.

        An unknown optimizer counts like Adam.
        """
        optimizer = 2 * facts.trainable_bytes if facts.optimizer_bytes is None else facts.optimizer_bytes
        device = 2 * (facts.block_bytes or facts.param_bytes) + facts.buffer_bytes
        return Memory(device=device, host=facts.param_bytes + facts.trainable_bytes + optimizer)

    def _options(self, group: Group, params: Params) -> dict[str, Any]:
        from torch.distributed.fsdp import CPUOffloadPolicy

        return {
            "offload_policy": CPUOffloadPolicy(pin_memory=_is_gpu(group)),
            **super()._options(group, params),
        }

    @contextmanager
    def running(
        self, modules: list[nn.Module], feed: DataLoader, group: Group, params: Params
    ) -> Iterator[None]:
        """Keep saved activations on the host if the parameters say so."""
        from torch.autograd.graph import save_on_cpu

        with ExitStack() as stack:
            stack.enter_context(super().running(modules, feed, group, params))
            if params.get(_ACTIVATIONS):
                stack.enter_context(save_on_cpu(pin_memory=_is_gpu(group)))
            yield


def _is_gpu(group: Group) -> bool:
    return group.device.startswith("cuda")


def _separable(module: nn.Module, hints: Hints) -> list[nn.Module]:
    """Return the blocks that share no parameter with other modules; shared ones must be gathered together."""
    from cerebro.techniques.facts import blocks

    holders: dict[int, int] = {}
    repeated = blocks([module], hints)
    for block in repeated:
        for parameter in {id(one) for one in block.parameters()}:
            holders[parameter] = holders.get(parameter, 0) + 1
    inside = {id(part) for block in repeated for part in block.modules()}
    outside = {
        id(one)
        for part in module.modules()
        if id(part) not in inside
        for one in part.parameters(recurse=False)
    }
    return [
        block
        for block in repeated
        if all(holders[id(one)] == 1 and id(one) not in outside for one in block.parameters())
        and any(True for _ in block.parameters())
    ]
